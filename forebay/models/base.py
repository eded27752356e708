"""The contract of an encoder, how checkpoint names become its parameters, and the block that most encoders share.

Models turn a FlatBatch into hidden states [T, H]. They know neither files nor pooling. An architecture is written
once, from blocks that run on tensors and record themselves for the native kernels.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from forebay.core.errors import UnsupportedCheckpoint
from forebay.layers.activation import find_activation
from forebay.layers.attention import attention
from forebay.layers.batch import FlatBatch
from forebay.layers.linear import Linear
from forebay.layers.norm import LayerNorm
from forebay.layers.program import Inputs, Program, Recorder, State

_LARGEST = 1 << 26
_MOST_LAYERS = 1024

if TYPE_CHECKING:
    from forebay._native import Precision

LayerHook = Callable[[int, Any], None]
"""Called with (layer index, hidden states [T, H]); index 0 is the embedding's output."""


class Target(NamedTuple):
    """Where a checkpoint tensor goes: a parameter's name and the part of a merged layer that it fills."""

    parameter: str
    part: int


@dataclass(frozen=True)
class Naming:
    """How a checkpoint calls what the model holds.

    ``prefixes`` are cut off when present. ``layers`` is the prefix of numbered layers; ``in_layer`` and
    ``outside`` map module names to the model's own, or to (own name, part) where the model merges several.
    ``unused`` are patterns of tensors that this model does not need: heads of other tasks, stored buffers.
    ``spare`` are modules whose tensors count only where those that they stand for are not stored.
    ``is_transposed``: matrices inside layers are stored as [in, out].
    """

    prefixes: tuple[str, ...]
    layers: str
    in_layer: Mapping[str, str | tuple[str, int]]
    outside: Mapping[str, str]
    unused: tuple[str, ...] = field(default=())
    spare: Mapping[str, str] = field(default_factory=dict)
    is_transposed: bool = False

    def resolve(self, name: str) -> Target | None:
        """Return the tensor's target, or None for one that is not needed; KeyError for one that is unknown."""
        short = self._shorten(name)
        module, _, leaf = short.rpartition(".")
        if module.startswith(self.layers):
            index, _, rest = module.removeprefix(self.layers).partition(".")
            found = self.in_layer.get(rest)
            if index.isdigit() and found is not None:
                own, part = found if isinstance(found, tuple) else (found, 0)
                return Target(f"layers.{index}.{own}.{leaf}", part)
        elif module in self.outside:
            return Target(f"{self.outside[module]}.{leaf}", 0)
        elif module in self.spare:
            return Target(f"{self.spare[module]}.{leaf}", 0)
        if any(re.fullmatch(pattern, short) for pattern in self.unused):
            return None
        raise KeyError(name)

    def is_spare(self, name: str) -> bool:
        """Tell a tensor that gives way to another of the same target."""
        return self._shorten(name).rpartition(".")[0] in self.spare

    def turn(self, target: Target, tensor: Tensor) -> Tensor:
        """Return the checkpoint's tensor as its parameter has it."""
        is_turned = self.is_transposed and tensor.ndim == 2 and target.parameter.startswith("layers.")
        return tensor.T if is_turned else tensor

    def _shorten(self, name: str) -> str:
        return next((name.removeprefix(p) for p in self.prefixes if name.startswith(p)), name)


HeadKind = Literal["sequence", "token", "masked_lm", "score", "reward", "ranking", "lm_rows"]


@dataclass(frozen=True)
class HeadNames:
    """The modules of one head in a checkpoint, as own name by checkpoint name, and its activation's name.

    ``activation`` "" means the one that the config calls ``hidden_act``. ``spare`` is as in Naming: a language model's
    bias is stored beside its decoder once more, and the decoder's own counts where they differ.
    """

    modules: Mapping[str, str]
    activation: str = ""
    spare: Mapping[str, str] = field(default_factory=dict)


