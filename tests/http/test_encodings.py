"""``/v1/embeddings`` beyond OpenAI's own fields: types, byte orders, raw bytes, token matrices and late chunking."""

import base64
import json
import sys

import httpx
import numpy as np
import openai
import pytest
import torch

TEXTS = ["The river flows over stone.", "", "a mill", "water " * 200]
DTYPES = ["float32", "float16", "bfloat16", "int8", "uint8", "binary", "ubinary"]


def numbers(value: object) -> np.ndarray:
    return np.array(value, dtype=np.float32)


def cast(vectors: np.ndarray, dtype: str) -> np.ndarray:
    """The formulas of the documentation, by other means than the server's."""
    match dtype:
        case "float32" | "float16":
            return vectors.astype(dtype)
        case "bfloat16":
            return torch.from_numpy(vectors).bfloat16().view(torch.int16).numpy().view(np.uint16)
        case "int8":
            return np.array([[round(float(v) * 127) for v in row] for row in vectors.astype(float)], np.int8)
        case "uint8":
            return (cast(vectors, "int8").astype(int) + 128).astype(np.uint8)
        case "ubinary":
            bits = (vectors > 0).reshape(len(vectors), -1, 8) * (1 << np.arange(7, -1, -1))
            return bits.sum(2).astype(np.uint8)
    return (cast(vectors, "ubinary").astype(int) - 128).astype(np.int8)


