"""Streams the tensors of a folder, from safetensors where there are any, else from PyTorch's own files.

Both are mapped into memory, and mapped anew every few tensors: pages that were read count as resident until their
mapping goes, so one mapping for the whole of a file would double what loading takes. What is to stay in its file gets
a mapping of its own, of which only the pages that are read count. Pickled files are read as
weights only, which runs no code. Knows no model: every tensor in the files comes out, under its present-day name.
"""

import math
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from torch import Tensor

from forebay.checkpoint.documents import describe, path_below, read_document, read_optional_document
from forebay.core.errors import CheckpointNotFound, LoadError, UnsupportedCheckpoint, WeightsMismatch

REMAP_BYTES = 16 << 20

# In order of preference.
FILE_NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)

# The first BERT checkpoints named the two parameters of a layer norm in TensorFlow's way.
LEGACY_NAME = re.compile(r"(?P<norm>(?:.*\.)?[^.]*norm[^.]*)\.(?P<leaf>gamma|beta)", re.IGNORECASE)
LEGACY_LEAVES = {"gamma": "weight", "beta": "bias"}


def iter_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a folder's weights with its name, in the order of the files.

    A tensor may be a view of a mapped file and is valid only until the next one is asked for: copy what is to stay.
    """
    files, index = _find_files(folder)
    seen: dict[str, Path] = {}
    for path in files:
        for stored_name, tensor in _read_file(path):
            name = _present_name(stored_name)
            if name in seen:
                raise WeightsMismatch(
                    f"'{name}' is stored twice in {folder}: in {seen[name].name} and in {path.name}; expected once"
                )
            seen[name] = path
            if index.get(stored_name, path.name) != path.name:
                raise WeightsMismatch(f"'{stored_name}' is in {path.name}, but the index says {index[stored_name]}")
            yield name, tensor
    missing = [name for name in index if _present_name(name) not in seen]
    if missing:
        raise WeightsMismatch(
            f"{len(missing)} tensors of the index are in none of the files in {folder}, the first is '{missing[0]}'; "
            "download the checkpoint again"
        )


def map_tensor(folder: Path, name: str) -> Tensor | None:
    """Map one tensor of a folder's weights by itself, to be kept: only what is read of it comes into memory.

    None where it stands in a file that is no safetensors.
    """
    files, index = _find_files(folder)
    path = folder / index[name] if name in index else files[0]
    if path.suffix != ".safetensors":
        return None
    with _open_safetensors(path) as (names, get):
        return get(name) if name in names else None


def stored_names(folder: Path) -> frozenset[str]:
    """Return the names of all tensors of a folder's weights, reading none."""
    files, index = _find_files(folder)
    names = set(index)
    for path in files if not index else ():
        with (_open_safetensors if path.suffix == ".safetensors" else _open_pickle)(path) as (own, _):
            names.update(own)
    return frozenset(names)


def load_tensors(folder: Path) -> dict[str, Tensor]:
    """Return copies of all tensors of a folder: for the small modules after a backbone."""
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in iter_weights(folder)}


def load_file(path: Path) -> dict[str, Tensor]:
    """Return copies of all tensors of one file, which is safetensors or PyTorch's own format."""
    if not path.exists():
        raise CheckpointNotFound(f"{path.name} is missing in {path.parent}; download the checkpoint completely")
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in _read_file(path)}


def load_sparse_static(folder: Path) -> Tensor:
    """Return the weight of each token [V] of a SparseStaticEmbedding; where it ends early, the rest weighs nothing.

    The weights are a tensor of the folder, or a JSON file of weights by token that its config.json names.
    """
    document = read_optional_document(folder / "config.json", folder.parent)
    path = document.optional("path", str) if document is not None else None
    if document is not None and path is not None and path.endswith(".json"):
        return _load_token_weights(folder, path_below(folder, path, document, "a file"))
    tensors = load_tensors(folder)
    if list(tensors) != ["weight"] or tensors["weight"].ndim != 1:
        found = ", ".join(f"'{name}' {list(tensor.shape)}" for name, tensor in tensors.items()) or "none"
        raise WeightsMismatch(f"{folder.name}: the tensors are {found}; expected one, 'weight' with one dimension")
    return tensors["weight"]


def _load_token_weights(folder: Path, path: Path) -> Tensor:
    """Read weights by token; a token that is not in the vocabulary is an error, since its weight would be lost."""
    vocabulary = _read_vocabulary(folder / "tokenizer.json")
    document = read_document(path, folder.parent)
    weights = torch.zeros(max(vocabulary.values(), default=-1) + 1)
    for token, value in document.values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise document.refuse(token, f"is {describe(value)}, expected a number")
        if token not in vocabulary:
            raise document.refuse(token, "is not in the vocabulary of tokenizer.json beside it")
        weights[vocabulary[token]] = value
    return weights


