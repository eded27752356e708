"""ModernBERT (Warner et al. 2024, arXiv:2412.13663): pre-norm layers, rotary positions, gated feed-forward halves.

Layers with a sliding window alternate with ones that see everything, and both kinds have a rotation of their own.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from forebay.core.errors import UnsupportedCheckpoint
from forebay.layers.activation import find_activation, gate
from forebay.layers.batch import FlatBatch
from forebay.layers.decoder_attention import AttentionSpec, head_attention
from forebay.layers.embedding import Table, embed
from forebay.layers.linear import Linear
from forebay.layers.norm import LayerNorm
from forebay.layers.program import Inputs, Recorder, State
from forebay.layers.rotary import Rotary, Turns, make_rotary
from forebay.models.base import Encoder, HeadKind, HeadNames, LayerHook, Naming, read
from forebay.models.decoder import SLIDING, read_kinds
from forebay.models.heads import Head, MaskedLMHead

_THETAS = {SLIDING: ("local_rope_theta", 10_000.0), "full_attention": ("global_rope_theta", 160_000.0)}
"""Each kind of layer's base of positions: its name in the older schema, and the class's own."""

_METHODS = {"cls": "CLS", "mean": "MEAN"}
_HEAD = {"head.dense": "dense", "head.norm": "norm"}


class ModernBertEmbeddings(nn.Module):
    """LayerNorm(words[id])."""

    def __init__(self, vocab_size: int, norm: LayerNorm) -> None:
        super().__init__()
        self.words = Table(vocab_size, norm.normalized_shape[0])
        self.norm = norm

    def forward(self, inputs: Inputs | Recorder) -> State:
        """Return the states [T, H] that enter the first layer."""
        x: State = self.norm(embed(inputs, self.words))
        return x


class ModernBertLayer(nn.Module):
    """x + f(norm(x)) twice; the first layer's input is normalised already."""

    def __init__(self, config: Mapping[str, Any], spec: AttentionSpec, first_norm: nn.Module) -> None:
        super().__init__()
        hidden, inner = read(config, "hidden_size"), read(config, "intermediate_size")
        bias, ffn_bias = (read(config, name, bool, False) for name in ("attention_bias", "mlp_bias"))
        self.spec = spec
        self.attention_norm, self.ffn_norm = first_norm, make_norm(config)
        self.qkv = Linear(hidden, 3 * hidden, bias=bias)
        self.attention_out = Linear(hidden, hidden, bias=bias)
        self.activation = find_activation(read(config, "hidden_activation", str, "gelu"))
        self.ffn_in = Linear(hidden, 2 * inner, bias=ffn_bias)
        self.ffn_out = Linear(inner, hidden, bias=ffn_bias)

    def forward(self, x: State, batch: FlatBatch, turns: Turns) -> State:
        """[T, H] → [T, H]."""
        mixed = head_attention(self.qkv(self.attention_norm(x)), batch, self.spec, turns)
        x = self.attention_out(mixed, residual=x)
        y: State = self.ffn_out(gate(self.ffn_in(self.ffn_norm(x)), self.activation), residual=x)
        return y


class PredictionHead(Head):
    """out(norm(activation(dense(x)))): logits [n, labels] of pooled rows, or of every token's."""

    def __init__(self, dense: Linear, norm: LayerNorm, num_labels: int) -> None:
        super().__init__()
        self.dense, self.norm = dense, norm
        self.out = Linear(norm.normalized_shape[0], num_labels)

    def compute(self, rows: Tensor) -> Tensor:
        """[n, H] → [n, labels]."""
        logits: Tensor = self.out(self.norm(self.dense(rows)))
        return logits


