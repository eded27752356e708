"""Weights: both formats, whole and sharded, what is damaged or hostile, and how much memory loading takes."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from forebay.checkpoint import weights
from forebay.checkpoint.weights import iter_weights, load_file, load_tensors
from forebay.core.errors import CheckpointNotFound, LoadError, UnsupportedCheckpoint, WeightsMismatch

Tensors = dict[str, torch.Tensor]


def make_tensors() -> Tensors:
    generator = torch.Generator().manual_seed(0)
    return {
        "a.weight": torch.randn(5, 3, generator=generator),
        "b.half": torch.randn(4, generator=generator).to(torch.bfloat16),
        "c.ids": torch.arange(7),
    }


def save(tensors: Tensors, path: Path) -> None:
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)


def save_shards(folder: Path, shards: dict[str, Tensors], index: dict[str, str] | None = None) -> None:
    for name, tensors in shards.items():
        save(tensors, folder / name)
    if index is None:
        index = {name: file for file, tensors in shards.items() for name in tensors}
    stem = "model.safetensors" if next(iter(shards)).endswith(".safetensors") else "pytorch_model.bin"
    (folder / f"{stem}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def assert_same(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_whole_file(tmp_path: Path, name: str) -> None:
    save(make_tensors(), tmp_path / name)
    assert_same(load_tensors(tmp_path), make_tensors())


@pytest.mark.parametrize("name", ["sparse_linear.pt", "head.bin", "head.safetensors"])
def test_single_file(tmp_path: Path, name: str) -> None:
    save(make_tensors(), tmp_path / name)
    found = load_file(tmp_path / name)
    (tmp_path / name).write_bytes(b"")
    assert_same(found, make_tensors())
    with pytest.raises(LoadError, match=f"{name} is damaged or incomplete"):
        load_file(tmp_path / name)


def test_single_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound, match=r"head\.pt is missing in"):
        load_file(tmp_path / "head.pt")


def test_single_file_runs_no_code(tmp_path: Path) -> None:
    torch.save({"weight": Bomb(tmp_path / "crater")}, tmp_path / "head.pt")
    with pytest.raises(LoadError, match=r"refused.*safetensors"):
        load_file(tmp_path / "head.pt")
    assert not (tmp_path / "crater").exists()


@pytest.mark.parametrize("suffix", ["model-0000{}-of-00002.safetensors", "pytorch_model-0000{}-of-00002.bin"])
def test_shards(tmp_path: Path, suffix: str) -> None:
    shards = {suffix.format(1): make_tensors(), suffix.format(2): {"z": torch.ones(2)}}
    save_shards(tmp_path, shards)
    assert_same(load_tensors(tmp_path), {**make_tensors(), "z": torch.ones(2)})


def test_file_order(tmp_path: Path) -> None:
    save(make_tensors(), tmp_path / "model.safetensors")
    header_size = int.from_bytes((tmp_path / "model.safetensors").read_bytes()[:8], "little")
    header = json.loads((tmp_path / "model.safetensors").read_bytes()[8 : 8 + header_size])
    header.pop("__metadata__", None)
    expected = sorted(header, key=lambda name: header[name]["data_offsets"])
    assert [name for name, _ in iter_weights(tmp_path)] == expected


def test_pickle_older_than_zip(tmp_path: Path) -> None:
    torch.save(make_tensors(), tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert_same(load_tensors(tmp_path), make_tensors())


def test_parameters_come_without_gradients(tmp_path: Path) -> None:
    torch.save({"w": torch.nn.Parameter(torch.ones(2))}, tmp_path / "pytorch_model.bin")
    assert not load_tensors(tmp_path)["w"].requires_grad


def test_safetensors_win_over_pickle(tmp_path: Path) -> None:
    save({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    save({"a": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    assert load_tensors(tmp_path)["a"].item() == 0


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("window", [1, 70, 1 << 20])
def test_remapping_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, window: int
) -> None:
    monkeypatch.setattr(weights, "REMAP_BYTES", window)
    save(make_tensors() | {"empty": torch.zeros(0)}, tmp_path / name)
    pairs = [(name, tensor.clone()) for name, tensor in iter_weights(tmp_path)]
    assert len(pairs) == 4
    assert_same(dict(pairs), make_tensors() | {"empty": torch.zeros(0)})


def test_copies_outlive_the_files(tmp_path: Path) -> None:
    save(make_tensors(), tmp_path / "model.safetensors")
    loaded = load_tensors(tmp_path)
    size = (tmp_path / "model.safetensors").stat().st_size
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.write(bytes(size))
    assert_same(loaded, make_tensors())


@pytest.mark.parametrize(
    ("stored", "present"),
    [
        ("bert.embeddings.LayerNorm.gamma", "bert.embeddings.LayerNorm.weight"),
        ("LayerNorm.beta", "LayerNorm.bias"),
        ("encoder.norm1.beta", "encoder.norm1.bias"),
        ("encoder.layer_scale.gamma", "encoder.layer_scale.gamma"),
        ("norm.block.gamma", "norm.block.gamma"),
        ("gamma", "gamma"),
    ],
)
def test_legacy_names(tmp_path: Path, stored: str, present: str) -> None:
    save({stored: torch.ones(2)}, tmp_path / "model.safetensors")
    assert list(load_tensors(tmp_path)) == [present]


def test_legacy_name_beside_its_successor(tmp_path: Path) -> None:
    save({"LayerNorm.gamma": torch.ones(2), "LayerNorm.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsMismatch, match=r"'LayerNorm\.weight' is stored twice"):
        load_tensors(tmp_path)


def test_legacy_names_in_an_index(tmp_path: Path) -> None:
    save_shards(tmp_path, {"model-00001-of-00001.safetensors": {"LayerNorm.gamma": torch.ones(2)}})
    assert list(load_tensors(tmp_path)) == ["LayerNorm.weight"]


def test_no_weights_names_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound, match=r"model\.safetensors, .*pytorch_model\.bin"):
        load_tensors(tmp_path)


def test_missing_shard(tmp_path: Path) -> None:
    save_shards(tmp_path, {f"model-0000{i}-of-00002.safetensors": {f"w{i}": torch.ones(1)} for i in (1, 2)})
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointNotFound, match=r"model-00002-of-00002\.safetensors"):
        next(iter_weights(tmp_path))


def test_indexed_tensor_in_no_file(tmp_path: Path) -> None:
    shard = "model-00001-of-00001.safetensors"
    save_shards(tmp_path, {shard: {"w": torch.ones(1)}}, index={"w": shard, "lost": shard})
    with pytest.raises(WeightsMismatch, match=r"1 tensors of the index .*'lost'"):
        load_tensors(tmp_path)


def test_tensor_in_another_file_than_indexed(tmp_path: Path) -> None:
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    save_shards(tmp_path, {one: {"w": torch.ones(1)}, two: {"v": torch.ones(1)}}, index={"w": two, "v": one})
    with pytest.raises(WeightsMismatch, match=r"'w' is in .*00001.* but the index says .*00002"):
        load_tensors(tmp_path)


def test_name_in_two_shards(tmp_path: Path) -> None:
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    save_shards(
        tmp_path, {one: {"w": torch.ones(1)}, two: {"w": torch.ones(1), "v": torch.ones(1)}}, {"w": one, "v": two}
    )
    with pytest.raises(WeightsMismatch, match=r"'w' is stored twice"):
        load_tensors(tmp_path)


def test_unindexed_tensor_comes_out_too(tmp_path: Path) -> None:
    shard = "model-00001-of-00001.safetensors"
    save_shards(tmp_path, {shard: {"w": torch.ones(1), "extra": torch.ones(1)}}, index={"w": shard})
    assert set(load_tensors(tmp_path)) == {"w", "extra"}


@pytest.mark.parametrize(
    "file", ["../other.safetensors", "/etc/passwd", "sub/model.safetensors", "w.bin", "a\\b.safetensors"]
)
def test_index_may_not_leave_the_folder(tmp_path: Path, file: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": file}}))
    with pytest.raises(UnsupportedCheckpoint, match=r"'w' is .*, expected the name of a \.safetensors file"):
        load_tensors(tmp_path)


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"w": 1}}', '{"weight_map": 3}']
)
def test_malformed_index(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(UnsupportedCheckpoint, match=r"model\.safetensors\.index\.json"):
        load_tensors(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("keep", [0.0, 0.02, 0.5, 0.999])
def test_truncated(tmp_path: Path, name: str, keep: float) -> None:
    save({"w": torch.randn(1000)}, tmp_path / name)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(LoadError, match=re.escape(name)):
        load_tensors(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_git_lfs_pointer(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 90868376\n")
    with pytest.raises(LoadError, match="git lfs pull"):
        load_tensors(tmp_path)


class Bomb:
    """Unpickling it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("in_zip", [True, False], ids=["torch.save", "pickle"])