class Encoder(nn.Module, ABC):
    """Bidirectional encoder: reads whole sequences, gives one state a token.

    ``max_len`` is the number of tokens that the architecture itself can read (its positions), special ones
    included, or None where it has no limit. ``head_method`` is the pooling method whose rows a classifier reads.
    ``left_out`` are the prefixes of tensors that read what is no text, and are not loaded; ``media_ids`` the tokens
    that stand for it, which no text may hold.
    """

    naming: ClassVar[Naming]
    heads: ClassVar[Mapping[HeadKind, HeadNames]] = {}
    head_method: str = "CLS"
    left_out: tuple[str, ...] = ()
    media_ids: frozenset[int] = frozenset()
    hidden_size: int
    num_layers: int
    vocab_size: int
    max_len: int | None
    head: nn.Module | None

    def __init__(self) -> None:
        super().__init__()
        self.register_module("head", None)
        self.program: Program | None = None

    @property
    def embedding_size(self) -> int:
        """Width of the word table, which some architectures keep narrower than their layers."""
        return self.hidden_size

    @property
    def word_table(self) -> Tensor:
        """The word embeddings [V, embedding_size], to which a language model's decoder may be tied."""
        table: Tensor = self.get_submodule("embeddings.words").weight  # type: ignore[assignment]
        return table

    @property
    def num_types(self) -> int:
        """Token types that the model tells apart; 1 where it knows none."""
        table = getattr(getattr(self, "embeddings", None), "types", None)
        return 1 if table is None else int(table.num_embeddings)

    def make_head(self, kind: HeadKind, num_labels: int) -> nn.Module | None:
        """A head of the architecture's own; None where the usual one of that kind serves."""
        return None

    def position_ids(self, batch: FlatBatch) -> Tensor:
        """Rows of the position table [T]."""
        return batch.positions

    def attention_bias(self, batch: FlatBatch) -> Tensor | None:
        """What is added to the attention scores, [heads, L, L] for the longest sequence."""
        return None

    @abstractmethod
    def compute(self, inputs: Inputs | Recorder, on_layer: LayerHook | None) -> State:
        """The network itself, of blocks only: it is run on tensors, or recorded once and left to the native kernels."""

    def forward(self, batch: FlatBatch, on_layer: LayerHook | None = None) -> Tensor:
        """Return the last hidden states [T, H]; ``on_layer`` sees those of every layer."""
        num_tokens = len(batch.input_ids)
        if self.program is None and batch.input_ids.device.type == "cpu":
            batch = batch.filled()
        inputs = Inputs(batch, self.position_ids(batch), self.attention_bias(batch))
        if self.program is not None:
            return self.program.run(inputs, on_layer)

        def show(index: int, state: Tensor) -> None:
            assert on_layer is not None
            on_layer(index, state[:num_tokens])

        with torch.inference_mode():
            state = self.compute(inputs, show if on_layer is not None else None)
        assert isinstance(state, Tensor), "only a recording gives another"
        return state[:num_tokens]

    def record(self, kernels: str, precision: "Precision" = "float32") -> Recorder:
        """Record the network for these native kernels, for which its layers will be packed; raises NoNativeForm."""
        recorder = Recorder(kernels, precision)
        self.compute(recorder, recorder.show)
        for linear in recorder.linears:
            linear.kernels, linear.precision = kernels, precision
        return recorder


class LayerSizes(NamedTuple):
    """The numbers that make one transformer layer."""

    hidden: int
    num_heads: int
    intermediate: int
    norm_eps: float
    activation: str


class PostNormLayer(nn.Module):
    """The original transformer layer: each half is LayerNorm(x + f(x)) (Vaswani et al. 2017; BERT)."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        if sizes.hidden % sizes.num_heads:
            raise UnsupportedCheckpoint(
                f"config.json: the hidden size {sizes.hidden} is not a multiple of the {sizes.num_heads} heads"
            )
        self.num_heads = sizes.num_heads
        self.qkv = Linear(sizes.hidden, sizes.hidden, sizes.hidden, sizes.hidden)
        self.attention_out = Linear(sizes.hidden, sizes.hidden)
        self.attention_norm = LayerNorm(sizes.hidden, eps=sizes.norm_eps)
        self.ffn_in = Linear(sizes.hidden, sizes.intermediate, activation=find_activation(sizes.activation))
        self.ffn_out = Linear(sizes.intermediate, sizes.hidden)
        self.ffn_norm = LayerNorm(sizes.hidden, eps=sizes.norm_eps)

    def forward(self, x: State, inputs: Inputs | Recorder) -> State:
        """[T, H] → [T, H]."""
        mixed = attention(self.qkv(x), self.num_heads, inputs.batch, inputs.bias)
        x = self.attention_norm(self.attention_out(mixed, residual=x))
        out: State = self.ffn_norm(self.ffn_out(self.ffn_in(x), residual=x))
        return out


def run_layers(layers: Iterable[nn.Module], x: State, inputs: Inputs | Recorder, on_layer: LayerHook | None) -> State:
    """Pass x [T, H] through all layers and show each state to ``on_layer``."""
    if on_layer is not None:
        on_layer(0, x)
    for index, layer in enumerate(layers, start=1):
        x = layer(x, inputs)
        if on_layer is not None:
            on_layer(index, x)
    return x


def read(config: Mapping[str, Any], key: str, kind: type = int, default: Any = None, *, at_least: int = 1) -> Any:
    """Return ``config[key]``; an absent key gives ``default``, and without one, or of another type, fails the load.

    Whole numbers must lie between ``at_least`` and _LARGEST, beyond which no size of a network can be meant.
    """
    value = config.get(key)
    value = default if value is None else value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UnsupportedCheckpoint(f"config.json: '{key}' must be of type {kind.__name__}, found {value!r}")
    limit = _MOST_LAYERS if "layers" in key else _LARGEST
    if isinstance(value, int) and kind is int and not at_least <= value <= limit:
        raise UnsupportedCheckpoint(f"config.json: '{key}' is {value}, expected {at_least} to {limit}")
    return value


def refuse(config: Mapping[str, Any], **wanted: Any) -> None:
    """Fail the load where a setting stands at a value that the architecture's code does not compute."""
    for key, value in wanted.items():
        if config.get(key, value) != value:
            raise UnsupportedCheckpoint(
                f"config.json: '{key}' is {config[key]!r}; only {value!r} is supported for this architecture"
            )
