"""vLLM's routes on live servers: the Python API's own numbers in every encoding, and what is refused."""

import base64
import json

import numpy as np
import pytest

from tests.http.conftest import Served

TEXTS = ["The river flows over stone.", "", "a mill", "water " * 200, "a mill"]


def numbers(value: object) -> np.ndarray:
    return np.array(value, dtype=np.float32)


def spans_of(served: Served, texts: list[str]) -> list:
    from forebay.core.params import TextParams

    return served.model.engine.spans(texts, TextParams())


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_classify(classifier, prefix):
    expected = classifier.model.classify(TEXTS)
    reply = classifier.post(f"{prefix}/classify", input=TEXTS, model="default", user="me", priority=1)
    assert reply["id"].startswith("classify-")
    assert (reply["object"], reply["model"]) == ("list", classifier.model.info.name)
    assert reply["created"] > 1_700_000_000
    assert reply["labels"] == ["calm", "wild", "deep"]
    np.testing.assert_array_equal(numbers([entry["probs"] for entry in reply["data"]]), expected.scores)
    assert [entry["label"] for entry in reply["data"]] == [label for label, _ in expected.top]
    assert [(entry["index"], entry["num_classes"]) for entry in reply["data"]] == [(n, 3) for n in range(5)]
    assert reply["usage"]["prompt_tokens"] == expected.num_tokens.sum()
    assert reply["truncated"] == [3]
    assert "scores" not in reply["data"][0]


def test_classify_gives_logits_and_scores_by_label_on_request(classifier):
    logits = classifier.model.classify(TEXTS, use_activation=False).scores
    reply = classifier.post("/classify", input=TEXTS, use_activation=False, top_k=-1)
    np.testing.assert_array_equal(numbers([entry["probs"] for entry in reply["data"]]), logits)
    assert not np.allclose(logits.sum(1), 1)
    for entry, row in zip(reply["data"], logits, strict=True):
        order = np.argsort(-row)
        assert [score["label"] for score in entry["scores"]] == [reply["labels"][place] for place in order]
        np.testing.assert_array_equal(numbers([score["score"] for score in entry["scores"]]), row[order])
        assert entry["label"] == entry["scores"][0]["label"]
    for top_k, number in ((1, 1), (2, 2), (99, 3)):
        reply = classifier.post("/classify", input="a mill", top_k=top_k)
        assert len(reply["data"][0]["scores"]) == number


def test_the_id_is_that_of_the_request(classifier):
    reply = classifier.client.post("/classify", json={"input": "a"}, headers={"x-request-id": "mine"})
    assert reply.json()["id"] == "classify-mine"
    assert reply.headers["x-request-id"] == "mine"


def test_null_in_every_optional_field_means_the_default(classifier, tagger, embedder):
    shared = ["model", "dimensions", "truncate_dim", "use_activation", "late_chunking_params", "max_active_dims"]
    shared += ["prompt", "prompt_name", "input_type", "truncate", "truncate_prompt_tokens", "truncation_side"]
    shared += ["add_special_tokens", "user", "priority", "top_k", "aggregation", "task", "outputs", "encoding_format"]
    shared += ["embed_dtype", "endianness", "special_tokens_mask", "return_tokens"]
    for served, path in ((classifier, "/classify"), (tagger, "/token_classify"), (embedder, "/pooling")):
        nulls = served.post(path, input=TEXTS, **dict.fromkeys(shared))
        plain = served.post(path, input=TEXTS)
        assert (nulls["data"], nulls["usage"]) == (plain["data"], plain["usage"])