def _read_vocabulary(path: Path) -> dict[str, int]:
    if not path.exists():
        raise CheckpointNotFound(f"{path.name} is missing in {path.parent}; download the checkpoint completely")
    try:
        return Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=True)
    except Exception as error:  # the library raises plain Exception
        raise UnsupportedCheckpoint(f"{path.name} in {path.parent} can't be read: {error}") from None


def _find_files(folder: Path) -> tuple[list[Path], Mapping[str, str]]:
    """Return the weight files to read, in order, and the index (tensor name to file name), empty for a single file."""
    for name in FILE_NAMES:
        path = folder / name
        if not path.exists():
            continue
        if not name.endswith(".index.json"):
            return [path], {}
        index = _read_index(path)
        files = [folder / file for file in dict.fromkeys(index.values())]
        missing = [file.name for file in files if not file.exists()]
        if missing:
            raise CheckpointNotFound(
                f"{name} names {', '.join(missing)}, which {folder} lacks; download the checkpoint completely"
            )
        return sorted(files), index
    raise CheckpointNotFound(f"no weights in {folder}: looked for {', '.join(FILE_NAMES)}")


def _read_index(path: Path) -> dict[str, str]:
    section = read_document(path, path.parent).section("weight_map")
    index = {name: section.required(name, str) for name in section.values}
    suffix = ".safetensors" if path.name.startswith("model") else ".bin"
    for name, file in index.items():
        if PurePosixPath(file).name != file or "\\" in file or not file.endswith(suffix):
            raise section.refuse(name, f"is '{file}', expected the name of a {suffix} file in the same folder")
    if not index:
        raise UnsupportedCheckpoint(f"{path.name}: 'weight_map' is empty, expected the file of each tensor")
    return index


def _present_name(name: str) -> str:
    match = LEGACY_NAME.fullmatch(name)
    return f"{match['norm']}.{LEGACY_LEAVES[match['leaf'].lower()]}" if match else name


def _read_file(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield one file's tensors, mapping it anew after every REMAP_BYTES."""
    open_file = _open_safetensors if path.suffix == ".safetensors" else _open_pickle
    names: list[str] | None = None
    done = 0
    while names is None or done < len(names):
        with open_file(path) as (all_names, get):
            names = all_names
            num_bytes = 0
            while done < len(names) and num_bytes < REMAP_BYTES:
                tensor = get(names[done])
                num_bytes += tensor.nbytes
                yield names[done], tensor
                del tensor
                done += 1


OpenFile = tuple[list[str], Callable[[str], Tensor]]


@contextmanager
def _open_safetensors(path: Path) -> Iterator[OpenFile]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield list(file.offset_keys()), file.get_tensor
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, f"is damaged or incomplete ({_reason(error)}); download it again") from None


@contextmanager
def _open_pickle(path: Path) -> Iterator[OpenFile]:
    tensors = _load_pickle(path)
    yield list(tensors), lambda name: tensors[name].detach()


def _load_pickle(path: Path) -> dict[str, Tensor]:
    """Map a file that torch.save wrote; files older than its zip format are read instead."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError:
        complaint = "holds more than plain tensors and was refused, since to unpickle it could run code, or is damaged"
        raise _unreadable(path, f"{complaint}; use a checkpoint with safetensors") from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise _unreadable(path, f"is damaged or incomplete ({_reason(error)}); download it again") from None
    if not isinstance(state, dict):
        raise UnsupportedCheckpoint(f"{path.name} holds a {type(state).__name__}, expected tensors by name")
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise UnsupportedCheckpoint(
                f"{path.name}: entry '{name}' is a {type(tensor).__name__}; expected nothing but tensors by name"
            )
    return state


def _unreadable(path: Path, complaint: str) -> LoadError:
    """Make the error for a file that can't be read; the stand-in that git leaves for large files gets its own."""
    with path.open("rb") as file:
        if file.read(24) == b"version https://git-lfs.":
            complaint = "is a Git LFS pointer, not the weights themselves; run 'git lfs pull' in its folder"
    return LoadError(f"{path} {complaint}")


def _reason(error: Exception) -> str:
    """Return the first sentence of a library's message, or the error's kind where it says nothing."""
    return str(error).split(". ")[0] or type(error).__name__
