"""Fills an empty model from a stream of tensors: renamed, merged, cast, packed at once, and every name accounted for.

Tensors are copied one by one and a linear layer is packed as soon as it is whole, by other threads while the next are
read, so that at no time much more than the weights themselves stands in memory. Large tables of embeddings are not
copied: they stay in their file.
"""

import ctypes
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from forebay.core.errors import WeightsMismatch
from forebay.layers.embedding import Table
from forebay.layers.linear import Linear
from forebay.models.base import Encoder, Naming, Target

MapAgain = Callable[[str], Tensor | None]
"""Gives a tensor of the files a mapping of its own, by its name; None where that can't be."""

MAPPED_BYTES = 64 << 20
"""Tables of at least this size stay in their file; smaller ones are safe from whoever writes to it."""

PACKING_BYTES = 16 << 20
"""Layers of so much in all are packed at a time by other threads; a larger one alone, by the thread that reads."""

_PART_BYTES = 32 << 20
_FREED_BYTES = 128 << 20
_CHECKED_NUMBERS = 4 << 20  # looked at at a time: a sum in another type copies first

_SHOWN = 5
_HEAD = "head."
# A language model's decoder that is not stored is the word table itself.
_TIED = Target("head.decoder.weight", 0)
_ROWS, _WORDS = Target("head.out.weight", 0), Target("words.weight", 0)


def fill(
    model: Encoder,
    naming: Naming,
    tensors: Iterable[tuple[str, Tensor]],
    dtype: torch.dtype,
    device: torch.device,
    *,
    map_again: MapAgain | None = None,
) -> int:
    """Load all weights of a model built on the meta device; return how many parameters it has.

    ``naming`` is the model's, with its head's names where it has one; heads are kept in float32. ``map_again`` gives
    a large tensor's own mapping, where it has a file that can be mapped. Raises WeightsMismatch that names tensors left
    over, missing or of a wrong shape.
    """
    wanted = _wanted(model)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    with _packing() as pack:
        left_over = _fill(_Filler(model, wanted, dtype, device, map_again, pack), naming, tensors)
    _complain(left_over, "the weight files hold tensors that this architecture does not know, or has already")
    _complain([target.parameter for target in sorted(wanted)], "the weight files lack tensors of this architecture")
    _give_back()
    return num_parameters


def _fill(filler: "_Filler", naming: Naming, tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
    """Put all tensors in their places; return the names of those that have none."""
    wanted, known = filler.wanted, frozenset(filler.wanted)
    left_over: list[str] = []
    spares: dict[Target, Tensor] = {}
    for name, tensor in tensors:
        try:
            target = naming.resolve(name)
        except KeyError:
            left_over.append(name)
            continue
        if target is None:
            continue
        if target not in (known if naming.is_spare(name) else wanted):  # unknown, or there already
            left_over.append(name)
            continue
        for part in filler.cut(name, tensor):
            _check(name, part)
        if naming.is_spare(name):
            spares[target] = tensor.clone()
        else:
            filler.put(target, name, naming.turn(target, tensor))
    for target in spares.keys() & wanted:
        filler.put(target, target.parameter, spares[target])
    if _TIED in wanted:
        filler.put(_TIED, "the tied word table", filler.model.word_table)
    return left_over


@contextmanager
def _packing() -> Iterator[Callable[[Linear], None]]:
    """Packs layers on other threads, so much at a time: of each, both forms stand in memory until it is done."""
    under_way: deque[tuple[int, Future[None]]] = deque()
    with ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="forebay-pack") as pool:

        def finish_to(limit: int) -> None:
            while under_way and sum(size for size, _ in under_way) > limit:
                under_way.popleft()[1].result()

        def pack(layer: Linear) -> None:
            size = 0 if layer.weight is None else layer.weight.nbytes
            finish_to(PACKING_BYTES - size)
            if size > PACKING_BYTES:
                layer.pack()
            else:
                under_way.append((size, pool.submit(layer.pack)))

        yield pack
        finish_to(-1)


def pick_rows(
    tensors: Iterable[tuple[str, Tensor]], naming: Naming, ids: Sequence[int], *, is_tied: bool
) -> Iterator[tuple[str, Tensor]]:
    """Pass a decoder's tensors on, of its language model's head only the rows of these tokens.

    A tied head is the word table, whatever is stored beside it.
    """
    rows = None
    for name, tensor in tensors:
        try:
            target = naming.resolve(name)
        except KeyError:
            target = None
        if target == _ROWS:
            if not is_tied:
                yield name, tensor[list(ids)]
            continue
        if is_tied and target == _WORDS:
            rows = tensor[list(ids)]
        yield name, tensor
    if rows is not None:
        yield "lm_head.weight", rows