@pytest.mark.parametrize("path", ["/pooling", "/v1/pooling"])
def test_pooling_gives_the_default_task(embedder, classifier, tagger, path):
    reply = embedder.post(path, input=TEXTS)
    assert reply["id"].startswith("pooling-")
    assert [(entry["index"], entry["object"]) for entry in reply["data"]] == [(n, "pooling") for n in range(5)]
    np.testing.assert_array_equal(
        numbers([entry["data"] for entry in reply["data"]]), embedder.model.embed(TEXTS).embeddings
    )
    assert "labels" not in reply
    reply = classifier.post(path, input="a mill")
    np.testing.assert_array_equal(numbers(reply["data"][0]["data"]), classifier.model.classify("a mill").scores[0])
    assert reply["labels"] == ["calm", "wild", "deep"]
    reply = tagger.post(path, input=TEXTS)
    for entry, scores in zip(reply["data"], tagger.model.token_classify(TEXTS).scores, strict=True):
        np.testing.assert_array_equal(numbers(entry["data"]), scores)
    assert len(reply["labels"]) == 5


@pytest.mark.parametrize("given", [["a mill", [5, 6, 7]], [5, 6, 7], [[5, 6], [7]], "a mill"])
def test_every_form_of_input(embedder, given):
    items = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    reply = embedder.post("/pooling", input=given, task="token_embed", special_tokens_mask=True)
    expected = [embedder.model.token_embed(item).matrices[0] for item in items]
    for entry, matrix in zip(reply["data"], expected, strict=True):
        np.testing.assert_allclose(numbers(entry["data"]), matrix, atol=1e-6)
        assert entry["special_tokens_mask"] == [1, *[0] * (len(matrix) - 2), 1]


def test_several_outputs_of_one_forward(trio):
    outputs = ["embed", "sparse", "token_embed", "token_classify"]
    expected = trio.model.encode(TEXTS, outputs=outputs)
    reply = trio.post("/pooling", input=TEXTS, outputs=outputs, return_tokens=True)
    for index, entry in enumerate(reply["data"]):
        data = entry["data"]
        assert list(data) == outputs
        for task in ("embed", "token_embed", "token_classify"):
            np.testing.assert_array_equal(
                numbers(data[task]).reshape(-1), np.ravel(expected[task][index]), err_msg=task
            )
        vector = expected["sparse"][index]
        assert data["sparse"]["indices"] == vector.ids.tolist()
        np.testing.assert_array_equal(numbers(data["sparse"]["values"]), vector.weights)
        assert data["sparse"]["tokens"] == [expected["sparse"].token_of(token_id) for token_id in vector.ids.tolist()]
    assert any(len(expected["sparse"][index]) for index in range(5))
    assert reply["labels"] == []


def test_the_composed_task(trio):
    reply = trio.post("/pooling", input="a mill", task="embed&token_classify")
    expected = trio.model.encode("a mill", outputs=["embed", "token_classify"])
    assert list(reply["data"][0]["data"]) == ["embed", "token_classify"]
    np.testing.assert_array_equal(numbers(reply["data"][0]["data"]["embed"]), expected["embed"][0])


def test_one_output_in_a_list_is_that_output(embedder):
    one = embedder.post("/pooling", input="a mill", outputs=["embed"])["data"]
    assert one == embedder.post("/pooling", input="a mill", task="embed")["data"]


def test_sparse_vectors(splade):
    expected = splade.model.sparse(TEXTS, max_active_dims=7)
    reply = splade.post("/pooling", input=TEXTS, task="sparse", max_active_dims=7)
    for entry, vector in zip(reply["data"], expected, strict=True):
        assert entry["data"]["indices"] == vector.ids.tolist()
        assert len(vector) == 7
        np.testing.assert_array_equal(numbers(entry["data"]["values"]), vector.weights)
        assert set(entry["data"]) == {"indices", "values"}


@pytest.mark.parametrize(("endianness", "dtype"), [(None, "<f4"), ("little", "<f4"), ("native", "=f4"), ("big", ">f4")])
def test_base64_with_its_shape(trio, endianness, dtype):
    outputs = ["token_embed", "embed", "sparse"]
    body = {"input": TEXTS, "outputs": outputs, "encoding_format": "base64", "endianness": endianness}
    expected = trio.model.encode(TEXTS, outputs=outputs)
    for index, entry in enumerate(trio.post("/pooling", **body)["data"]):
        for task in ("token_embed", "embed"):
            flat = np.frombuffer(base64.b64decode(entry["data"][task]), dtype)
            np.testing.assert_array_equal(flat.reshape(entry["shape"][task]), expected[task][index])
        assert entry["shape"]["sparse"] is None
        assert entry["data"]["sparse"]["indices"] == expected["sparse"][index].ids.tolist()


