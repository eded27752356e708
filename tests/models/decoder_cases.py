"""One row a decoder, or a form of one: its config and the mistakes that the comparison must be able to see.

A mutant is the same checkpoint read by transformers with another config, or with a change to the model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

Mutant = Mapping[str, Any] | Callable[[Any], None]

TOLERANCE = 1e-5
"""Largest difference of a right state, as a part of the largest state."""

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class DecoderCase:
    """``config`` goes to the tiny checkpoint's config; ``tolerance`` is tighter where mutants differ by little."""

    name: str
    family: str
    mutants: Mapping[str, Mutant]
    config: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = TOLERANCE


def _replaced(name: str, other: Callable[[], nn.Module]) -> Callable[[Any], None]:
    """Another module in the place of those called ``name``."""

    def change(model: Any) -> None:
        for module in list(model.modules()):
            if hasattr(module, name):
                setattr(module, name, other())

    return change


def _zeroed(leaf: str) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        for name, parameter in model.named_parameters():
            if name.endswith(leaf):
                parameter.zero_()

    return change


def _scaled(value: float) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        for module in model.modules():
            if hasattr(module, "scaling"):
                module.scaling = value

    return change


def _heads_in_turn(model: Any) -> None:
    """Queries take keys' heads in turn (0 1 0 1), not in groups (0 0 1 1)."""
    size, order = model.layers[0].self_attn.head_dim, [0, 2, 1, 3]
    rows = torch.cat([torch.arange(head * size, (head + 1) * size) for head in order])
    for layer in model.layers:
        query, out = layer.self_attn.q_proj, layer.self_attn.o_proj
        query.weight.copy_(query.weight[rows])
        out.weight.copy_(out.weight[:, rows])
        if query.bias is not None:
            query.bias.copy_(query.bias[rows])


def _weights_without_one(model: Any) -> None:
    """Gemma's norms without the 1 that is added to their weights."""
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.sub_(1)


def _unscaled_words(model: Any) -> None:
    model.embed_tokens.embed_scale.fill_(1.0)


def _halves_not_alternating(model: Any) -> None:
    """NeoX's tensor read as all queries, then all keys, then all values."""
    for layer in model.layers:
        linear = layer.attention.query_key_value
        heads, hidden = model.config.num_attention_heads, model.config.hidden_size
        for parameter in (linear.weight, linear.bias):
            rest = parameter.shape[1:]
            parameter.copy_(parameter.view(3, heads, hidden // heads, *rest).transpose(0, 1).reshape(-1, *rest))


def _positions_from_1(model: Any) -> None:
    table = model.wpe.weight
    table[:-1] = table[1:].clone()


def _plain_rotation(model: Any) -> None:
    """RoPE without scaling."""
    rotary = model.rotary_emb
    parameters = model.config.rope_parameters
    exponents = torch.arange(0, 16, 2).float() / 16
    rotary.inv_freq.copy_(1 / parameters["rope_theta"] ** exponents)
    rotary.rope_type, rotary.attention_scaling = "default", 1.0


def _always_long(model: Any) -> None:
    model.config.rope_parameters["original_max_position_embeddings"] = 2


def _no_temperature(model: Any) -> None:
    model.rotary_emb.attention_scaling = 1.0


def _rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 5e3, **parameters}}


def _exact_gelu(model: Any) -> None:
    for layer in model.layers:
        layer.mlp.act_fn = nn.GELU()


MROPE = {"rope_type": "default", "mrope_section": [1, 1, 2]}
SILU_TO_GELU = {"hidden_act": "gelu"}
OTHER_EPSILON = {"rms_norm_eps": 1e-6}
BIDIRECTIONAL = {"is_causal": False}
CAUSAL = {"is_causal": True}
OTHER_THETA = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
LONG = {"short_factor": [1 + i / 8 for i in range(8)], "long_factor": [2 + i for i in range(8)]}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
GLOBAL_TWICE = {"layer_types": [FULL, SLIDING, SLIDING, SLIDING, SLIDING, FULL, SLIDING]}
TWO_ROTATIONS = {
    "rope_parameters": {
        FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        SLIDING: {"rope_type": "default", "rope_theta": 1e3},
    }
}