def _check(name: str, tensor: Tensor) -> None:
    """Refuse what no trained weight is: whole numbers (packed by a quantizer), NaN, infinity."""
    if not tensor.is_floating_point():
        raise WeightsMismatch(
            f"the tensor '{name}' is stored as {str(tensor.dtype).removeprefix('torch.')}; expected floating point "
            "(quantized checkpoints are not supported: use the original one)"
        )
    rows = tensor if tensor.ndim else tensor[None]
    for part in torch.split(rows, max(1, _CHECKED_NUMBERS * len(rows) // max(1, rows.numel()))):
        # NaN and infinity survive in a sum, which is a quarter of the work of looking at each number.
        if not bool(part.sum(dtype=torch.float32).isfinite()) and not bool(torch.isfinite(part).all()):
            raise WeightsMismatch(f"the tensor '{name}' holds NaN or infinite numbers; the checkpoint is damaged")


def _wanted(model: Encoder) -> set[Target]:
    """All (parameter, part) that the files must fill."""
    wanted: set[Target] = set()
    for prefix, module in model.named_modules():
        parts = len(module.part_sizes) if isinstance(module, Linear) else 1
        for name, _ in module.named_parameters(prefix, recurse=False):
            wanted.update(Target(name, part) for part in range(parts))
    return wanted


@dataclass(slots=True)
class _Filler:
    """Puts tensors where they belong. ``wanted`` is what is still missing; packing has freed ``num_freed`` bytes."""

    model: Encoder
    wanted: set[Target]
    dtype: torch.dtype
    device: torch.device
    map_again: MapAgain | None
    pack: Callable[[Linear], None]
    num_freed: int = 0

    def cut(self, name: str, tensor: Tensor) -> Iterator[Tensor]:
        """A large tensor in parts, each in a mapping of its own: what is only looked at does not stay in memory."""
        if self.map_again is None or tensor.nbytes < MAPPED_BYTES or not tensor.ndim:
            yield tensor
            return
        size = max(1, _PART_BYTES * len(tensor) // max(1, tensor.nbytes))
        for start in range(0, len(tensor), size):
            mapped = self.map_again(name)
            yield (tensor if mapped is None else mapped)[start : start + size]

    def put(self, target: Target, name: str, tensor: Tensor) -> None:
        """Copy a tensor into its parameter, or map it; a linear layer that is whole then is packed."""
        self.wanted.discard(target)
        owner_name, _, leaf = target.parameter.rpartition(".")
        owner = self.model.get_submodule(owner_name)
        parameter = getattr(owner, leaf)
        sizes = owner.part_sizes if isinstance(owner, Linear) else (parameter.shape[0],)
        expected = (sizes[target.part], *parameter.shape[1:])
        if tuple(tensor.shape) != expected:
            raise WeightsMismatch(
                f"the tensor '{name}' has shape {list(tensor.shape)}, but config.json asks for {list(expected)}"
            )
        if isinstance(owner, Table):
            self._put_table(owner, name, tensor)
            return
        if parameter.is_meta:
            dtype = torch.float32 if target.parameter.startswith(_HEAD) else self.dtype
            parameter = nn.Parameter(torch.empty(parameter.shape, dtype=dtype, device=self.device), False)
            setattr(owner, leaf, parameter)
        start = sum(sizes[: target.part])
        parameter.data[start : start + len(tensor)].copy_(tensor)  # which casts, without a copy between
        if isinstance(owner, Linear):
            self._pack_if_whole(owner, owner_name)

    def _put_table(self, table: Table, name: str, tensor: Tensor) -> None:
        """On the CPU a table stays as it is stored where its rows lose nothing by that, and a large one in its file."""
        is_kept = self.device.type == "cpu" and tensor.dtype in (self.dtype, torch.bfloat16)
        table.dtype = self.dtype if is_kept else None
        mapped = None
        if is_kept and self.map_again is not None and tensor.nbytes >= MAPPED_BYTES:
            mapped = self.map_again(name)
        if mapped is None:
            mapped = tensor.to(self.device, tensor.dtype if is_kept else self.dtype, copy=True)
        table.weight = nn.Parameter(mapped, False)

    def _pack_if_whole(self, owner: Linear, name: str) -> None:
        parts = range(len(owner.part_sizes))
        own = {Target(f"{name}.{leaf}", part) for leaf in ("weight", "bias") for part in parts}
        if own & self.wanted:
            return
        self.num_freed += 0 if owner.weight is None else owner.weight.nbytes
        self.pack(owner)
        if self.num_freed >= _FREED_BYTES:
            self.num_freed = 0
            _give_back()


def _give_back() -> None:
    """Hand the system what was freed between packed layers; glibc keeps it, some layers' worth, unless told."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _complain(names: list[str], what: str) -> None:
    if names:
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        raise WeightsMismatch(f"{what}: {shown}")