@pytest.mark.parametrize("repeats", [1, 40])
def test_bytes_with_their_metadata(tagger, repeats):
    texts = TEXTS * repeats
    body = {"input": texts, "encoding_format": "bytes", "embed_dtype": "float16", "special_tokens_mask": True}
    reply = tagger.client.post("/pooling", json=body)
    assert reply.headers["content-type"] == "application/octet-stream"
    meta = json.loads(reply.content[int(reply.headers["metadata-start"]) :])
    expected = tagger.model.token_classify(texts)
    for entry, scores, flags in zip(meta["data"], expected.scores, expected.is_special, strict=True):
        found = np.frombuffer(reply.content[entry["start"] : entry["end"]], meta["dtype"]).reshape(entry["shape"])
        np.testing.assert_array_equal(found, scores.astype(np.float16))
        assert entry["special_tokens_mask"] == flags.astype(int).tolist()
    assert meta["truncated"] == [3 + 5 * number for number in range(repeats)]
    assert ("metadata" in reply.headers) == (len(reply.content) - int(reply.headers["metadata-start"]) <= 4096)
    assert reply.headers["x-inference-time"]


def test_bytes_only(tagger):
    reply = tagger.client.post("/pooling", json={"input": TEXTS, "encoding_format": "bytes_only"})
    expected = np.concatenate(tagger.model.token_classify(TEXTS).scores)
    np.testing.assert_array_equal(np.frombuffer(reply.content, "<f4").reshape(-1, 5), expected)
    assert "metadata" not in reply.headers


def test_token_classify(tagger):
    expected = tagger.model.token_classify(TEXTS)
    spans = spans_of(tagger, TEXTS)
    reply = tagger.post("/token_classify", input=TEXTS)
    for index, entry in enumerate(reply["data"]):
        assert (entry["index"], entry["object"]) == (index, "token_classification")
        np.testing.assert_array_equal(numbers(entry["scores"]), expected.scores[index])
        assert entry["special_tokens_mask"] == expected.is_special[index].astype(int).tolist()
        assert entry["offsets"] == spans[index].offsets.tolist()
    words = [TEXTS[0][start:end] for start, end in reply["data"][0]["offsets"]]
    assert (words[0], words[1], words[-1]) == ("", "The", "")


def test_token_classify_of_ids_has_no_offsets(tagger):
    (entry,) = tagger.post("/token_classify", input=[5, 6, 7])["data"]
    assert entry["offsets"] is None
    assert entry["special_tokens_mask"] == [1, 0, 0, 0, 1]
    np.testing.assert_array_equal(numbers(entry["scores"]), tagger.model.token_classify([5, 6, 7]).scores[0])


@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
def test_entities(tagger, aggregation):
    expected = tagger.model.token_classify(TEXTS, aggregation=aggregation)
    reply = tagger.post("/v1/token_classify", input=TEXTS, aggregation=aggregation)
    found = [entry["entities"] for entry in reply["data"]]
    assert found == [[entity._asdict() for entity in entities] for entities in expected.entities]
    assert any(found)
    assert "scores" not in reply["data"][0]
    for entity in found[0]:
        assert entity["text"] == TEXTS[0][entity["start"] : entity["end"]]


def test_entities_behind_a_prompt_are_counted_in_the_callers_text(tagger):
    (entry,) = tagger.post("/token_classify", input=["a mill"], prompt="the river ", aggregation="none")["data"]
    for entity in entry["entities"]:
        assert entity["text"] == "a mill"[entity["start"] : entity["end"]]
        assert entity["text"]


