"""Programs: a network recorded from its own forward pass, to be run by the native kernels.

A model's ``compute`` is called once with a Recorder for its inputs. Each block that is called with a Value, which
stands for hidden states [T, width], notes its operation and returns the Value of its result: so an architecture is
written once and runs in both ways. What has no native form raises NoNativeForm.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from forebay.layers.batch import FlatBatch
from forebay.layers.kv import BatchKV
from forebay.layers.native import extension

if TYPE_CHECKING:
    from forebay._native import Pages, Precision
    from forebay._native import Program as NativeProgram
    from forebay.layers.activation import Activation
    from forebay.layers.decoder_attention import AttentionSpec
    from forebay.layers.linear import Linear
    from forebay.layers.norm import RMSNorm
    from forebay.layers.rotary import Rotary

IDS, POSITIONS, TYPES = range(3)
"""What a table's rows are chosen by: the numbers that the native core gives the sources."""


class NoNativeForm(Exception):
    """A block that only torch can run; the message names it."""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """Hidden states [T, width] that a program will compute."""

    recorder: "Recorder"
    width: int


State = Tensor | Value


class Inputs(NamedTuple):
    """What a network reads: the batch, the rows of its position table [T] and the attention's bias [heads, L, L]."""

    batch: FlatBatch
    positions: Tensor
    bias: Tensor | None


Emit = Callable[["NativeProgram", Callable[[Value], int]], None]
"""Appends one operation to a native program, given the slot of each Value."""


@dataclass(frozen=True, slots=True, eq=False)
class _Op:
    reads: tuple[Value, ...]
    writes: Value | None
    emit: Emit
    is_attention: bool = False