def test_pickle_runs_no_code(tmp_path: Path, *, in_zip: bool) -> None:
    path, crater = tmp_path / "pytorch_model.bin", tmp_path / "crater"
    if in_zip:
        torch.save({"w": Bomb(crater)}, path)
    else:
        path.write_bytes(pickle.dumps({"w": Bomb(crater)}, protocol=2))
    with pytest.raises(LoadError, match=r"refused.*safetensors"):
        load_tensors(tmp_path)
    assert not crater.exists()


@pytest.mark.parametrize(
    "content", [[torch.ones(1)], {"state_dict": {"w": torch.ones(1)}}, {"step": 3}, {1: torch.ones(1)}]
)
def test_pickle_with_other_things_than_tensors(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(UnsupportedCheckpoint, match=r"pytorch_model\.bin.*tensors by name"):
        load_tensors(tmp_path)


MEASURE = """
import re, sys
from pathlib import Path
import torch
from forebay.checkpoint.weights import iter_weights
kept, total = {}, 0.0
torch.ones(3, 3) @ torch.ones(3, 3)
for name, tensor in iter_weights(Path(sys.argv[1])):
    kept[name] = torch.empty_like(tensor)
    kept[name].copy_(tensor)
    total += float(tensor[0, 0])
# Not ru_maxrss: that counts what the process was forked from, too.
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
print(len(kept), total, peak)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("form", ["safetensors", "shards", "bin"])
def test_memory_stays_near_what_is_kept(tmp_path: Path, form: str) -> None:
    num_tensors, num_bytes = 25, 16 << 20
    tensors = {f"w{i:02}": torch.full((num_bytes // 4096, 1024), float(i)) for i in range(num_tensors)}
    names = list(tensors)
    if form == "shards":
        halves = {"model-00001-of-00002.safetensors": names[:13], "model-00002-of-00002.safetensors": names[13:]}
        save_shards(tmp_path, {file: {name: tensors[name] for name in half} for file, half in halves.items()})
    else:
        save(tensors, tmp_path / ("model.safetensors" if form == "safetensors" else "pytorch_model.bin"))
    del tensors
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert (int(output[0]), float(output[1])) == (num_tensors, sum(range(num_tensors)))
    # The constant covers what importing torch takes.
    assert float(output[2]) < 1.3 * num_tensors * num_bytes + (250 << 20)