class ModernBert(Encoder):
    """Bidirectional, without token types."""

    naming = Naming(
        ("model.",),
        "layers.",
        {
            "attn_norm": "attention_norm",
            "attn.Wqkv": "qkv",
            "attn.Wo": "attention_out",
            "mlp_norm": "ffn_norm",
            "mlp.Wi": "ffn_in",
            "mlp.Wo": "ffn_out",
        },
        {"embeddings.tok_embeddings": "embeddings.words", "embeddings.norm": "embeddings.norm", "final_norm": "norm"},
        (r"(head|classifier|decoder)\..*", r".*rotary_emb\..*inv_freq"),
    )
    heads: ClassVar[Mapping[HeadKind, HeadNames]] = {
        "sequence": HeadNames({**_HEAD, "classifier": "out"}),
        "token": HeadNames({**_HEAD, "classifier": "out"}),
        "masked_lm": HeadNames({**_HEAD, "decoder": "decoder"}),
    }

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = config
        self.hidden_size, self.num_layers = read(config, "hidden_size"), read(config, "num_hidden_layers")
        self.vocab_size = read(config, "vocab_size")
        self.max_len: int = read(config, "max_position_embeddings")
        self.head_method = self._read_method()
        num_heads = read(config, "num_attention_heads")
        if self.hidden_size % num_heads:
            raise UnsupportedCheckpoint(
                f"config.json: the hidden size {self.hidden_size} is not a multiple of the {num_heads} heads"
            )
        size, every = self.hidden_size // num_heads, read(config, "global_attn_every_n_layers", default=3)
        kinds = read_kinds(config, lambda index: index % every != 0)
        window = read(config, "local_attention", default=128) // 2 + 1
        self.kinds = tuple(kinds)
        self.rotaries = {kind: _read_rotary(config, kind, size, self.max_len) for kind in set(kinds)}
        self.embeddings = ModernBertEmbeddings(self.vocab_size, make_norm(config))
        self.layers = nn.ModuleList(
            ModernBertLayer(
                config,
                AttentionSpec(
                    index,
                    num_heads,
                    num_heads,
                    size,
                    size**-0.5,
                    is_causal=False,
                    window=window if kind == SLIDING else None,
                ),
                make_norm(config) if index else nn.Identity(),
            )
            for index, kind in enumerate(kinds)
        )
        self.norm = make_norm(config)

    def _read_method(self) -> str:
        name = read(self.config, "classifier_pooling", str, "cls")
        if name not in _METHODS:
            raise UnsupportedCheckpoint(f"config.json: classifier_pooling is '{name}'; expected 'cls' or 'mean'")
        return _METHODS[name]

    def make_head(self, kind: HeadKind, num_labels: int) -> nn.Module:
        """A dense layer and a norm before the last layer, for all kinds; both may have no bias."""
        name, bias = (
            read(self.config, f"classifier_{what}", *default)
            for what, default in (("activation", (str, "gelu")), ("bias", (bool, False)))
        )
        dense = Linear(self.hidden_size, self.hidden_size, bias=bias, activation=find_activation(name))
        norm = make_norm(self.config)
        if kind != "masked_lm":
            return PredictionHead(dense, norm, num_labels)
        head = MaskedLMHead(self, name, norm.eps)
        head.dense, head.norm = dense, norm
        if not read(self.config, "decoder_bias", bool, True):
            head.decoder = Linear(self.hidden_size, self.vocab_size, bias=False)
        return head

    def compute(self, inputs: Inputs | Recorder, on_layer: LayerHook | None) -> State:
        """Embeddings, layers, norm; the last states that ``on_layer`` sees are normalised, as the result is."""
        x = self.embeddings(inputs)
        dtype = x.dtype if isinstance(x, Tensor) else torch.float32
        turns = {kind: rotary.turns(inputs, dtype) for kind, rotary in self.rotaries.items()}
        for index, (layer, kind) in enumerate(zip(self.layers, self.kinds, strict=True)):
            if on_layer is not None:
                on_layer(index, x)
            x = layer(x, inputs.batch, turns[kind])
        x = self.norm(x)
        if on_layer is not None:
            on_layer(self.num_layers, x)
        out: State = x
        return out


def make_norm(config: Mapping[str, Any]) -> LayerNorm:
    """A norm of whole states, by default without a bias."""
    eps, bias = read(config, "norm_eps", float, 1e-5), read(config, "norm_bias", bool, False)
    return LayerNorm(read(config, "hidden_size"), eps=eps, bias=bias)


def _read_rotary(config: Mapping[str, Any], kind: str, size: int, max_len: int) -> Rotary:
    """The rotation of one kind of layer, in either schema."""
    older_name, default = _THETAS[kind]
    by_kind = config.get("rope_parameters") or {}
    if not isinstance(by_kind, dict) or not isinstance(by_kind.get(kind) or {}, dict):
        raise UnsupportedCheckpoint("config.json: 'rope_parameters' must be an object with one for each kind of layer")
    parameters = {**(config.get("rope_scaling") or {}), **(by_kind.get(kind) or {})}
    theta = parameters.get("rope_theta") or config.get(older_name) or default
    if isinstance(theta, bool) or not isinstance(theta, int | float) or theta <= 1 or size % 2:
        raise UnsupportedCheckpoint(
            f"config.json: the base of positions ({theta!r}) must be above 1, and a head's size ({size}) even"
        )
    return make_rotary(parameters, float(theta), size, max_len)
