"""Makers of tiny checkpoints with a trained head, and what transformers makes of them.

The body is the family's tiny backbone, the head transformers' own class; all weights are large and random.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.support import tiny
from tests.support.store import Store

Kind = Literal["sequence", "token", "masked_lm"]
Floats = NDArray[np.float32]

CLASSES: dict[Kind, Any] = {
    "sequence": transformers.AutoModelForSequenceClassification,
    "token": transformers.AutoModelForTokenClassification,
    "masked_lm": transformers.AutoModelForMaskedLM,
}


def with_head(folder: Path, family: str, kind: Kind, *, seed: int = 31, **changes: Any) -> Path:
    """A checkpoint of this family and kind; ``changes`` go to its config."""
    tiny.TRANSFORMERS[family](folder)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)  # as that library means it
    config = transformers.AutoConfig.from_pretrained(folder, **changes)
    model = CLASSES[kind].from_config(config)
    tiny.randomize(model, seed)
    model.save_pretrained(folder)
    return folder


class HeadReference:
    """transformers on a folder, in float32 on the CPU, all texts in one padded batch."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self.folder = folder
        self.model = CLASSES[kind].from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def features(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """The padded tensors that the model gets for these texts."""
        tokens = self.tokenizer(list(texts), padding=True, truncation=True, max_length=tiny.MAX_LEN)
        known = ("input_ids", "attention_mask", "token_type_ids")
        return {name: torch.tensor(tokens[name]) for name in known if name in tokens}

    @torch.no_grad()
    def logits(self, texts: Sequence[str]) -> Floats:
        """The model's logits: [n, labels], or [n, L, labels] with the rows of padding."""
        logits: Floats = self.model(**self.features(texts)).logits.numpy()
        return logits

    def token_logits(self, texts: Sequence[str]) -> list[Floats]:
        """The logits of each text's own tokens, [tokens, labels]."""
        lens = self.features(texts)["attention_mask"].sum(1).tolist()
        return [rows[:length] for rows, length in zip(self.logits(texts), lens, strict=True)]

    @torch.no_grad()
    def states(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """The body's last hidden states [n, L, H] and the mask [n, L, 1]."""
        features = self.features(texts)
        states: Tensor = self.model.base_model(**features).last_hidden_state
        return states, features["attention_mask"][..., None].float()

    @property
    def sequence_layers(self) -> tuple[nn.Module, nn.Module]:
        """A sequence classifier's inner and outer linear layer."""
        model = self.model
        if hasattr(model, "head"):  # a norm stands before the outer layer
            return model.head.dense, nn.Sequential(model.head.norm, model.classifier)
        if hasattr(model, "pre_classifier"):
            return model.pre_classifier, model.classifier
        if hasattr(model.classifier, "out_proj"):
            return model.classifier.dense, model.classifier.out_proj
        pooler = model.base_model.pooler
        return getattr(pooler, "dense", pooler), model.classifier


def head_folder(store: Store, family: str, kind: Kind, **changes: Any) -> Path:
    """The checkpoint of this family and kind, made once a session for the same ``changes``."""
    name = f"{kind}-{family}-{sorted(changes.items())!r}".encode()
    return store.folder(f"{kind}-{family}-{crc32(name):08x}", lambda place: with_head(place, family, kind, **changes))


@cache
def reference_of(folder: Path, kind: Kind) -> HeadReference:
    """transformers on this folder, loaded once."""
    return HeadReference(folder, kind)


def pooled_by(how: str, states: Tensor, mask: Tensor) -> Tensor:
    """Rows [n, H] by hand: the first token's, the last's or the mean of all."""
    if how == "first":
        return states[:, 0]
    if how == "last":
        return states[torch.arange(len(states)), mask[..., 0].sum(1).long() - 1]
    return (states * mask).sum(1) / mask.sum(1)
