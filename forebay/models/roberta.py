"""RoBERTa (Liu et al. 2019, arXiv:1907.11692) and the models built alike: XLM-RoBERTa, CamemBERT.

BERT's network; what differs is the numbering of positions, which starts after the padding id and counts only
tokens that are not that id.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from forebay.layers.batch import FlatBatch
from forebay.models.base import HeadKind, HeadNames, Naming, read
from forebay.models.bert import EMBEDDING_NAMES, LAYER_NAMES, UNUSED_HEADS, Bert


def offset_positions(batch: FlatBatch, padding_id: int) -> Tensor:
    """Positions [T] as RoBERTa numbers them: padding_id + 1 + (how many non-padding ids stand before).

    A padding id inside a text keeps position ``padding_id`` and does not advance the count. With padding id 1
    and two sequences ``[0 7 1 8 2] [0 9 2]`` the result is ``[2 3 1 4 5] [2 3 4]``.
    """
    real = (batch.input_ids != padding_id).long()
    counts = real.cumsum(0)
    firsts = batch.cu_seqlens[:-1]
    before = torch.cat([counts.new_zeros(1), counts])[firsts]  # non-padding ids in front of each sequence
    lens = batch.cu_seqlens[1:] - firsts
    return (counts - before.repeat_interleave(lens)) * real + padding_id


ROBERTA_HEADS: dict[HeadKind, HeadNames] = {
    "sequence": HeadNames({"classifier.dense": "dense", "classifier.out_proj": "out"}, "tanh"),
    "token": HeadNames({"classifier": "out"}),
    "masked_lm": HeadNames(
        {
            "lm_head.dense": "dense",
            "lm_head.layer_norm": "norm",
            "lm_head.decoder": "decoder",
        },
        "gelu",
        spare={"lm_head": "decoder"},
    ),
}


class Roberta(Bert):
    """Post-norm encoder with offset positions."""

    naming = Naming(("roberta.",), "encoder.layer.", LAYER_NAMES, EMBEDDING_NAMES, UNUSED_HEADS)
    heads = ROBERTA_HEADS

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.padding_id = read(config, "pad_token_id", default=1, at_least=0)
        self.max_len = read(config, "max_position_embeddings") - self.padding_id - 1

    def position_ids(self, batch: FlatBatch) -> Tensor:
        """Rows of the position table [T]."""
        return offset_positions(batch, self.padding_id)
