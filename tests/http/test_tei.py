"""The routes of text-embeddings-inference that answer vectors, on live servers, as its clients call them."""

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
        ("splade", {"inputs": [[999]]}, "inputs[0] holds a token id outside this model's vocabulary of 127"),
        ("splade", {"inputs": "water " * 200, "truncate": False}, "inputs[0] has"),
        ("splade", {"inputs": ["x"] * 5000}, "'inputs' has 5000 items, but this server takes at most 4096"),
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


def test_embed(embedder):
    expected = embedder.model.embed(TEXTS, use_activation=True).embeddings
    for path in ("/embed", "/v1/embed"):
        found = embedder.post(path, inputs=TEXTS)
        np.testing.assert_array_equal(np.array(found, np.float32), expected)
    (one,) = embedder.post("/embed", inputs=TEXTS[0], truncate=True, truncation_direction="Right", prompt_name=None)
    np.testing.assert_allclose(one, expected[0], atol=1e-6)
    (raw,) = embedder.post("/embed", inputs=TEXTS[0], normalize=False)
    np.testing.assert_allclose(raw, embedder.model.embed(TEXTS[0], use_activation=False).embeddings[0], atol=1e-5)
    assert abs(np.linalg.norm(raw) - 1) > 0.01
    (short,) = embedder.post("/embed", inputs=TEXTS[0], dimensions=8, prompt_name="query")
    wanted = embedder.model.embed(TEXTS[0], dimensions=8, prompt_name="query").embeddings[0]
    np.testing.assert_allclose(short, wanted, atol=1e-6)


def test_a_model_that_does_not_normalise_is_normalised(splade):
    """Its clients count on unit length, whatever the checkpoint says."""
    (found,) = splade.post("/embed", inputs="a mill")
    assert abs(np.linalg.norm(found) - 1) < 1e-5
    assert abs(np.linalg.norm(splade.model.embed("a mill").embeddings) - 1) > 0.01


def test_embed_all(embedder):
    found = embedder.post("/embed_all", inputs=TEXTS)
    for rows, expected in zip(found, embedder.model.token_embed(TEXTS).matrices, strict=True):
        np.testing.assert_array_equal(np.array(rows, np.float32), expected)


def test_similarity(embedder):
    sentences = ["water runs over rock", "a mill", ""]
    found = embedder.post("/similarity", inputs={"source_sentence": TEXTS[0], "sentences": sentences})
    vectors = embedder.model.embed([TEXTS[0], *sentences]).embeddings
    np.testing.assert_allclose(found, vectors[1:] @ vectors[0], atol=1e-6)
    asked = {"source_sentence": "a", "sentences": ["b"]}
    with_prompt = embedder.post("/similarity", inputs=asked, parameters={"prompt_name": "query"})
    assert with_prompt != embedder.post("/similarity", inputs=asked, parameters={})


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/embed", {"inputs": "a", "dimensions": 0}, "dimensions is 0"),
        ("/embed", {"inputs": "a", "dimensions": 33}, "ask for 1 to 32"),
        ("/embed", {}, "'inputs' is missing"),
        ("/embed", {"inputs": [["a"]]}, "'inputs[0]' must hold token ids"),
        ("/similarity", {"inputs": "a"}, "'inputs' must be an object"),
        ("/similarity", {"inputs": {"source_sentence": "a"}}, "'inputs.sentences' is missing"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, "send at least one text"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b", 5]}}, "'inputs.sentences.1' must be"),
        (
            "/similarity",
            {"inputs": {"source_sentence": "a", "sentences": ["b", "word " * 99]}, "parameters": {"truncate": False}},
            "inputs.sentences[1] has",
        ),
        ("/predict", {"inputs": "a"}, "'embed' (POST /embeddings)"),
    ],
)
def test_what_is_refused_of_embedders(embedder, path, body, words):
    reply = embedder.client.post(path, json=body)
    assert (reply.status_code, set(reply.json())) == (400, {"error", "error_type"})
    assert words in reply.json()["error"]


def test_the_real_client_of_hugging_face(embedder):
    import huggingface_hub

    base = str(embedder.client.base_url)
    vectors = huggingface_hub.InferenceClient(model=f"{base}/embed").feature_extraction(
        TEXTS, truncate=True, truncation_direction="left", normalize=True
    )
    np.testing.assert_allclose(vectors, embedder.model.embed(TEXTS, truncation_side="left").embeddings, atol=1e-6)
    client = huggingface_hub.InferenceClient(model=f"{base}/similarity")
    found = client.sentence_similarity("the river", other_sentences=["a river", "a mill"])
    assert found == embedder.post(
        "/similarity", inputs={"source_sentence": "the river", "sentences": ["a river", "a mill"]}
    )