def test_rows_of_steps(stepper):
    text = "the river of the mill of water"
    expected = stepper.model.token_classify(text).scores[0]
    assert len(expected) == 2
    first, second = stepper.post("/pooling", input=[text, "a mill"])["data"]
    np.testing.assert_allclose(numbers(first["data"]), expected, atol=1e-6)
    assert second["data"] == []
    for path, extra in (("/pooling", {"special_tokens_mask": True}), ("/token_classify", {})):
        assert "POST /pooling" in stepper.refuse(path, input=text, **extra)["message"]


@pytest.mark.parametrize(
    ("name", "path", "body", "param", "words"),
    [
        ("classifier", "/pooling", {"task": "embed"}, "task", "it has 'classify'"),
        ("classifier", "/pooling", {"outputs": ["classify", "sparse"]}, "outputs", "'sparse'"),
        ("classifier", "/pooling", {"task": "plugin"}, "task", "it has 'classify'"),
        ("classifier", "/pooling", {"task": "score"}, "task", "use 'classify'"),
        ("tagger", "/pooling", {"task": "encode"}, "task", "use 'token_embed'"),
        ("tagger", "/pooling", {"outputs": ["reward"]}, "outputs", "use 'classify'"),
        ("tagger", "/pooling", {"task": "embedding"}, "task", "expected one of"),
        ("tagger", "/pooling", {"outputs": []}, "outputs", "empty"),
        ("tagger", "/pooling", {"outputs": "embed"}, "outputs", "a list"),
        ("tagger", "/pooling", {"outputs": [1]}, "outputs.0", "a string"),
        ("tagger", "/pooling", {"outputs": ["token_classify"], "task": "token_classify"}, "outputs", "one of them"),
        ("tagger", "/pooling", {"task": "embed&token_classify"}, "task", "'embed'"),
        ("tagger", "/classify", {}, "model", "POST /token_classify"),
        ("classifier", "/token_classify", {}, "model", "POST /classify"),
        ("classifier", "/classify", {"dimensions": 8}, "dimensions", "means nothing to 'classify'"),
        ("classifier", "/classify", {"max_active_dims": 8}, "max_active_dims", "means nothing"),
        ("classifier", "/classify", {"top_k": 0}, "top_k", "-1 for"),
        ("classifier", "/classify", {"top_k": 1.5}, "top_k", "an integer"),
        ("classifier", "/classify", {"use_activation": 1}, "use_activation", "true or false"),
        ("classifier", "/classify", {"input": ["a", 1]}, "input[1]", "a string"),
        ("classifier", "/classify", {"input": [[1, 999]]}, "input[0]", "vocabulary of 127"),
        ("classifier", "/classify", {"input": ["water " * 200], "truncate": False}, "input[0]", "64 tokens are read"),
        ("classifier", "/classify", {"truncate_prompt_tokens": 65}, "truncate_prompt_tokens", "1 to 64"),
        ("classifier", "/classify", {"truncate_prompt_tokens": 1}, "truncate_prompt_tokens", "_tokens is 1, but the"),
        ("classifier", "/classify", {"split": True}, "split", "can't be joined"),
        ("classifier", "/classify", {"split": 1}, "split", "true or false"),
        ("classifier", "/classify", {"prompt_name": "none"}, "prompt_name", "unknown prompt"),
        ("classifier", "/pooling", {"embed_dtype": "int8"}, "embed_dtype", "for vectors"),
        ("embedder", "/pooling", {"max_active_dims": 1}, "max_active_dims", "means nothing to 'embed'"),
        ("embedder", "/pooling", {"return_tokens": True}, "return_tokens", "goes with 'sparse'"),
        ("embedder", "/pooling", {"special_tokens_mask": True}, "special_tokens_mask", "goes with 'token_embed'"),
        ("embedder", "/pooling", {"endianness": "big"}, "endianness", "base64"),
        ("embedder", "/pooling", {"encoding_format": "hex"}, "encoding_format", "'bytes_only'"),
        ("embedder", "/pooling", {"embed_dtype": "fp8_e4m3"}, "embed_dtype", "'bfloat16'"),
        ("embedder", "/pooling", {"embed_dtype": "binary", "dimensions": 12}, "embed_dtype", "multiple of 8"),
        ("embedder", "/pooling", {"dimensions": 33}, "dimensions", "1 to 32"),
        (
            "embedder",
            "/pooling",
            {"outputs": ["embed", "token_embed"], "encoding_format": "bytes_only"},
            "encoding_format",
            "send 'bytes'",
        ),
        (
            "tagger",
            "/pooling",
            {"special_tokens_mask": True, "encoding_format": "bytes_only"},
            "special_tokens_mask",
            "send 'bytes'",
        ),
        ("splade", "/pooling", {"task": "sparse", "encoding_format": "bytes"}, "encoding_format", "dense"),
        ("splade", "/pooling", {"task": "sparse", "max_active_dims": 0}, "max_active_dims", "at least 1"),
        ("tagger", "/token_classify", {"aggregation": "best"}, "aggregation", "'average'"),
        ("tagger", "/token_classify", {"aggregation": "max", "input": ["a", [5]]}, "aggregation", r"input[1]"),
        ("trio", "/token_classify", {"aggregation": "simple"}, "aggregation", "no labels"),
        (
            "tagger",
            "/token_classify",
            {"late_chunking_params": {"chunk_size": 2}},
            "late_chunking_params.chunk_size",
            "",
        ),
    ],
)
def test_what_is_refused(request, name, path, body, param, words):
    error = request.getfixturevalue(name).refuse(path, **{"input": "secret words", **body})
    assert error["param"] == param
    assert words in error["message"]
    assert "secret" not in error["message"]
    assert error["type"] == "invalid_request_error"