DECODER_CASES: tuple[DecoderCase, ...] = (
    DecoderCase(
        "llama",
        "llama",
        {
            "bidirectional": BIDIRECTIONAL,
            "other base": OTHER_THETA,
            "other epsilon": OTHER_EPSILON,
            "GELU": SILU_TO_GELU,
            "heads in turn": _heads_in_turn,
            "scale of the hidden size": _scaled(32**-0.5),
        },
    ),
    DecoderCase("bidirectional llama", "llama", {"causal": CAUSAL}, BIDIRECTIONAL),
    DecoderCase(
        "llama with biases",
        "llama",
        {"without": _zeroed(".bias"), "none in o": _zeroed("o_proj.bias"), "none in mlp": _zeroed("down_proj.bias")},
        {"attention_bias": True, "mlp_bias": True},
    ),
    DecoderCase(
        "mistral",
        "mistral",
        {
            "window off by one": {"sliding_window": 10},
            "window without itself": {"sliding_window": 8},
            "no window": {"sliding_window": None},
            "bidirectional": BIDIRECTIONAL,
        },
    ),
    DecoderCase("mistral without a window", "mistral", {"window": {"sliding_window": 9}}, {"sliding_window": None}),
    DecoderCase(
        "bidirectional mistral", "mistral", {"window as causal": {"sliding_window": 8}, "causal": CAUSAL}, BIDIRECTIONAL
    ),
    DecoderCase(
        "qwen2", "qwen2", {"no biases": _zeroed("_proj.bias"), "heads in turn": _heads_in_turn, "other": OTHER_THETA}
    ),
    DecoderCase("bidirectional qwen2", "qwen2", {"causal": CAUSAL}, BIDIRECTIONAL),
    DecoderCase(
        "qwen2 with windows above layer 1",
        "qwen2",
        {"everywhere": {"layer_types": [SLIDING] * 3}, "nowhere": {"layer_types": [FULL] * 3}},
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    DecoderCase(
        "qwen3",
        "qwen3",
        {
            "queries not normalised": _replaced("q_norm", nn.Identity),
            "keys not normalised": _replaced("k_norm", nn.Identity),
            "bidirectional": BIDIRECTIONAL,
            "scale of the hidden size": _scaled(8**-0.5),
            "heads in turn": _heads_in_turn,
        },
    ),
    DecoderCase("bidirectional qwen3", "qwen3", {"causal": CAUSAL}, BIDIRECTIONAL),
    DecoderCase(
        "qwen2_vl",
        "qwen2_vl",
        {"no biases": _zeroed("_proj.bias"), "other": {"rope_parameters": {**MROPE, "rope_theta": 1e4}}},
    ),
    DecoderCase(
        "qwen2_vl with windows above layer 1",
        "qwen2_vl",
        {"everywhere": {"layer_types": [SLIDING] * 3}, "nowhere": {"layer_types": [FULL] * 3}},
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    DecoderCase(
        "gemma",
        "gemma",
        {
            "exact GELU": _exact_gelu,
            "scale of the hidden size": _scaled(8**-0.5),
            "weights without 1": _weights_without_one,
            "words not scaled": _unscaled_words,
            "heads in turn": _heads_in_turn,
            "other epsilon": OTHER_EPSILON,
            "bidirectional": BIDIRECTIONAL,
        },
        {"hidden_act": "gelu"},
        tolerance=TOLERANCE / 5,
    ),
    DecoderCase("bidirectional gemma", "gemma", {"causal": CAUSAL}, BIDIRECTIONAL),
    DecoderCase(
        "gemma2",
        "gemma2",
        {
            "no soft cap": {"attn_logit_softcapping": None},
            "soft cap of the class": {"attn_logit_softcapping": 50.0},
            "window off by one": {"sliding_window": 10},
            "odd layers local": {"layer_types": [FULL, SLIDING, FULL]},
            "scale of the heads": {"query_pre_attn_scalar": 12},
            "exact GELU": {"hidden_activation": "gelu"},
            "weights without 1": _weights_without_one,
            "words not scaled": _unscaled_words,
            "no norm after attention": _replaced("post_attention_layernorm", nn.Identity),
            "bidirectional": BIDIRECTIONAL,
        },
        tolerance=TOLERANCE / 5,
    ),
    DecoderCase("bidirectional gemma2", "gemma2", {"window as causal": {"sliding_window": 8}}, BIDIRECTIONAL),
    DecoderCase(
        "gemma3",
        "gemma3",
        {
            "window off by one": {"sliding_window": 10},
            "global layer elsewhere": GLOBAL_TWICE,
            "local base everywhere": {"rope_parameters": {FULL: {"rope_type": "default", "rope_theta": 1e4}}},
            "global base everywhere": {"rope_parameters": {SLIDING: {"rope_type": "default", "rope_theta": 1e6}}},
            "queries not normalised": _replaced("q_norm", nn.Identity),
            "bidirectional": {"use_bidirectional_attention": True},
            "weights without 1": _weights_without_one,
        },
    ),
    DecoderCase(
        "gemma3 with two rotations",
        "gemma3",
        {"one of the class": {"rope_parameters": None}},
        {**TWO_ROTATIONS, **GLOBAL_TWICE},
    ),
    DecoderCase(
        "bidirectional gemma3",
        "gemma3",
        {
            "causal": {"use_bidirectional_attention": False},
            "window wider by one": {"sliding_window": 10},
            "window narrower by one": {"sliding_window": 6},
            "window not halved": {"sliding_window": 16},
        },
        {"use_bidirectional_attention": True, "sliding_window": 8},
    ),
    DecoderCase(
        "gpt2",
        "gpt2",
        {
            "positions from 1": _positions_from_1,
            "exact GELU": {"activation_function": "gelu"},
            "other epsilon": {"layer_norm_epsilon": 1e-5},
            "bidirectional": BIDIRECTIONAL,
        },
        tolerance=TOLERANCE / 5,
    ),
    DecoderCase(
        "bidirectional gpt2 with falling scales",
        "gpt2",
        {"one scale": {"scale_attn_by_inverse_layer_idx": False}, "causal": CAUSAL},
        {"scale_attn_by_inverse_layer_idx": True, "n_inner": 40, **BIDIRECTIONAL},
    ),
    DecoderCase(
        "gpt_neox",
        "gpt_neox",
        {
            "one half after the other": {"use_parallel_residual": False},
            "whole heads rotated": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}},
            "tanh GELU": {"hidden_act": "gelu_new"},
            "not alternating": _halves_not_alternating,
            "bidirectional": BIDIRECTIONAL,
        },
        tolerance=TOLERANCE / 5,
    ),
    DecoderCase(
        "serial gpt_neox",
        "gpt_neox",
        {"parallel": {"use_parallel_residual": True}, "causal": CAUSAL},
        {"use_parallel_residual": False, "rotary_pct": 0.5, **BIDIRECTIONAL},
    ),
    DecoderCase("linear scaling", "qwen3", {"none": _plain_rotation}, _rope("linear", factor=4.0)),
    DecoderCase(
        "dynamic scaling",
        "qwen3",
        {"none": _plain_rotation},
        {**_rope("dynamic", factor=4.0), "max_position_embeddings": 32},
    ),
    DecoderCase("llama3 scaling", "qwen3", {"none": _plain_rotation}, _rope("llama3", **LLAMA3)),
    DecoderCase(
        "yarn scaling",
        "qwen3",
        {"none": _plain_rotation, "no temperature": _no_temperature},
        _rope("yarn", factor=4.0, original_max_position_embeddings=32),
    ),
    DecoderCase(
        "yarn scaling with everything",
        "qwen3",
        {"rounded": _rope("yarn", factor=4.0, original_max_position_embeddings=32)},
        _rope(
            "yarn",
            factor=4.0,
            original_max_position_embeddings=32,
            mscale=0.7,
            mscale_all_dim=0.5,
            beta_fast=16,
            beta_slow=2,
            truncate=False,
        ),
    ),
    DecoderCase(
        "longrope scaling",
        "qwen3",
        {"always short": _plain_rotation, "no temperature": _no_temperature, "always long": _always_long},
        _rope("longrope", factor=4.0, original_max_position_embeddings=32, **LONG),
    ),
)
