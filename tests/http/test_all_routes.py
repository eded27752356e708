"""What holds of every dialect's every route: its paths, and that no body makes it fail or tire."""

import json

import pytest

from forebay.server.dialects import DIALECTS
from forebay.server.dialects.tei import TEI
from tests.server.test_robustness import BODIES

PATHS = [operation.path for dialect in DIALECTS for operation in dialect.operations]
NAMES = {operation.path: b'"inputs"' for operation in TEI.operations} | {"/decode": b'"ids"'}
"""What the items are called where they are not called ``input``."""
GARBAGE = [5, "text", [], {}, [{}], True, -1, 1.5, {"chunk_size": None}, [[]], "x" * 10_000, 10**30, None]


def test_no_two_dialects_claim_one_path():
    paths = [path for dialect in DIALECTS for path in dialect.routes()]
    assert len(paths) == len(set(paths))


@pytest.mark.parametrize("path", PATHS)
def test_bodies(trio, path):
    for name, (body, _) in BODIES.items():
        content = body.replace(b'"input"', NAMES[path]) if path in NAMES else body
        reply = trio.client.post(path, content=content)
        assert reply.status_code in (200, 400, 404), name
        assert reply.status_code != 200 or path == "/tokenize" or b"null" not in reply.content, name
    assert trio.client.get("/health").status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_no_value_of_any_field_makes_it_fail(trio, path):
    fields = ["input", "inputs", "model", "dimensions", "output_dimension", "truncate_dim", "use_activation"]
    fields += ["late_chunking_params", "max_active_dims", "prompt", "prompt_name", "input_type", "truncate"]
    fields += ["truncate_prompt_tokens", "truncation_side", "truncation_direction", "add_special_tokens", "task"]
    fields += ["outputs", "encoding_format", "embed_dtype", "endianness", "special_tokens_mask", "return_tokens"]
    fields += ["top_k", "aggregation", "user", "messages", "normalize", "raw_scores", "ids", "parameters"]
    for field in fields:
        for value in GARBAGE:
            reply = trio.client.post(path, json={"input": "a", "inputs": "a", "ids": [5], field: value})
            assert reply.status_code in (200, 400, 404), (field, value)
            assert len(reply.headers.get("metadata", "")) <= 4096
            assert reply.status_code == 200 or len(reply.content) < 1500, (field, value)


SCORED = [
    ("/score", {"queries": "a", "documents": ["a", "b"]}),
    ("/rerank", {"query": "a", "documents": ["a", "b"]}),
    ("/rerank", {"query": "a", "texts": ["a", "b"]}),
]
HOSTILE = [*GARBAGE, [[10**400]], [[1e300]], {"data": "AAAA", "shape": [1, 1]}, {"content": [{}]}, [None], ["\ud800"]]


@pytest.mark.parametrize(("path", "base"), SCORED)
def test_no_value_of_a_field_of_scoring_makes_it_fail(embedder, path, base):
    client = embedder.client
    fields = ["query", "queries", "documents", "items", "text_1", "data_2", "texts", "model", "top_n", "top_k"]
    fields += ["return_documents", "return_text", "rank_fields", "raw_scores", "use_activation", "prompt_name"]
    fields += ["max_tokens_per_query", "max_tokens_per_doc", "instruction", "truncate", "truncation", "prompt"]
    fields += ["truncate_prompt_tokens", "truncation_side", "truncation_direction"]
    for field in fields:
        for value in HOSTILE:
            reply = client.post(path, content=json.dumps({**base, field: value}))
            assert reply.status_code in (200, 400, 404), (field, value)
            assert reply.status_code == 200 or len(reply.content) < 2000, (field, value)
    assert client.get("/health").status_code == 200