def test_models_tell_what_they_can_do(classifier, tagger, splade, embedder):
    (card,) = classifier.client.get("/v1/models").json()["data"]
    assert (card["tasks"], card["default_task"]) == (["classify"], "classify")
    assert card["labels"] == ["calm", "wild", "deep"]
    assert (card["dimension"], card["sparse_dimension"]) == (0, 0)
    (card,) = splade.client.get("/v1/models").json()["data"]
    assert card["tasks"] == ["embed", "token_embed", "sparse"]
    assert (card["dimension"], card["sparse_dimension"]) == (32, 127)
    for served in (classifier, tagger, splade, embedder):
        abilities = served.client.get("/info").json()["abilities"]
        assert abilities["default_task"] == served.model.info.abilities.default_task
        assert abilities["labels"] == list(served.model.info.abilities.labels)
        assert abilities["vocab_size"] == 127


def test_a_real_classifier(serve_real):
    served = serve_real("wn-reranker-tiny")
    texts = ["A dam holds water back.", "", "word " * 600]
    reply = served.post("/classify", input=texts)
    expected = served.model.classify(texts).scores
    np.testing.assert_array_equal(numbers([entry["probs"] for entry in reply["data"]]), expected)


def test_a_real_tagger(serve_real):
    served = serve_real("rampart-pii-ner")
    text = "Ms Anna Smith of 12 Mill Lane, Bristol: anna@example.com"
    (entry,) = served.post("/token_classify", input=text, aggregation="first")["data"]
    (expected,) = served.model.token_classify(text, aggregation="first").entities
    assert entry["entities"] == [entity._asdict() for entity in expected]
    assert {entity["label"]: entity["text"] for entity in entry["entities"]}["GIVEN_NAME"] == "Anna"


def test_a_real_sparse_encoder(serve_real):
    served = serve_real("splade-tiny")
    expected = served.model.encode(["a cat on a mat"], outputs=["embed", "sparse"])
    (entry,) = served.post("/pooling", input=["a cat on a mat"], outputs=["embed", "sparse"], return_tokens=True)[
        "data"
    ]
    np.testing.assert_array_equal(numbers(entry["data"]["embed"]), expected["embed"][0])
    assert entry["data"]["sparse"]["indices"] == expected["sparse"][0].ids.tolist()
    assert "cat" in entry["data"]["sparse"]["tokens"]
