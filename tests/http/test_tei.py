"""The route of text-embeddings-inference on live servers, as its clients call it."""

import numpy as np
import pytest

TEXTS = ["The river flows over stone.", "", "water " * 200]


def unpack(vectors: list[list[dict[str, float]]]) -> list[tuple[list[int], np.ndarray]]:
    return [
        ([entry["index"] for entry in entries], np.array([entry["value"] for entry in entries], np.float32))
        for entries in vectors
    ]


@pytest.mark.parametrize("path", ["/embed_sparse", "/v1/embed_sparse"])
def test_sparse_vectors(splade, path):
    expected = splade.model.sparse(TEXTS)
    reply = splade.client.post(path, json={"inputs": TEXTS})
    assert reply.status_code == 200
    for (ids, values), vector in zip(unpack(reply.json()), expected, strict=True):
        assert ids == vector.ids.tolist()
        np.testing.assert_array_equal(values, vector.weights)
    assert set(reply.json()[0][0]) == {"index", "value"}


@pytest.mark.parametrize(
    ("given", "items"), [("a mill", ["a mill"]), ([5, 6], [[5, 6]]), ([[5, 6], "a"], [[5, 6], "a"])]
)
def test_the_answer_is_a_list_of_lists_whatever_came(splade, given, items):
    found = unpack(splade.post("/embed_sparse", inputs=given))
    for (ids, _), item in zip(found, items, strict=True):
        assert ids == splade.model.sparse(item)[0].ids.tolist()


def test_options(splade):
    (vector,) = unpack(splade.post("/embed_sparse", inputs="a mill", max_active_dims=3))
    assert vector[0] == splade.model.sparse("a mill", max_active_dims=3)[0].ids.tolist()
    long = f"stone {'water ' * 200} mill"
    for direction, side in (("Left", "left"), ("left", "left"), ("Right", "right"), ("right", "right")):
        (found,) = unpack(splade.post("/embed_sparse", inputs=long, truncation_direction=direction))
        expected = splade.model.sparse(long, truncation_side=side)[0]
        np.testing.assert_array_equal(found[1], expected.weights)
    fields = ["truncate", "truncation_direction", "prompt_name", "max_active_dims", "model"]
    assert splade.post("/embed_sparse", inputs="a", **dict.fromkeys(fields)) == splade.post("/embed_sparse", inputs="a")


def test_a_vector_without_entries_is_an_empty_list(trio):
    assert len(trio.model.sparse([[0]])[0]) == 0  # a special token alone
    assert trio.post("/embed_sparse", inputs=[[0]]) == [[]]


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("classifier", {}, "'classify' (POST /classify)"),
        ("splade", {"inputs": None}, "'inputs' must be a string"),
        ("splade", {"inputs": []}, "'inputs' is an empty list"),
        ("splade", {"inputs": ["a", 1]}, "'inputs[1]'"),
        ("splade", {"inputs": [[999]]}, "vocabulary of 127"),
        ("splade", {"inputs": "water " * 200, "truncate": False}, "64 tokens are read"),
        ("splade", {"truncation_direction": "up"}, "'truncation_direction' must be"),
        ("splade", {"prompt_name": "query"}, "unknown prompt"),
        ("splade", {"max_active_dims": 0}, "at least 1"),
        ("splade", {"model": 5}, "'model' must be a string"),
    ],
)
def test_what_is_refused(request, name, body, words):
    served = request.getfixturevalue(name)
    reply = served.client.post("/embed_sparse", json={"inputs": "secret", **body})
    assert reply.status_code == 400
    assert set(reply.json()) == {"error", "error_type"}
    assert reply.json()["error_type"] == "Validation"
    assert words in reply.json()["error"]
    assert "secret" not in reply.text


def test_other_errors_have_the_same_shape(splade):
    reply = splade.client.post("/embed_sparse", json={"inputs": "a", "model": "other"})
    assert (reply.status_code, reply.json()["error_type"]) == (404, "Validation")
    assert splade.client.post("/embed_sparse", content=b"{").json()["error_type"] == "Validation"
    assert set(splade.client.get("/embed_sparse").json()) == {"error", "error_type"}


def test_a_real_sparse_encoder(serve_real):
    served = serve_real("splade-tiny")
    (found,) = unpack(served.post("/embed_sparse", inputs="a cat on a mat"))
    expected = served.model.sparse("a cat on a mat")[0]
    assert found[0] == expected.ids.tolist()
    np.testing.assert_array_equal(found[1], expected.weights)
