"""Documents of which a late-interaction model keeps no vector: worse than all others, by every way in and out."""

from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from forebay import PoolingModel
from tests.models.test_late import edit, modules
from tests.support import multi_vector as makers
from tests.support.live_server import serving
from tests.support.multi_vector import Reference


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("similarity", ["maxsim", "meanmaxsim"])
def test_a_document_without_a_vector_is_worse_than_all(tmp_path: Path, similarity: str) -> None:
    """As in sentence-transformers; PyLate pads it with zeros, which are better than what points away."""
    make = modules(mask={"keep_only_token_ids": [30]}, query_length=9)
    folder = make(tmp_path / "model")
    edit(folder / "config_sentence_transformers.json", similarity_fn_name=similarity)
    reference = Reference(folder)
    kept = next(word for word in range(5, 100) if reference.model.tokenizer.convert_ids_to_tokens(word) == "river")
    edit(
        folder / "1_MultiVectorMask" / "config.json"
        if (folder / "1_MultiVectorMask").is_dir()
        else next(folder.glob("*MultiVectorMask*")) / "config.json",
        keep_only_token_ids=[kept],
    )
    reference = Reference(folder)
    documents = ["a lake", "the river", "a mill"]
    rows = reference.embed(documents, "document")
    assert [len(row) for row in rows] == [0, 1, 0]
    (query,) = reference.embed(["river stone"], "query")
    expected = reference.model.similarity([torch.from_numpy(query)], [torch.from_numpy(row) for row in rows])[0]
    with PoolingModel(str(folder)) as model:
        found = model.score("river stone", documents)
        np.testing.assert_allclose(found.scores, expected.numpy(), rtol=1e-6, atol=1e-4)
        assert [one.index for one in model.rerank("river stone", documents)] == [1, 0, 2]


@pytest.fixture
def picky(tmp_path: Path) -> Path:
    """A checkpoint that keeps the vectors of one word of a document alone."""
    folder = modules(mask={"keep_only_token_ids": [30]}, query_length=9)(tmp_path / "model")
    word = Reference(folder).model.tokenizer.convert_tokens_to_ids("river")
    edit(next(folder.glob("*MultiVectorMask")) / "config.json", keep_only_token_ids=[word])
    return folder


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("similarity", ["maxsim", "meanmaxsim"])
def test_vectors_that_are_none_come_back(picky: Path, similarity: str) -> None:
    """An index keeps what it got of a text, also where that is no vector: it has the score of the text."""
    edit(picky / "config_sentence_transformers.json", similarity_fn_name=similarity)
    documents = ["a lake", "the river", "..."]
    with PoolingModel(str(picky)) as model, serving(model.engine) as url, httpx.Client(base_url=url) as client:
        expected = model.score("river stone", documents).scores
        assert expected.argmax() == 1
        num_query = len(model.token_embed("river stone", input_type="query").matrices[0])
        assert expected[0] == expected[2] == np.float32(-1e9 / (num_query if similarity == "meanmaxsim" else 1))
        kept = model.token_embed(documents, input_type="document").matrices
        assert [len(rows) for rows in kept] == [0, 1, 0]
        np.testing.assert_allclose(model.score("river stone", list(kept)).scores, expected, rtol=1e-6)
        np.testing.assert_allclose(model.score("river stone", [kept[0], "the river", kept[2]]).scores, expected)
        assert [one.index for one in model.rerank("river stone", list(kept))] == [1, 0, 2]
        none = np.zeros((0, makers.DIM), np.float32)
        assert model.score(none, ["the river", kept[1]]).scores.tolist() == [0, 0], "a sum of nothing"
        body = {"task": "token_embed", "input_type": "document", "input": documents}
        for extra in ({}, {"encoding_format": "base64", "embed_dtype": "float32"}):
            entries = client.post("/pooling", json=body | extra).json()["data"]
            said = client.post("/score", json={"queries": "river stone", "documents": entries})
            assert said.status_code == 200, said.text
            np.testing.assert_allclose([entry["score"] for entry in said.json()["data"]], expected, rtol=1e-6)
        said = client.post("/rerank", json={"query": "river stone", "documents": documents}).json()
        assert [entry["index"] for entry in said["results"]] == [1, 0, 2]
        assert said["results"][2]["relevance_score"] == pytest.approx(float(expected[2]))


@pytest.mark.parametrize("scores", ["max", "mean"])
def test_windows_without_a_vector_count_for_nothing(picky: Path, scores: str) -> None:
    config = {"enable_chunked_processing": True, "chunk_scores": scores}
    with PoolingModel(str(picky), pooler_config=config) as model:
        whole = model.score("river stone", ["river", "lake " * 300, "lake " * 300 + "river", "river " + "lake " * 300])
        assert whole.truncated.tolist() == [False] * 4
        assert whole[1] == -1e9
        assert min(whole[0], whole[2], whole[3]) > -1e3