def unpack(reply: httpx.Response) -> tuple[dict, list[np.ndarray]]:
    meta = json.loads(reply.content[int(reply.headers["metadata-start"]) :])
    parts = [reply.content[entry["start"] : entry["end"]] for entry in meta["data"]]
    shapes = [entry["shape"] for entry in meta["data"]]
    return meta, [np.frombuffer(part, meta["dtype"]).reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def to_native(array: np.ndarray) -> np.ndarray:
    return array.astype(array.dtype.newbyteorder("="))


@pytest.mark.parametrize("endianness", [None, "native", "little", "big"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("encoding", ["base64", "bytes", "bytes_only"])
def test_every_type_in_every_byte_order(embedder, encoding, dtype, endianness):
    vectors = embedder.model.embed(TEXTS).embeddings
    expected = cast(vectors, dtype)
    body = {"input": TEXTS, "encoding_format": encoding, "embed_dtype": dtype, "endianness": endianness}
    reply = embedder.client.post("/v1/embeddings", json=body)
    assert reply.status_code == 200
    order = {"native": sys.byteorder, None: "little"}.get(endianness, endianness)
    kind = expected.dtype.newbyteorder(order)
    if encoding == "bytes":
        meta, found = unpack(reply)
        assert {entry["embed_dtype"] for entry in meta["data"]} == {dtype}
        assert {entry["endianness"] for entry in meta["data"]} == {order}
        assert meta["truncated"] == [3]
    elif encoding == "bytes_only":
        found = list(np.frombuffer(reply.content, kind).reshape(expected.shape))
    else:
        data = reply.json()["data"]
        found = [np.frombuffer(base64.b64decode(entry["embedding"]), kind) for entry in data]
        assert [entry["shape"] for entry in data] == [[expected.shape[1]]] * 4
    np.testing.assert_array_equal(to_native(np.stack(found)), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_types_as_numbers(embedder, dtype):
    vectors = embedder.model.embed(TEXTS).embeddings
    found = [entry["embedding"] for entry in embedder.post("/embeddings", input=TEXTS, embed_dtype=dtype)["data"]]
    if dtype == "bfloat16":
        np.testing.assert_array_equal(numbers(found), torch.from_numpy(vectors).bfloat16().float().numpy())
    else:
        expected = cast(vectors, dtype)
        np.testing.assert_array_equal(np.array(found, expected.dtype), expected)


def test_as_vllms_own_client_reads_it(embedder):
    """Offsets and types from the ``metadata`` header, by the fields of its MetadataItem."""
    reply = embedder.client.post("/v1/embeddings", json={"input": TEXTS, "encoding_format": "bytes"})
    meta = json.loads(reply.headers["metadata"])
    fields = {"index", "embed_dtype", "endianness", "start", "end", "shape"}
    assert all(set(item) == fields for item in meta["data"])
    assert meta["usage"]["prompt_tokens"] > 0
    found = [
        torch.frombuffer(bytearray(reply.content[item["start"] : item["end"]]), dtype=torch.float32).view(item["shape"])
        for item in meta["data"]
    ]
    np.testing.assert_array_equal(torch.stack(found).numpy(), embedder.model.embed(TEXTS).embeddings)


def test_a_large_answer_keeps_its_headers_small(embedder):
    texts = [f"{number} river" for number in range(500)]
    reply = embedder.client.post("/embeddings", json={"input": texts, "encoding_format": "bytes"})
    assert sum(len(name) + len(value) for name, value in reply.headers.items()) < 1000
    _, found = unpack(reply)
    np.testing.assert_array_equal(np.stack(found), embedder.model.embed(texts).embeddings)


@pytest.mark.parametrize("encoding", [openai.NOT_GIVEN, "float"])
def test_the_openai_package_still_reads_it(embedder, encoding):
    with openai.OpenAI(base_url=f"{embedder.client.base_url}/v1", api_key="none", max_retries=0) as api:
        reply = api.embeddings.create(model="default", input=TEXTS, encoding_format=encoding)
    found = numbers([entry.embedding for entry in reply.data])
    np.testing.assert_array_equal(found, embedder.model.embed(TEXTS).embeddings)
    assert reply.model_dump()["id"].startswith("embd-")


def test_the_two_ways_to_shorten(embedder):
    full = embedder.model.embed("a mill").embeddings[0]
    (sliced,) = embedder.post("/embeddings", input="a mill", truncate_dim=8)["data"]
    np.testing.assert_array_equal(numbers(sliced["embedding"]), full[:8])
    (unit,) = embedder.post("/embeddings", input="a mill", dimensions=8)["data"]
    np.testing.assert_array_equal(
        numbers(unit["embedding"]), embedder.model.embed("a mill", dimensions=8).embeddings[0]
    )
    assert np.linalg.norm(numbers(unit["embedding"])) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("encoding", ["float", "base64", "bytes"])
def test_token_vectors(embedder, encoding):
    expected = embedder.model.token_embed(TEXTS, dimensions=16).matrices
    body = {"input": TEXTS, "task": "token_embed", "dimensions": 16, "encoding_format": encoding}
    reply = embedder.client.post("/v1/embeddings", json=body)
    if encoding == "bytes":
        found = unpack(reply)[1]
    elif encoding == "float":
        found = [numbers(entry["embedding"]) for entry in reply.json()["data"]]
    else:
        found = [
            np.frombuffer(base64.b64decode(entry["embedding"]), "<f4").reshape(entry["shape"])
            for entry in reply.json()["data"]
        ]
    for matrix, own in zip(found, expected, strict=True):
        np.testing.assert_array_equal(matrix, own)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling"])
def test_late_chunking(embedder, path):
    items = [*TEXTS, [5, 6, 7, 8]]
    key = {"/pooling": "data"}.get(path, "embedding")
    reply = embedder.post(path, input=items, task="token_embed", late_chunking_params={"chunk_size": 3})
    output = embedder.model.token_embed(TEXTS, chunk_size=3)
    for entry, matrix, spans, length in zip(
        reply["data"], output.matrices, output.spans, output.num_tokens, strict=False
    ):
        np.testing.assert_allclose(numbers(entry[key]), matrix, atol=1e-6)
        told = entry["late_chunking"]
        assert (told["chunk_size"], told["input_tokens"], told["strategy"]) == (3, length, "fixed_tokens")
        assert [chunk["token_range"] for chunk in told["chunks"]] == [
            [first, min(first + 3, length)] for first in range(0, length, 3)
        ]
        assert [chunk["char_range"] or [0, 0] for chunk in told["chunks"] if chunk["char_range"]] == [
            span for span in spans.tolist() if span[1] > span[0]
        ]
    assert reply["data"][0]["late_chunking"]["chunks"][0]["char_range"] == [0, len("The river")]
    assert reply["data"][1]["late_chunking"]["chunks"] == [{"token_range": [0, 2], "char_range": None}]
    assert all(chunk["char_range"] is None for chunk in reply["data"][4]["late_chunking"]["chunks"])


def test_late_chunking_in_bytes(embedder):
    body = {"input": TEXTS, "task": "token_embed", "late_chunking_params": {"chunk_size": 4}}
    meta, found = unpack(embedder.client.post("/embeddings", json={**body, "encoding_format": "bytes"}))
    for entry, matrix in zip(meta["data"], found, strict=True):
        assert len(entry["late_chunking"]["chunks"]) == len(matrix)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"task": "classify"}, "task", "POST /classify"),
        ({"task": "sparse"}, "task", "POST /pooling"),
        ({"task": "encode"}, "task", "'token_embed'"),
        ({"task": "embed&token_classify"}, "task", "POST /pooling"),
        ({"task": 5}, "task", "a string"),
        ({"late_chunking_params": {"chunk_size": 4}}, "late_chunking_params.chunk_size", "means nothing to 'embed'"),
        ({"task": "token_embed", "late_chunking_params": {"chunk_size": 0}}, "late_chunking_params.chunk_size", "1"),
        ({"task": "token_embed", "late_chunking_params": {}}, "late_chunking_params.chunk_size", "missing"),
        ({"task": "token_embed", "late_chunking_params": 4}, "late_chunking_params", "an object"),
        ({"task": "token_embed", "late_chunking_params": {"chunk_size": 1.5}}, "late_chunking_params.chunk_size", ""),
        ({"task": "token_embed", "truncate_dim": 8}, "truncate_dim", "means nothing to 'token_embed'"),
        ({"dimensions": 8, "truncate_dim": 8}, "truncate_dim", "exclude each other"),
        ({"truncate_dim": 0}, "truncate_dim", "1 to 32"),
        ({"truncate_dim": "8"}, "truncate_dim", "an integer"),
        ({"max_active_dims": 8}, "max_active_dims", "means nothing"),
        ({"embed_dtype": "int8", "use_activation": False}, "embed_dtype", "use_activation"),
        ({"embed_dtype": "binary", "truncate_dim": 4}, "embed_dtype", "multiple of 8"),
        ({"embed_dtype": "ubinary", "task": "token_embed", "dimensions": 4}, "embed_dtype", "multiple of 8"),
        ({"embed_dtype": "float8"}, "embed_dtype", "'float32'"),
        ({"endianness": "middle", "encoding_format": "bytes"}, "endianness", "'native'"),
        ({"endianness": "little"}, "endianness", "leave it out"),
        ({"encoding_format": "Bytes"}, "encoding_format", "'bytes'"),
    ],
)
def test_what_is_refused(embedder, body, param, words):
    error = embedder.refuse("/v1/embeddings", **{"input": "secret words", **body})
    assert error["param"] == param
    assert words in error["message"]
    assert "secret" not in error["message"]


def test_a_model_without_vectors_says_where_to_go(classifier):
    error = classifier.refuse("/v1/embeddings", input="a")
    assert error["param"] == "model"
    assert "POST /classify" in error["message"]


def test_the_built_in_model(serve_real):
    served = serve_real("default")
    vectors = served.model.embed(TEXTS).embeddings
    reply = served.client.post("/v1/embeddings", json={"input": TEXTS, "encoding_format": "bytes"})
    np.testing.assert_array_equal(np.stack(unpack(reply)[1]), vectors)
    bits = served.client.post(
        "/v1/embeddings", json={"input": TEXTS, "encoding_format": "bytes", "embed_dtype": "ubinary"}
    )
    np.testing.assert_array_equal(np.stack(unpack(bits)[1]), np.packbits(vectors > 0, axis=1))
    matrices = served.post("/pooling", input=TEXTS, task="token_embed")["data"]
    for entry, matrix in zip(matrices, served.model.token_embed(TEXTS).matrices, strict=True):
        np.testing.assert_array_equal(numbers(entry["data"]), matrix)
