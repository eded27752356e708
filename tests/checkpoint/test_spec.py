"""The spec: prompts, similarity, sizes and their sources, from old and new files and from real checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.checkpoint.locate import locate
from forebay.checkpoint.pipeline import NormalizeStage, PoolingStage, TransformerStage
from forebay.checkpoint.spec import ModelSpec, architectures_of, dtype_of, read_spec
from forebay.core.errors import CheckpointNotFound, LoadError, UnsupportedCheckpoint
from tests.checkpoint.checkpoints import OLD, write_checkpoint, write_json

NAME = "config_sentence_transformers.json"


def read(root: Path, fields: Any, **config: Any) -> ModelSpec:
    write_checkpoint(root, [("", OLD + "Transformer", None), ("1_P", OLD + "Pooling", {})], **config)
    write_json(root / NAME, fields)
    return read_spec(root)


def test_everything_declared(tmp_path: Path) -> None:
    fields = {
        "model_type": "SentenceTransformer",
        "__version__": {"sentence_transformers": "6.0.0"},
        "prompts": {"query": "query: ", "document": "", "empty": None},
        "default_prompt_name": "query",
        "similarity_fn_name": "dot",
        "truncate_dim": 4,
    }
    spec = read(tmp_path, fields, matryoshka_dimensions=[8, 2, 4])
    assert spec.path == tmp_path
    assert spec.prompts == {"query": "query: "}
    assert (spec.default_prompt_name, spec.similarity, spec.truncate_dim) == ("query", "dot", 4)
    assert spec.matryoshka == (2, 4, 8)
    assert spec.sources == {
        "pipeline": "modules.json",
        "prompts": NAME,
        "default_prompt_name": NAME,
        "similarity": NAME,
        "truncate_dim": NAME,
        "matryoshka": "config.json: matryoshka_dimensions",
    }


@pytest.mark.parametrize(
    "fields",
    [{}, {"prompts": None, "default_prompt_name": None, "similarity_fn_name": None, "truncate_dim": None}],
)
def test_nothing_declared(tmp_path: Path, fields: dict[str, Any]) -> None:
    spec = read(tmp_path, fields)
    assert (spec.prompts, spec.default_prompt_name, spec.similarity) == ({}, None, "cosine")
    assert (spec.truncate_dim, spec.matryoshka) == (None, None)
    assert (spec.model_type, spec.is_default_pipeline) == ("SentenceTransformer", False)
    assert (spec.max_active_dims, spec.classifier_activation, spec.extra_heads) == (None, None, ())
    assert spec.sources == {"pipeline": "modules.json", "similarity": "sentence-transformers' default"}


def test_default_prompt_that_is_a_placeholder(tmp_path: Path) -> None:
    assert read(tmp_path, {"prompts": {"document": ""}, "default_prompt_name": "document"}).default_prompt_name is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompts": {"q": "a"}, "default_prompt_name": "lost"}, "'default_prompt_name' is 'lost', .* 'q'"),
        ({"default_prompt_name": "lost"}, "'default_prompt_name' is 'lost', .* none"),
        ({"prompts": {"q": 3}}, "prompts: 'q' is 3, expected a text"),
        ({"prompts": ["a"]}, "'prompts' is a list, expected an object"),
        ({"similarity_fn_name": "maxsim"}, "'similarity_fn_name' is 'maxsim', expected one of cosine"),
        ({"truncate_dim": 0}, "'truncate_dim' is 0, expected at least 1"),
        ({"truncate_dim": True}, "'truncate_dim' is true, expected a whole number"),
        *(({"model_type": name}, f"'model_type' is '{name}'") for name in ("Colbert", "crossencoder")),
        ({"max_active_dims": 0}, "'max_active_dims' is 0, expected at least 1"),
        ({"max_active_dims": "9"}, "'max_active_dims' is '9', expected a whole number"),
        ({"activation_fn": "os.system"}, "'activation_fn' is 'os.system'"),
        ([], "holds a list, expected an object"),
    ],
)
def test_not_understood(tmp_path: Path, fields: Any, words: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=words) as caught:
        read(tmp_path, fields)
    assert str(caught.value).startswith(NAME)


@pytest.mark.parametrize(
    ("model_type", "similarity"),
    [("SentenceTransformer", "cosine"), ("SparseEncoder", "dot"), ("CrossEncoder", "cosine")],
)
def test_model_types_and_their_similarity(tmp_path: Path, model_type: str, similarity: str) -> None:
    spec = read(tmp_path, {"model_type": model_type, "max_active_dims": 64})
    assert (spec.model_type, spec.similarity, spec.max_active_dims) == (model_type, similarity, 64)
    assert spec.sources["max_active_dims"] == NAME
    assert spec.sources["similarity"] == "sentence-transformers' default"
    chosen = read(tmp_path, {"model_type": model_type, "similarity_fn_name": "euclidean"})
    assert (chosen.similarity, chosen.sources["similarity"]) == ("euclidean", NAME)


TANH = "torch.nn.modules.activation.Tanh"
IDENTITY = "torch.nn.modules.linear.Identity"


def test_classifier_activation(tmp_path: Path) -> None:
    old = {"sbert_ce_default_activation_function": IDENTITY}
    spec = read(tmp_path, {"model_type": "CrossEncoder", "activation_fn": TANH}, **old)
    assert (spec.classifier_activation, spec.sources["classifier_activation"]) == (TANH, f"{NAME}: activation_fn")
    # Beside a plain checkpoint sentence-transformers takes nothing from its own file.
    (tmp_path / "modules.json").unlink()
    spec = read_spec(tmp_path)
    assert (spec.model_type, spec.is_default_pipeline) == ("CrossEncoder", True)
    assert spec.classifier_activation == IDENTITY
    assert spec.sources["classifier_activation"] == "config.json: sbert_ce_default_activation_function"


def test_extra_heads(tmp_path: Path) -> None:
    names = ("sparse_linear.pt", "colbert_linear.pt")
    for present, missing in (names, names[::-1]):
        root = tmp_path / present
        root.mkdir()
        (root / present).touch()
        with pytest.raises(CheckpointNotFound, match=f"{missing} is missing in .*, which has {present}"):
            read(root, {})
        (root / missing).touch()
        assert read(root, {}).extra_heads == names


@pytest.mark.parametrize("sizes", [8, ["8"], [0], [True]])
def test_malformed_matryoshka(tmp_path: Path, sizes: Any) -> None:
    with pytest.raises(UnsupportedCheckpoint, match="'matryoshka_dimensions'"):
        read(tmp_path, {}, matryoshka_dimensions=sizes)


def test_without_sentence_transformers_files(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"architectures": ["BertModel"]})
    spec = read_spec(tmp_path)
    assert spec.sources["pipeline"] == "sentence-transformers' default"
    assert spec.is_default_pipeline


def test_folder_without_anything(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"config\.json is missing"):
        read_spec(tmp_path)


def test_architectures() -> None:
    assert architectures_of({"architectures": ["BertModel", "X"]}) == ("BertModel", "X")
    assert architectures_of({"architectures": None}) == architectures_of({}) == ()
    for malformed in ("BertModel", [3], {"a": 1}):
        with pytest.raises(UnsupportedCheckpoint, match="'architectures'"):
            architectures_of({"architectures": malformed})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"dtype": None, "torch_dtype": "float16"}, "float16"),
        ({"dtype": "bfloat16", "torch_dtype": "float32"}, "bfloat16"),
        ({"torch_dtype": "torch.float32"}, "float32"),
    ],
)
def test_dtype(config: dict[str, Any], expected: str | None) -> None:
    assert dtype_of(config) == expected


def test_malformed_dtype() -> None:
    with pytest.raises(UnsupportedCheckpoint, match="'dtype'"):
        dtype_of({"dtype": {"vision": "float32"}})


def test_default_model() -> None:
    spec = read_spec(locate("default").path)
    transformer, pooling, normalize = spec.routes.stages[""]
    assert isinstance(transformer, TransformerStage)
    assert (transformer.max_seq_length, transformer.do_lower_case) == (256, False)
    assert architectures_of(transformer.config) == ("BertModel",)
    assert pooling == PoolingStage(("mean",), True, "1_Pooling/config.json")
    assert normalize == NormalizeStage("sentence_embedding")
