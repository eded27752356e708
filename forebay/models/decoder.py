"""Decoder: the pre-norm transformer of today's language models, read as a pooler.

One layer serves all architectures; a ``DecoderShape`` says what differs. It knows neither heads nor the cache of keys
and values, which attention finds in the batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from forebay.core.errors import UnsupportedCheckpoint
from forebay.layers.activation import IDENTITY, find_activation, gate
from forebay.layers.batch import FlatBatch
from forebay.layers.decoder_attention import AttentionSpec, head_attention
from forebay.layers.embedding import Table, embed
from forebay.layers.linear import Linear
from forebay.layers.norm import RMSNorm
from forebay.layers.program import Inputs, Recorder, State
from forebay.layers.rotary import Rotary, Turns, read_parameters, read_rotary
from forebay.models.base import Encoder, HeadKind, HeadNames, LayerHook, Naming, read

SLIDING = "sliding_attention"

LLAMA_LAYER: dict[str, str | tuple[str, int]] = {
    "self_attn.q_proj": ("qkv", 0),
    "self_attn.k_proj": ("qkv", 1),
    "self_attn.v_proj": ("qkv", 2),
    "self_attn.o_proj": "attention_out",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": ("ffn_in", 0),
    "mlp.up_proj": ("ffn_in", 1),
    "mlp.down_proj": "ffn_out",
}
LLAMA_OUTSIDE = {"embed_tokens": "words", "norm": "norm"}
UNUSED = (r"lm_head\..*", r"(score|classifier)\..*", r".*rotary_emb\.inv_freq")


def llama_naming(**more: str) -> Naming:
    """The names that Llama gave its tensors and most others took over; ``more`` are those inside a layer."""
    in_layer = LLAMA_LAYER | {name.replace("__", "."): own for name, own in more.items()}
    return Naming(("model.",), "layers.", in_layer, LLAMA_OUTSIDE, UNUSED)


HEADS: dict[HeadKind, HeadNames] = {
    "score": HeadNames({"score": "out"}),
    "token": HeadNames({"score": "out", "classifier": "out"}),
    "reward": HeadNames({"score.0": "dense", "score.2": "out"}, activation="relu"),
    "lm_rows": HeadNames({"lm_head": "out", "embed_out": "out"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """What distinguishes the architectures. ``num_positions`` 0: there is no table of positions.

    ``norm`` makes a normalisation of a given width and ``windows`` has each layer's sliding window, or None (see
    AttentionSpec). ``kinds`` names each layer's rotation in ``rotaries`` ("" where there is one for all). ``scales``
    multiply each layer's scores. ``is_gated``: the feed-forward half is activation(gate x) * (up x).
    ``has_head_norms``: queries and keys are normalised head by head. ``has_post_norms``: what a half returns is
    normalised before it is added. ``is_parallel``: both halves read the layer's input. ``stored`` is how checkpoints
    keep queries, keys and values: apart, in one tensor, or in one where they alternate head by head.
    """

    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_len: int
    norm: Callable[[int], nn.Module]
    activation: str
    windows: Sequence[int | None]
    scales: Sequence[float]
    rotaries: Mapping[str, Rotary] = field(default_factory=dict)
    kinds: Sequence[str] = ()
    is_causal: bool = True
    soft_cap: float | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    ffn_bias: bool = False
    is_gated: bool = True
    has_head_norms: bool = False
    has_post_norms: bool = False
    is_parallel: bool = False
    stored: Literal["apart", "together", "alternating"] = "apart"
    num_positions: int = 0


class DecoderLayer(nn.Module):
    """x + f(norm(x)) twice: attention, then feed-forward."""

    def __init__(self, shape: DecoderShape, index: int) -> None:
        super().__init__()
        heads, kv_heads, size = shape.num_heads, shape.num_kv_heads, shape.head_dim
        self.kind = shape.kinds[index] if shape.kinds else ""
        self.is_parallel = shape.is_parallel
        self.spec = AttentionSpec(
            index,
            heads,
            kv_heads,
            size,
            shape.scales[index],
            shape.is_causal,
            shape.windows[index],
            shape.soft_cap,
            is_alternating=shape.stored == "alternating",
        )
        parts = [heads * size, kv_heads * size, kv_heads * size]
        parts = parts if shape.stored == "apart" else [sum(parts)]
        self.qkv = Linear(shape.hidden, *parts, bias=shape.qkv_bias)
        self.attention_out = Linear(heads * size, shape.hidden, bias=shape.out_bias)
        activation, inner = find_activation(shape.activation), [shape.intermediate]
        self.gate_activation = activation if shape.is_gated else None
        if shape.is_gated:
            activation, inner = IDENTITY, inner * 2
        self.ffn_in = Linear(shape.hidden, *inner, bias=shape.ffn_bias, activation=activation)
        self.ffn_out = Linear(shape.intermediate, shape.hidden, bias=shape.ffn_bias)
        self.attention_norm, self.ffn_norm = shape.norm(shape.hidden), shape.norm(shape.hidden)
        self.query_norm, self.key_norm = (_head_norm(shape) if shape.has_head_norms else None for _ in range(2))
        self.attention_post_norm, self.ffn_post_norm = (
            shape.norm(shape.hidden) if shape.has_post_norms else None for _ in range(2)
        )

    def forward(self, x: State, batch: FlatBatch, turns: Turns | None) -> State:
        """[T, H] → [T, H]."""
        norms = None
        if self.query_norm is not None and self.key_norm is not None:
            norms = self.query_norm, self.key_norm
        mixed = head_attention(self.qkv(self.attention_norm(x)), batch, self.spec, turns, norms)
        between = _add(x, self.attention_out, mixed, self.attention_post_norm)
        inner = self.ffn_in(self.ffn_norm(x if self.is_parallel else between))
        if self.gate_activation is not None:
            inner = gate(inner, self.gate_activation)
        return _add(between, self.ffn_out, inner, self.ffn_post_norm)


def _head_norm(shape: DecoderShape) -> RMSNorm:
    norm = shape.norm(shape.head_dim)
    assert isinstance(norm, RMSNorm), "heads have no other norms"
    return norm


def _add(x: State, linear: Linear, rows: State, norm: nn.Module | None) -> State:
    """x + norm(linear(rows))."""
    y: State = linear(rows, residual=x) if norm is None else norm(linear(rows), residual=x)
    return y


class Decoder(Encoder):
    """A stack of decoder layers and a last norm; tokens see what is before them, or everything.

    ``reads_length``: a token's state depends on how long its whole text is, so that a text can't be read in parts.
    """

    heads = HEADS
    is_causal: bool
    num_kv_heads: int
    head_dim: int
    reads_length: bool

    def __init__(self, config: Mapping[str, Any], shape: DecoderShape) -> None:
        super().__init__()
        if shape.num_heads % shape.num_kv_heads:
            raise UnsupportedCheckpoint(
                f"config.json: the {shape.num_heads} heads are no multiple of the {shape.num_kv_heads} of keys"
            )
        self.hidden_size, self.num_layers = shape.hidden, len(shape.windows)
        self.vocab_size = read(config, "vocab_size")
        self.max_len = shape.max_len
        self.is_causal, self.num_kv_heads, self.head_dim = shape.is_causal, shape.num_kv_heads, shape.head_dim
        self.rotaries = shape.rotaries
        self.reads_length = any(rotary.reads_length for rotary in shape.rotaries.values())
        self.words = Table(self.vocab_size, shape.hidden)
        self.positions = Table(shape.num_positions, shape.hidden) if shape.num_positions else None
        self.layers = nn.ModuleList(DecoderLayer(shape, index) for index in range(self.num_layers))
        self.norm = shape.norm(shape.hidden)

    @property
    def word_table(self) -> Tensor:
        """The word embeddings [V, H]."""
        return self.words.weight

    @property
    def dtype(self) -> torch.dtype:
        """What states, keys and values are in."""
        return next(self.norm.parameters()).dtype

    @property
    def word_factor(self) -> float:
        """What the embeddings are multiplied by."""
        return 1.0

    def compute(self, inputs: Inputs | Recorder, on_layer: LayerHook | None) -> State:
        """Embeddings, layers, norm; the last states that ``on_layer`` sees are normalised, as the result is."""
        x = embed(inputs, self.words, self.positions, self.word_factor)
        dtype = x.dtype if isinstance(x, Tensor) else torch.float32
        turns = {kind: rotary.turns(inputs, dtype) for kind, rotary in self.rotaries.items()}
        for index, layer in enumerate(self.layers):
            if on_layer is not None:
                on_layer(index, x)
            assert isinstance(layer, DecoderLayer)
            x = layer(x, inputs.batch, turns.get(layer.kind))
        last: State = self.norm(x)
        if on_layer is not None:
            on_layer(self.num_layers, last)
        return last


def llama_shape(config: Mapping[str, Any], **more: Any) -> DecoderShape:
    """The shape that a config in Llama's terms describes; ``more`` are the fields in which an architecture differs."""
    hidden, num_heads = read(config, "hidden_size"), read(config, "num_attention_heads")
    num_layers, eps = read(config, "num_hidden_layers"), read(config, "rms_norm_eps", float, 1e-6)
    head_dim = read(config, "head_dim", int, more.pop("head_dim", hidden // num_heads))
    if "rotaries" not in more:
        more["rotaries"] = {"": read_rotary(config, read_parameters(config), head_dim)}
    read_as_llama: dict[str, Any] = {
        "hidden": hidden,
        "intermediate": read(config, "intermediate_size"),
        "num_heads": num_heads,
        "num_kv_heads": read(config, "num_key_value_heads", int, num_heads),
        "head_dim": head_dim,
        "max_len": int(read(config, "max_position_embeddings") * max(r.stretch for r in more["rotaries"].values())),
        "norm": lambda width: RMSNorm(width, eps),
        "activation": "" if "activation" in more else read(config, "hidden_act", str, "silu"),
        "windows": [None] * num_layers,
        "scales": [head_dim**-0.5] * num_layers,
        "is_causal": is_causal(config),
    }
    return DecoderShape(**(read_as_llama | more))


def is_causal(config: Mapping[str, Any]) -> bool:
    """Tell whether a checkpoint's tokens see only what is before them, by all the ways in which it may say so."""
    names = config.get("architectures") or ()
    is_bidirectional = any("Bidirectional" in str(name) for name in names) or config.get("use_bidirectional_attention")
    return config.get("is_causal") is not False and not is_bidirectional


def layer_windows(kinds: Sequence[str], window: int | None, *, is_causal: bool) -> list[int | None]:
    """Each layer's window. A config's number counts the token itself where attention is causal; else it is the
    largest distance to either side."""
    if SLIDING in kinds and window is None:
        raise UnsupportedCheckpoint(f"config.json: 'layer_types' has '{SLIDING}', but 'sliding_window' is not set")
    width = window if window is None or is_causal else window + 1
    return [width if kind == SLIDING else None for kind in kinds]


def read_kinds(config: Mapping[str, Any], default: Callable[[int], bool]) -> list[str]:
    """Each layer's kind of attention, from ``layer_types`` or from a rule that tells sliding layers by their index."""
    num_layers = read(config, "num_hidden_layers")
    kinds = config.get("layer_types")
    if kinds is None:
        kinds = [SLIDING if default(index) else "full_attention" for index in range(num_layers)]
    if len(kinds) != num_layers or not set(kinds) <= {SLIDING, "full_attention"}:
        raise UnsupportedCheckpoint(
            f"config.json: 'layer_types' must name '{SLIDING}' or 'full_attention' for each of {num_layers} layers"
        )
    return list(kinds)
