"""Programs: a network recorded from its own forward pass, to be run by the native kernels.

A model's ``compute`` is called once with a Recorder for its inputs. Each block that is called with a Value, which
stands for hidden states [T, width], notes its operation and returns the Value of its result: so an architecture is
written once and runs in both ways. What has no native form raises NoNativeForm.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from forebay.layers.batch import FlatBatch
from forebay.layers.key_lens import cut_by_keys
from forebay.layers.native import extension

if TYPE_CHECKING:
    from forebay._native import Precision
    from forebay._native import Program as NativeProgram
    from forebay.layers.linear import Linear

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
        self.num_heads = 1

    def embed(self, tables: list[tuple[nn.Embedding, int]]) -> Value:
        """The sum of one row of each table."""
        value = Value(self, tables[0][0].embedding_dim)

        def emit(program: "NativeProgram", slot: Callable[[Value], int]) -> None:
            program.embed(slot(value), [(_array(table.weight), source) for table, source in tables])

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
            program.layer_norm(slot(x), slot(value), _array(layer.weight), _array(layer.bias), layer.eps)

        return self._note(_Op((x,), value, emit))

    def attention(self, qkv: Value, num_heads: int) -> Value:
        """Bidirectional attention of every sequence with itself, with the step's bias if it has one."""
        value = Value(self, qkv.width // 3)
        self.num_heads = num_heads  # the same in all layers

        def emit(program: "NativeProgram", slot: Callable[[Value], int]) -> None:
            program.attention(slot(qkv), slot(value), num_heads, self.precision)

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
        self._num_heads = recorder.num_heads

    def run(self, inputs: Inputs, on_layer: Callable[[int, Tensor], None] | None = None) -> Tensor:
        """Return the last hidden states [T, H]; ``on_layer`` sees those of every layer."""
        num_states = 1 if on_layer is None else self._num_states
        out = torch.empty(num_states, len(inputs.batch.input_ids), self._width)
        if inputs.batch.key_lens is None:
            self._run(inputs, out)
        else:
            for rows, batch, bias in cut_by_keys(inputs.batch, inputs.bias, self._num_heads):
                part = torch.empty(num_states, len(batch.input_ids), self._width)
                self._run(Inputs(batch, inputs.positions[rows], bias), part)
                out[:, rows] = part
        if on_layer is not None:
            for index, state in enumerate(out):
                on_layer(index, state)
        return out[-1]

    def _run(self, inputs: Inputs, out: Tensor) -> None:
        """Fill ``out``: the last state, or all."""
        batch = inputs.batch
        self._native.run(
            batch.input_ids.numpy(),
            inputs.positions.numpy(),
            None if batch.type_ids is None else batch.type_ids.numpy(),
            batch.cu_seqlens.numpy(),
            None if inputs.bias is None else inputs.bias.numpy(),
            out.numpy(),
            torch.get_num_threads(),
        )