class Recorder:
    """Stands for a network's inputs while it is recorded, and keeps its operations in order.

    ``batch`` and ``bias`` are what the network hands on to its attention, which takes the step's own instead.
    """

    batch: Any = None
    bias: Any = None

    def __init__(self, kernels: str, precision: "Precision") -> None:
        self.kernels = kernels
        self.precision = precision
        self.ops: list[_Op] = []
        self.linears: list[Linear] = []
        self.states: list[Value] = []
        self.rotaries: list[Rotary] = []

    def embed(self, tables: list[tuple[nn.Embedding, int]], factor: float = 1.0) -> Value:
        """The sum of one row of each table, times ``factor``."""
        value = Value(self, tables[0][0].embedding_dim)

        def emit(program: "NativeProgram", slot: Callable[[Value], int]) -> None:
            program.embed(slot(value), [(_table(table.weight), source) for table, source in tables], factor)

        return self._note(_Op((), value, emit))

    def linear(self, layer: "Linear", x: Value, residual: Value | None) -> Value:
        """A linear layer with its activation."""
        name = layer.activation.native
        if name is None:
            raise NoNativeForm("an activation function without a native form")
        self.linears.append(layer)
        value = Value(self, sum(layer.part_sizes))

        def emit(program: "NativeProgram", slot: Callable[[Value], int]) -> None:
            assert layer.native is not None, "the weights are packed before the program is built"
            rest = -1 if residual is None else slot(residual)
            program.linear(slot(x), slot(value), layer.native, name, rest)

        return self._note(_Op((x,) if residual is None else (x, residual), value, emit))

    def layer_norm(self, layer: nn.LayerNorm, x: Value) -> Value:
        """A layer norm over whole rows."""
        value = Value(self, x.width)

        def emit(program: "NativeProgram", slot: Callable[[Value], int]) -> None:
            bias = None if layer.bias is None else _array(layer.bias)
            program.layer_norm(slot(x), slot(value), _array(layer.weight), bias, layer.eps)

        return self._note(_Op((x,), value, emit))

    def rms_norm(self, layer: "RMSNorm", x: Value, residual: Value | None) -> Value:
        """An RMS norm over whole rows, and what is added to it."""
        value = Value(self, x.width)

        def emit(program: "NativeProgram", slot: Callable[[Value], int]) -> None:
            rest = -1 if residual is None else slot(residual)
            program.rms_norm(slot(x), slot(value), _array(layer.factors), layer.eps, rest)

        return self._note(_Op((x,) if residual is None else (x, residual), value, emit))

    def gate(self, x: Value, activation: "Activation") -> Value:
        """The first half of each row, activated, times the second."""
        name = activation.native
        if name is None:
            raise NoNativeForm("an activation function without a native form")
        value = Value(self, x.width // 2)
        return self._note(_Op((x,), value, lambda program, slot: program.gate(slot(x), slot(value), name)))

    def rotate_by(self, rotary: "Rotary") -> int:
        """Let the step bring this rotation's angles; returns what ``turn`` is to call them."""
        self.rotaries.append(rotary)
        return len(self.rotaries) - 1

    def turn(self, qkv: Value, spec: "AttentionSpec", norms: "tuple[RMSNorm, RMSNorm] | None", angles: int) -> None:
        """Normalise queries and keys head by head, and rotate them, in their rows; ``angles`` -1: no rotation."""
        heads = (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.is_alternating)

        def emit(program: "NativeProgram", slot: Callable[[Value], int]) -> None:
            weights = None if norms is None else torch.stack([norm.factors for norm in norms]).numpy()
            program.turn(slot(qkv), heads, weights, norms[0].eps if norms else 0.0, angles)

        self.ops.append(_Op((qkv,), None, emit))

    def attention(self, qkv: Value, spec: "AttentionSpec") -> Value:
        """Attention of every sequence with itself and what is kept of it, with the step's bias if it has one."""
        value = Value(self, spec.num_heads * spec.head_dim)
        heads = (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.is_alternating)
        if spec.is_causal:
            self.ops.append(_Op((qkv,), None, lambda program, slot: program.keep(slot(qkv), heads, spec.layer)))

        def emit(program: "NativeProgram", slot: Callable[[Value], int]) -> None:
            program.attention(
                slot(qkv),
                slot(value),
                heads,
                spec.scale,
                spec.is_causal,
                spec.window or 0,
                spec.soft_cap or 0.0,
                spec.layer,
                self.precision,
            )

        return self._note(_Op((qkv,), value, emit, is_attention=True))

    def show(self, index: int, x: Value) -> None:
        """The states of one layer, which a caller may ask to see; those of the last are the result."""
        assert index == len(self.states), "layers are shown in order"
        self.states.append(x)
        self.ops.append(_Op((x,), None, lambda program, slot: program.show(slot(x), index)))

    def _note(self, op: _Op) -> Value:
        assert op.writes is not None
        self.ops.append(op)
        return op.writes


def _array(tensor: Tensor) -> Any:
    return tensor.detach().contiguous().numpy()


def _table(tensor: Tensor) -> Any:
    """A table as it stands; NumPy has no bfloat16, so that such a one goes as its bits."""
    return _array(tensor.detach().view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor)


class Slots(NamedTuple):
    """Where values stand: ``of`` each value its slot; (width, is global) of every slot."""

    of: dict[Value, int]
    kinds: list[tuple[int, bool]]


def assign_slots(ops: list[_Op]) -> Slots:
    """Give each value a slot that no other living value has; slots are used again for values of the same width.

    A value that is made and last read between two attentions is local: it needs room for a block of rows only.
    """
    stretch, stretches = 0, []
    for op in ops:
        stretch += op.is_attention
        stretches.append(stretch)
        stretch += op.is_attention
    last_read = {value: place for place, op in enumerate(ops) for value in op.reads}
    made = {op.writes: place for place, op in enumerate(ops) if op.writes is not None}
    slots = Slots({}, [])
    free: dict[tuple[int, bool], list[int]] = {}
    for place, op in enumerate(ops):
        if op.writes is not None:
            is_local = stretches[last_read.get(op.writes, place)] == stretches[place] and not op.is_attention
            kind = (op.writes.width, not is_local)
            if free.get(kind):
                slots.of[op.writes] = free[kind].pop()
            else:
                slots.of[op.writes] = len(slots.kinds)
                slots.kinds.append(kind)
        ended = [value for value in {*op.reads, op.writes} if value is not None]
        for value in ended:
            if last_read.get(value, made[value]) == place:
                free.setdefault(slots.kinds[slots.of[value]], []).append(slots.of[value])
    return slots


class Program:
    """A recorded network with its weights, ready to run."""

    def __init__(self, recorder: Recorder) -> None:
        slots = assign_slots(recorder.ops)
        self._native: NativeProgram = extension.Program(recorder.kernels, slots.kinds)
        for op in recorder.ops:
            op.emit(self._native, slots.of.__getitem__)
        self._num_states = len(recorder.states)
        self._width = recorder.states[-1].width
        self._rotaries = recorder.rotaries

    def run(self, inputs: Inputs, on_layer: Callable[[int, Tensor], None] | None = None) -> Tensor:
        """Return the last hidden states [T, H]; ``on_layer`` sees those of every layer."""
        batch = inputs.batch
        out = np.empty((1 if on_layer is None else self._num_states, len(batch.input_ids), self._width), np.float32)
        angles = [rotary.table(batch) for rotary in self._rotaries]
        self._native.run(
            batch.input_ids.numpy(),
            inputs.positions.numpy(),
            None if batch.type_ids is None else batch.type_ids.numpy(),
            batch.cu_seqlens.numpy(),
            None if inputs.bias is None else inputs.bias.numpy(),
            out,
            torch.get_num_threads(),
            seen=batch.key_lens,
            angles=[(table.numpy(), rows.numpy()) for table, rows in angles],
            pages=None if batch.kv is None else _pages(batch.kv),
        )
        if on_layer is not None:
            for index, state in enumerate(out):
                on_layer(index, torch.from_numpy(state))
        return torch.from_numpy(out[-1])


def _pages(kv: BatchKV) -> "Pages":
    """Where a step's keys and values lie, as the native kernels want to know it."""
    segments = [
        (segment.num_seqs, None if segment.slots is None else segment.slots.contiguous().numpy())
        for segment in kv.segments
    ]
    return kv.pool.keys.numpy(), kv.pool.values.numpy(), kv.slots.numpy(), segments
