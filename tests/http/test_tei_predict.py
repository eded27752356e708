"""Scores of texts and pairs, and what the tokenizer makes of a text, in the words of text-embeddings-inference."""

import numpy as np
import pytest

from forebay.core.params import PoolingParams
from forebay.core.request import Request
from forebay.core.tasks import Task

LONG = "water " * 200


def scores_of(served, firsts, seconds=None, use_activation=None):
    """What the engine makes of texts or pairs, [n, labels]."""
    pooling = PoolingParams((Task.CLASSIFY,), use_activation=use_activation)
    return np.stack(served.model.engine.submit(Request(firsts, pooling, seconds=seconds)).result().rows)


def unpack(entries, labels):
    """The scores in the order of the labels; they must come best first."""
    assert [set(entry) for entry in entries] == [{"score", "label"}] * len(labels)
    found = [entry["score"] for entry in entries]
    assert found == sorted(found, reverse=True)
    by_label = {entry["label"]: entry["score"] for entry in entries}
    return np.array([by_label[label] for label in labels], np.float32)


@pytest.fixture(scope="module")
def labels(classifier):
    return classifier.model.info.abilities.labels


@pytest.mark.parametrize("path", ["/predict", "/v1/predict"])
def test_one_text_is_answered_by_one_list(classifier, labels, path):
    for inputs in ("the river", ["the river"]):
        found = unpack(classifier.post(path, inputs=inputs), labels)
        np.testing.assert_array_equal(found, scores_of(classifier, ["the river"])[0])


def test_two_strings_are_a_pair(classifier, labels):
    found = unpack(classifier.post("/predict", inputs=["the river", "a mill"]), labels)
    np.testing.assert_allclose(found, scores_of(classifier, ["the river"], ["a mill"])[0], atol=1e-6)
    assert np.abs(found - scores_of(classifier, ["the river"])[0]).max() > 1e-3


def test_lists_of_texts_and_of_pairs(classifier, labels):
    texts = ["the river", "", "a mill", LONG]
    found = [unpack(entries, labels) for entries in classifier.post("/predict", inputs=[[text] for text in texts])]
    np.testing.assert_allclose(found, scores_of(classifier, texts), atol=1e-6)
    seconds = ["a", LONG, "b c", "d"]
    pairs = [list(pair) for pair in zip(texts, seconds, strict=True)]
    found = [unpack(entries, labels) for entries in classifier.post("/predict", inputs=pairs)]
    np.testing.assert_allclose(found, scores_of(classifier, texts, seconds), atol=1e-6)
    assert len(classifier.post("/predict", inputs=[["one"]])) == 1


def test_raw_scores_are_logits(classifier, labels):
    found = unpack(classifier.post("/predict", inputs="the river", raw_scores=True), labels)
    np.testing.assert_array_equal(found, scores_of(classifier, ["the river"], use_activation=False)[0])
    fields = dict.fromkeys(("raw_scores", "truncate", "truncation_direction", "prompt_name"))
    assert classifier.post("/predict", inputs="a", **fields) == classifier.post("/predict", inputs="a")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "'inputs' must be a string, a pair of strings"),
        ({"inputs": 5}, "got an integer"),
        ({"inputs": {}}, "got an object"),
        ({"inputs": []}, "'inputs' is an empty list"),
        ({"inputs": ["a", "b", "c"]}, "'inputs' is a list of 3 strings, but such a list is one text or one pair"),
        ({"inputs": [["a"], ["b", "c", "d"]]}, "'inputs[1]' is a list of 3 strings"),
        ({"inputs": [["a"], ["b", "c"]]}, "1 pairs and 1 single texts"),
        ({"inputs": [[]]}, "'inputs[0]' must be a string or a list of one or two; got an empty list"),
        ({"inputs": [["a", 5]]}, "got a list of a string, an integer"),
        ({"inputs": ["a", None]}, "'inputs[1]' must be"),
        ({"inputs": [["a"], [LONG]], "truncate": False}, "inputs[1] has"),
        ({"inputs": [["a", "b"], ["c", LONG]], "truncate": False}, "inputs[1]: the pair has"),
        ({"inputs": [["a"]] * 5000}, "'inputs' has 5000 items"),
        ({"inputs": "a", "raw_scores": "yes"}, "'raw_scores' must be true or false"),
    ],
)
def test_what_is_refused(classifier, body, words):
    reply = classifier.client.post("/predict", json=body)
    assert (reply.status_code, set(reply.json())) == (400, {"error", "error_type"})
    assert words in reply.json()["error"]


