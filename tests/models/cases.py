"""One row an architecture: its tiny checkpoint and the mistakes that the comparison must be able to see.

A mutant computes, from the reference library's own model, what a knowingly wrong implementation would return.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tests.support.pipelines import Reference

Mutant = Callable[[Reference, Sequence[str]], NDArray[np.float32]]

TOLERANCE = 1e-5
"""Largest difference of a right result, in float32, of values of order one."""

MUTANT_FACTOR = 100
"""By how many tolerances a mutant must differ."""


@dataclass(frozen=True)
class Case:
    """``changes`` go to the tiny checkpoint's config; ``tolerance`` is tighter where the mutants differ by little."""

    name: str
    family: str
    mutants: Mapping[str, Mutant]
    changes: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = TOLERANCE


def changed(change: Callable[[Any], None]) -> Mutant:
    """The mean embedding of a copy of the reference's backbone to which ``change`` was done."""

    def embed(reference: Reference, texts: Sequence[str]) -> NDArray[np.float32]:
        backbone = copy.deepcopy(reference.backbone)
        with torch.no_grad():
            change(backbone)
        return reference.mean(texts, backbone=backbone)

    return embed


def with_inputs(make: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Mutant:
    """The mean embedding with other inputs, which ``make`` gets from the right ones."""

    def embed(reference: Reference, texts: Sequence[str]) -> NDArray[np.float32]:
        return reference.mean(texts, **make(reference.features(texts)))

    return embed


def numbered_from(first: int, limit: int) -> Mutant:
    """Positions counted from ``first``, cut at the table's end."""

    def make(features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        ids = features["input_ids"]
        return {"position_ids": (torch.arange(ids.shape[1]) + first).clamp(max=limit - 1).expand_as(ids)}

    return with_inputs(make)


def with_epsilon(value: float) -> Mutant:
    """Every layer norm with this epsilon."""

    def change(backbone: nn.Module) -> None:
        for module in backbone.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = value

    return changed(change)


def with_activation(function: Callable[[torch.Tensor], torch.Tensor]) -> Mutant:
    """Every feed-forward half with this activation function."""

    def change(backbone: nn.Module) -> None:
        for module in backbone.modules():
            for name in ("intermediate_act_fn", "activation"):
                if hasattr(module, name):
                    delattr(module, name)
                    setattr(module, name, function)

    return changed(change)


def _swap_halves(backbone: Any) -> None:
    bias = backbone.encoder.relative_attention_bias.weight
    bias.copy_(bias.roll(bias.shape[0] // 2, 0))


def _flatten_far_buckets(backbone: Any) -> None:
    bias = backbone.encoder.relative_attention_bias.weight
    half, exact = bias.shape[0] // 2, bias.shape[0] // 4
    for start in (0, half):
        bias[start + exact : start + half] = bias[start + exact]


def _shuffle_heads(backbone: Any) -> None:
    bias = backbone.encoder.relative_attention_bias.weight
    bias.copy_(bias.roll(1, 1))


def _one_group(backbone: Any) -> None:
    groups = backbone.encoder.albert_layer_groups
    for group in groups:
        group.load_state_dict(groups[0].state_dict())


def _groups_in_turn(backbone: Any) -> None:
    encoder = backbone.encoder
    layers, groups = backbone.config.num_hidden_layers, list(encoder.albert_layer_groups)
    encoder.albert_layer_groups = nn.ModuleList(groups[index % len(groups)] for index in range(layers))
    backbone.config.num_hidden_groups = layers


def tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    """The approximation of GELU."""
    return nn.functional.gelu(x, approximate="tanh")


TYPE_ROW_1 = with_inputs(lambda features: {"token_type_ids": torch.ones_like(features["input_ids"])})
PADDING_ATTENDED = with_inputs(lambda features: {"attention_mask": torch.ones_like(features["attention_mask"])})
NO_TYPE_ROW = changed(lambda backbone: backbone.embeddings.token_type_embeddings.weight.zero_())


def _exchange_kinds(backbone: Any) -> None:
    rotary = backbone.rotary_emb
    names = [f"{kind}_attention_inv_freq" for kind in ("full", "sliding")]
    one, other = (getattr(rotary, name).clone() for name in names)
    for name, value in zip(names, (other, one), strict=True):
        getattr(rotary, name).copy_(value)


def with_window(distance: int) -> Mutant:
    """ModernBERT's sliding layers with another largest distance."""

    def change(backbone: Any) -> None:
        backbone.config.sliding_window = distance

    return changed(change)


def _exchange_gate(backbone: Any) -> None:
    for layer in backbone.layers:
        layer.mlp.Wi.weight.copy_(layer.mlp.Wi.weight.roll(layer.mlp.Wi.weight.shape[0] // 2, 0))


CASES: tuple[Case, ...] = (
    Case(
        "modernbert",
        "modernbert",
        {
            "a wider window": with_window(4),
            "a narrower window": with_window(2),
            "no window": with_window(64),
            "bases of positions exchanged": changed(_exchange_kinds),
            "gate and input exchanged": changed(_exchange_gate),
            "epsilon of the class": with_epsilon(1e-5),
            "padding attended": PADDING_ATTENDED,
        },
    ),
    Case(
        "modernbert with biases and other layers",
        "modernbert",
        {"no window": with_window(64), "bases of positions exchanged": changed(_exchange_kinds)},
        {
            "norm_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "hidden_activation": "relu",
        },
    ),
    Case(
        "bert",
        "bert",
        {
            "token type row 1": TYPE_ROW_1,
            "no token type row": NO_TYPE_ROW,
            "positions from 1": numbered_from(1, 64),
            "epsilon of the class": with_epsilon(1e-12),
            "padding attended": PADDING_ATTENDED,
        },
    ),
    Case(
        "bert with six layers",
        "bert",
        {"tanh GELU": with_activation(tanh_gelu), "positions from 1": numbered_from(1, 64)},
        {"num_hidden_layers": 6},
        tolerance=TOLERANCE / 2,
    ),
    Case(
        "bert with other sizes",
        "bert",
        {"GELU for ReLU": with_activation(nn.functional.gelu), "positions from 1": numbered_from(1, 48)},
        {"hidden_act": "relu", "num_attention_heads": 2, "num_hidden_layers": 3, "max_position_embeddings": 48},
    ),
    Case(
        "bert with tanh GELU",
        "bert",
        {"exact GELU": with_activation(nn.functional.gelu)},
        {"hidden_act": "gelu_new", "num_hidden_layers": 6},
        tolerance=TOLERANCE / 2,
    ),
    Case(
        "distilbert",
        "distilbert",
        {
            "positions from 1": numbered_from(1, 64),
            "epsilon of BERT's neighbours": with_epsilon(1e-3),
            "tanh GELU": with_activation(tanh_gelu),
            "padding attended": PADDING_ATTENDED,
        },
        tolerance=TOLERANCE / 2,
    ),
    Case(
        "distilbert with ReLU",
        "distilbert",
        {"GELU for ReLU": with_activation(nn.functional.gelu)},
        {"activation": "relu"},
    ),
    Case(
        "mpnet",
        "mpnet",
        {
            "no relative bias": changed(lambda backbone: backbone.encoder.relative_attention_bias.weight.zero_()),
            "direction reversed": changed(_swap_halves),
            "far distances alike": changed(_flatten_far_buckets),
            "heads exchanged": changed(_shuffle_heads),
            "positions from 0": numbered_from(0, 66),
            "positions from 1": numbered_from(1, 66),
            "epsilon of the class": with_epsilon(1e-12),
            "padding attended": PADDING_ATTENDED,
        },
    ),
    Case(
        "roberta",
        "roberta",
        {
            "positions from 0": numbered_from(0, 66),
            "positions from 1": numbered_from(1, 66),
            "no token type row": NO_TYPE_ROW,
            "epsilon of the class": with_epsilon(1e-12),
            "padding attended": PADDING_ATTENDED,
        },
    ),
    Case(
        "roberta with another padding id",
        "roberta",
        {"padding id 1 assumed": numbered_from(2, 70)},
        {"pad_token_id": 3, "max_position_embeddings": 70},
    ),
    Case(
        "xlm-roberta",
        "xlm-roberta",
        {
            "positions from 0": numbered_from(0, 66),
            "positions from 1": numbered_from(1, 66),
            "no token type row": NO_TYPE_ROW,
            "padding attended": PADDING_ATTENDED,
        },
    ),
    Case(
        "camembert",
        "camembert",
        {"positions from 0": numbered_from(0, 66), "positions from 1": numbered_from(1, 66)},
    ),
    Case(
        "electra",
        "electra",
        {
            "token type row 1": TYPE_ROW_1,
            "no token type row": NO_TYPE_ROW,
            "positions from 1": numbered_from(1, 64),
            "projection without bias": changed(lambda backbone: backbone.embeddings_project.bias.zero_()),
            "epsilon of the class": with_epsilon(1e-12),
            "padding attended": PADDING_ATTENDED,
        },
    ),
    Case(
        "electra with a table as wide as its layers",
        "electra",
        {"positions from 1": numbered_from(1, 64), "no token type row": NO_TYPE_ROW},
        {"embedding_size": 32},
    ),
    Case(
        "albert",
        "albert",
        {
            "token type row 1": TYPE_ROW_1,
            "positions from 1": numbered_from(1, 64),
            "projection without bias": changed(
                lambda backbone: backbone.encoder.embedding_hidden_mapping_in.bias.zero_()
            ),
            "exact GELU": with_activation(nn.functional.gelu),
            "epsilon of the class": with_epsilon(1e-12),
            "padding attended": PADDING_ATTENDED,
        },
        tolerance=TOLERANCE / 2,
    ),
    Case(
        "albert with a set of weights for each layer",
        "albert",
        {"one set for all": changed(_one_group)},
        {"num_hidden_groups": 3},
    ),
    Case(
        "albert with two sets for five layers",
        "albert",
        {"one set for all": changed(_one_group), "sets in turn": changed(_groups_in_turn)},
        {"num_hidden_groups": 2, "num_hidden_layers": 5},
    ),
)
