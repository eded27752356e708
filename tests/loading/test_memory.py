"""How much memory loading takes: what is stored, one layer more, what is packed at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from forebay import PoolingModel
from forebay.checkpoint.weights import map_tensor
from forebay.loading import fill
from tests.support import heads, tiny
from tests.support.language_models import edit, save
from tests.support.texts import sentence

TEXTS = ("a river", sentence(40, 1), "the")
MB = 1 << 20
TABLE, LAYERS = 192 * MB, 96 * MB
"""Bytes in float32 of the large checkpoint's words, and of its layers."""

SLACK = 48 * MB
"""What the product's modules take that are imported only now, and buffers."""

MEASURE = """
import re, sys
from pathlib import Path
from forebay import PoolingModel
def read(name):
    return int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
import torch
torch.ones(3, 3) @ torch.ones(3, 3)
before = read("VmRSS"), read("RssAnon")
model = PoolingModel(sys.argv[1], dtype=sys.argv[2], convert="embed", max_model_len=64)
print(read("VmHWM") - before[0], read("RssAnon") - before[1])
print(model.embed("a river").embeddings.shape)
"""


def large(place: Path, dtype: torch.dtype) -> Path:
    """Few wide layers under many words, written without a library that would need them all in memory twice."""
    folder = save(place, "qwen3", "CausalLM", tie_word_embeddings=True)
    hidden, vocab, inner = 1024, TABLE // 4096, 3072
    config = {"hidden_size": hidden, "vocab_size": vocab, "intermediate_size": inner, "head_dim": 64}
    edit(folder / "config.json", **config, num_attention_heads=16, num_key_value_heads=8, num_hidden_layers=2)
    generator = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> torch.Tensor:
        return (0.02 * torch.randn(*shape, generator=generator)).to(dtype)

    shapes: dict[str, Sequence[int]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for index in range(2):
        prefix = f"model.layers.{index}."
        shapes |= {f"{prefix}{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{prefix}self_attn.{name}.weight": (64,) for name in ("q_norm", "k_norm")}
        shapes |= {f"{prefix}self_attn.{name}_proj.weight": (512, hidden) for name in "kv"}
        shapes |= {f"{prefix}self_attn.{name}_proj.weight": (hidden, hidden) for name in "qo"}
        shapes |= {f"{prefix}mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
        shapes |= {f"{prefix}mlp.down_proj.weight": (hidden, inner)}
    save_file({name: draw(*shape) for name, shape in shapes.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("computed", ["float32", "bfloat16"])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_loading_takes_the_weights_and_one_tensor(tmp_path: Path, stored: torch.dtype, computed: str) -> None:
    folder = large(tmp_path / "model", stored)
    command = [sys.executable, "-c", MEASURE, str(folder), computed]
    peak, kept = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[:2])
    largest = 24 * MB + fill.PACKING_BYTES  # gate and up, as one layer in float32; beside it layers that are packed
    assert kept <= (LAYERS if computed == "float32" else LAYERS // 2) + SLACK, "no copy of the table"
    assert peak <= (LAYERS if computed == "float32" else LAYERS // 2) + largest + 2 * SLACK


@pytest.fixture
def mapping_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill, "MAPPED_BYTES", 0)


def in_bfloat16(folder: Path, place: Path, *, widened: bool = False) -> Path:
    """The checkpoint with rounded weights, stored as such or as the floats that they are."""
    import shutil

    copy = Path(shutil.copytree(folder, place))
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors = {name: tensor.float() if widened else tensor for name, tensor in tensors.items()}
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    return copy


def embed(folder: Path, dtype: str = "float32") -> np.ndarray:
    with PoolingModel(str(folder), convert="embed", dtype=dtype) as model:  # type: ignore[arg-type]
        return model.embed(TEXTS).embeddings


PATHS = [pytest.param("", id="native"), pytest.param("0", id="torch")]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("family", ["qwen3", "gemma", "gpt2"])
def test_a_table_in_bfloat16_gives_the_bits_of_a_widened_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, path: str
) -> None:
    """Also where a second table is added to it, and where its rows are multiplied."""
    monkeypatch.setenv("FOREBAY_NATIVE", path)
    folder = save(tmp_path / "model", family, "CausalLM")
    expected = embed(in_bfloat16(folder, tmp_path / "wide", widened=True))
    assert np.array_equal(embed(in_bfloat16(folder, tmp_path / "narrow")), expected)
    assert not np.array_equal(embed(folder), expected), "rounding shows"


MAKERS = tiny.TRANSFORMERS | {family: partial(tiny.decoder, family) for family in tiny.DECODERS}


@pytest.mark.parametrize("family", MAKERS)
def test_so_do_the_tables_of_every_architecture(tmp_path: Path, mapping_all: None, family: str) -> None:
    folder = MAKERS[family](tmp_path / "model")
    vectors = []
    for place, widened in (("wide", True), ("narrow", False)):
        with PoolingModel(str(in_bfloat16(folder, tmp_path / place, widened=widened)), dtype="float32") as model:
            vectors.append(model.embed(TEXTS).embeddings)
    assert np.array_equal(*vectors)


@pytest.mark.parametrize("path", PATHS)
def test_so_do_the_three_tables_of_an_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Words, positions and types of both texts of a pair."""
    monkeypatch.setenv("FOREBAY_NATIVE", path)
    folder = heads.with_head(tmp_path / "model", "bert", "sequence", num_labels=1)
    scores = []
    for place, widened in (("wide", True), ("narrow", False)):
        with PoolingModel(str(in_bfloat16(folder, tmp_path / place, widened=widened)), dtype="float32") as model:
            scores.append(model.score("a river", [*TEXTS], use_activation=False).scores)
            assert model.info.dtype == "float32"
    assert np.array_equal(*scores)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_mapped_table_is_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, path: str) -> None:
    monkeypatch.setenv("FOREBAY_NATIVE", path)
    folder = save(tmp_path / "model", "qwen3", "CausalLM")
    for place in (folder, in_bfloat16(folder, tmp_path / "narrow")):
        expected = embed(place, dtype)
        with monkeypatch.context() as patch:
            patch.setattr(fill, "MAPPED_BYTES", 0)
            assert np.array_equal(embed(place, dtype), expected)


def test_what_is_mapped_outlives_the_name_of_its_file(tmp_path: Path, mapping_all: None) -> None:
    """A download puts a new file in the old one's place: the model that runs keeps the old."""
    folder = save(tmp_path / "model", "qwen3", "CausalLM")
    with PoolingModel(str(folder), convert="embed") as model:
        expected = model.embed(TEXTS).embeddings
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors").write_bytes(b"")
        assert np.array_equal(model.embed(TEXTS).embeddings, expected)


def test_small_tables_are_copied(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "qwen3", "CausalLM")
    with PoolingModel(str(folder), convert="embed") as model:
        expected = model.embed(TEXTS).embeddings
        with (folder / "model.safetensors").open("r+b") as file:
            file.write(bytes((folder / "model.safetensors").stat().st_size))
        assert np.array_equal(model.embed(TEXTS).embeddings, expected)


def test_pickled_files_are_not_kept_open(tmp_path: Path, mapping_all: None) -> None:
    folder = save(tmp_path / "model", "qwen3", "CausalLM")
    expected = embed(folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert map_tensor(folder, "model.embed_tokens.weight") is None
    assert np.array_equal(embed(folder), expected)


def test_shards_are_found(tmp_path: Path, mapping_all: None) -> None:
    folder = save(tmp_path / "model", "qwen3", "CausalLM")
    expected, tensors = embed(folder), load_file(folder / "model.safetensors")
    names = sorted(tensors)
    files = {name: f"model-0000{1 + (place % 2)}-of-00002.safetensors" for place, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (folder / "model.safetensors").unlink()
    assert np.array_equal(embed(folder), expected)


@pytest.mark.parametrize("place", [0, 5_000_000])
def test_damage_is_found_wherever_it_is(tmp_path: Path, place: int) -> None:
    tensor = torch.zeros(3000, 2000)
    tensor.view(-1)[place] = float("nan")
    with pytest.raises(fill.WeightsMismatch, match="holds NaN"):
        fill._check("a.weight", tensor)
    fill._check("a.weight", torch.zeros(3000, 2000))
    fill._check("a.scale", torch.tensor(1.0))
    fill._check("a.empty", torch.zeros(0, 4))