def test_a_real_reranker_predicts_pairs(serve_real):
    served = serve_real("wn-reranker-tiny")
    (entry,) = served.post("/predict", inputs=["a cat", "a small feline"])
    expected = served.model.score("a cat", "a small feline").scores[0]
    assert (entry["label"], np.float32(entry["score"])) == ("LABEL_0", pytest.approx(expected, abs=1e-6))


TEXT = "The rivér 北京 😀 flows"


def test_tokens_of_texts(serve_real):
    served = serve_real("all-MiniLM-L6-v2")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(served.model.info.path)
    expected = tokenizer([TEXT, "", "water " * 2000], return_offsets_mapping=True, truncation=False, verbose=False)
    found = served.post("/tokenize", inputs=[TEXT, "", "water " * 2000])
    assert [[token["id"] for token in tokens] for tokens in found] == expected["input_ids"]
    for text, tokens, offsets in zip((TEXT, "", "water " * 2000), found, expected["offset_mapping"], strict=True):
        for token, (start, stop) in zip(tokens, offsets, strict=True):
            if token["special"]:
                assert (token["start"], token["stop"]) == (None, None)
                assert token["text"] in ("[CLS]", "[SEP]")
            else:
                assert (token["start"], token["stop"], token["text"]) == (start, stop, text[start:stop])
    (bare,) = served.post("/tokenize", inputs=TEXT, add_special_tokens=False)
    assert bare == found[0][1:-1]


def test_tokens_behind_a_prompt(embedder):
    (plain,) = embedder.post("/tokenize", inputs="the river")
    (tokens,) = embedder.post("/tokenize", inputs="the river", prompt_name="query")
    assert [token for token in tokens if not token["special"]] == [token for token in plain if not token["special"]]
    assert len(tokens) > len(plain)
    counted = embedder.post("/v1/embeddings", input="the river", prompt_name="query")["usage"]["prompt_tokens"]
    assert len(tokens) == counted


def test_texts_of_tokens(serve_real):
    served = serve_real("all-MiniLM-L6-v2")
    (tokens,) = served.post("/tokenize", inputs="the river flows")
    ids = [token["id"] for token in tokens]
    assert served.post("/decode", ids=ids) == ["the river flows"]
    assert served.post("/decode", ids=[ids, [ids[1]]]) == ["the river flows", "the"]
    assert served.post("/decode", ids=ids, skip_special_tokens=False) == ["[CLS] the river flows [SEP]"]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/tokenize", {}, "'inputs' must be a string or a list of strings; got null"),
        ("/tokenize", {"inputs": []}, "'inputs' is an empty list"),
        ("/tokenize", {"inputs": ["a", 5]}, "'inputs[1]' must be a string; got an integer"),
        ("/tokenize", {"inputs": "a", "prompt_name": "none"}, "unknown prompt"),
        ("/tokenize", {"inputs": ["a" * 600_000] * 2}, "'inputs' has 1200000 characters, but at most 1048576"),
        ("/tokenize", {"inputs": ["a"] * 5000}, "'inputs' has 5000 items"),
        ("/decode", {}, "'ids' must be"),
        ("/decode", {"ids": "a"}, "'ids[0]' must be a list of token ids; got a string"),
        ("/decode", {"ids": [[5], [10**6]]}, "ids[1] holds a token id outside this model's vocabulary"),
        ("/decode", {"ids": [-1]}, "ids[0] holds a token id outside"),
        ("/decode", {"ids": [[1.5]]}, "'ids[0]' must hold token ids"),
    ],
)
def test_what_the_tokenizer_is_not_asked(embedder, path, body, words):
    reply = embedder.client.post(path, json=body)
    assert (reply.status_code, set(reply.json())) == (400, {"error", "error_type"})
    assert words in reply.json()["error"]


@pytest.mark.parametrize(
    ("name", "model_type"),
    [
        ("embedder", {"embedding": {"pooling": "mean"}}),
        (
            "classifier",
            {
                "classifier": {
                    "id2label": {"0": "calm", "1": "wild", "2": "deep"},
                    "label2id": {"calm": "0", "wild": "1", "deep": "2"},
                }
            },
        ),
    ],
)
def test_info_has_the_names_that_clients_look_for(request, name, model_type):
    served = request.getfixturevalue(name)
    info = served.client.get("/info").json()
    assert info["model_type"] == model_type
    assert info["model_id"] == served.model.info.name
    assert info["max_input_length"] == served.model.info.abilities.max_len
    assert (info["max_client_batch_size"], info["model_dtype"], info["auto_truncate"]) == (4096, "float32", True)
