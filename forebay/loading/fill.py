"""Fills an empty model from a stream of tensors: renamed, merged, cast, packed at once, and every name accounted for.

Tensors are copied one by one and a linear layer is packed as soon as it is whole, by other threads while the next are
read, so that at no time much more than the weights themselves stands in memory.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from forebay.core.errors import WeightsMismatch
from forebay.layers.linear import Linear
from forebay.models.base import Encoder, Naming, Target

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
) -> int:
    """Load all weights of a model built on the meta device; return how many parameters it has.

    ``naming`` is the model's, with its head's names where it has one; heads are kept in float32. Raises
    WeightsMismatch that names tensors left over, missing or of a wrong shape.
    """
    wanted = _wanted(model)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    with _packing() as pack:
        left_over = _fill(_Filling(model, wanted, pack), naming, tensors, dtype, device)
    _complain(left_over, "the weight files hold tensors that this architecture does not know, or has already")
    _complain([target.parameter for target in sorted(wanted)], "the weight files lack tensors of this architecture")
    return num_parameters


@dataclass(frozen=True, slots=True)
class _Filling:
    """A model on its way: what it still wants, and who packs its layers."""

    model: Encoder
    wanted: set[Target]
    pack: Callable[[Linear], None]


def _fill(
    filling: _Filling,
    naming: Naming,
    tensors: Iterable[tuple[str, Tensor]],
    dtype: torch.dtype,
    device: torch.device,
) -> list[str]:
    """Put all tensors in their places; return the names of those that have none."""
    wanted, known = filling.wanted, frozenset(filling.wanted)
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
        _check(name, tensor)
        own_dtype = torch.float32 if target.parameter.startswith(_HEAD) else dtype
        if naming.is_spare(name):
            spares[target] = tensor.to(device=device, dtype=own_dtype, copy=True)
        else:
            _put(filling, target, name, naming.turn(target, tensor).to(device=device, dtype=own_dtype))
    for target in spares.keys() & wanted:
        _put(filling, target, target.parameter, spares[target])
    if _TIED in wanted:
        _put(filling, _TIED, "the tied word table", filling.model.word_table.float())
    return left_over


@contextmanager
def _packing() -> Iterator[Callable[[Linear], None]]:
    """Packs layers on other threads, so many at a time: of each, both forms stand in memory until it is done."""
    num_threads = torch.get_num_threads()
    under_way: deque[Future[None]] = deque()
    with ThreadPoolExecutor(num_threads, thread_name_prefix="forebay-pack") as pool:

        def pack(layer: Linear) -> None:
            if len(under_way) >= num_threads:
                under_way.popleft().result()
            under_way.append(pool.submit(layer.pack))

        yield pack
        for future in under_way:
            future.result()


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
    # NaN and infinity survive in a sum, which is a quarter of the work of looking at each number.
    if not bool(tensor.sum(dtype=torch.float32).isfinite()) and not bool(torch.isfinite(tensor).all()):
        raise WeightsMismatch(f"the tensor '{name}' holds NaN or infinite numbers; the checkpoint is damaged")


def _put(filling: _Filling, target: Target, name: str, tensor: Tensor) -> None:
    filling.wanted.discard(target)
    _place(filling.model, target, name, tensor)
    _pack_if_whole(filling, target)


def _wanted(model: Encoder) -> set[Target]:
    """All (parameter, part) that the files must fill."""
    wanted: set[Target] = set()
    for prefix, module in model.named_modules():
        parts = len(module.part_sizes) if isinstance(module, Linear) else 1
        for name, _ in module.named_parameters(prefix, recurse=False):
            wanted.update(Target(name, part) for part in range(parts))
    return wanted


def _place(model: Encoder, target: Target, name: str, tensor: Tensor) -> None:
    owner_name, _, leaf = target.parameter.rpartition(".")
    owner = model.get_submodule(owner_name)
    parameter = getattr(owner, leaf)
    sizes = owner.part_sizes if isinstance(owner, Linear) else (parameter.shape[0],)
    expected = (sizes[target.part], *parameter.shape[1:])
    if tuple(tensor.shape) != expected:
        raise WeightsMismatch(
            f"the tensor '{name}' has shape {list(tensor.shape)}, but config.json asks for {list(expected)}"
        )
    if parameter.is_meta:
        parameter = nn.Parameter(torch.empty(parameter.shape, dtype=tensor.dtype, device=tensor.device), False)
        setattr(owner, leaf, parameter)
    start = sum(sizes[: target.part])
    parameter.data[start : start + len(tensor)].copy_(tensor)


def _pack_if_whole(filling: _Filling, target: Target) -> None:
    owner_name = target.parameter.rpartition(".")[0]
    owner = filling.model.get_submodule(owner_name)
    if isinstance(owner, Linear):
        parts = range(len(owner.part_sizes))
        own = {Target(f"{owner_name}.{leaf}", part) for leaf in ("weight", "bias") for part in parts}
        if not own & filling.wanted:
            filling.pack(owner)


def _complain(names: list[str], what: str) -> None:
    if names:
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        raise WeightsMismatch(f"{what}: {shown}")
