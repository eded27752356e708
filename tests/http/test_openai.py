"""The OpenAI routes, driven by the real openai and langchain-openai packages against a live server."""

import asyncio
from collections.abc import Iterator

import httpx
import numpy as np
import openai
import pytest
from langchain_openai import OpenAIEmbeddings

from forebay.core.config import ServerOptions
from forebay.core.request import Lane
from tests.support.fake_engine import FakeEngine, vector
from tests.support.live_server import serving

LONG = "word " * 20


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def url(engine: FakeEngine) -> Iterator[str]:
    with serving(engine, ServerOptions(api_key="key", max_items=3000)) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0) as client:
        yield client


def assert_vectors(found: object, items: list[object], **options: object) -> None:
    expected = [vector(item, **options) for item in items]  # type: ignore[arg-type]
    np.testing.assert_array_equal(np.array(found, dtype=np.float32), np.array(expected))


@pytest.mark.parametrize("encoding", [openai.NOT_GIVEN, "float", "base64"])
@pytest.mark.parametrize(
    ("given", "items"),
    [
        ("hello world", ["hello world"]),
        ("", [""]),
        (["hello", "", "hello"], ["hello", "", "hello"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([[1, 2], "hello"], [[1, 2], "hello"]),
    ],
)
def test_every_form_of_input_and_encoding(client, given, items, encoding):
    reply = client.embeddings.create(model="fake/model", input=given, encoding_format=encoding)
    if encoding == "base64":  # asked for by name, the package leaves it as it is
        import base64

        found = [np.frombuffer(base64.b64decode(entry.embedding), "<f4") for entry in reply.data]
    else:
        found = [entry.embedding for entry in reply.data]
    assert_vectors(found, items)
    assert [entry.index for entry in reply.data] == list(range(len(items)))
    assert (reply.object, reply.model) == ("list", "fake/model")
    expected = sum(len(item.split()) + 2 if isinstance(item, str) else len(item) for item in items)
    assert reply.usage.prompt_tokens == reply.usage.total_tokens == expected


def test_order_is_kept_in_a_large_request(client, engine):
    texts = [f"text {number}" for number in range(2048)]
    reply = client.embeddings.create(model="fake/model", input=texts)
    assert_vectors([entry.embedding for entry in reply.data], texts)
    assert engine.requests[-1].lane is Lane.BULK


def test_dimensions(client):
    reply = client.embeddings.create(model="fake/model", input="hello", dimensions=4)
    assert_vectors([reply.data[0].embedding], ["hello"], dimensions=4)


def test_extra_fields_reach_the_engine(client, engine):
    extra = {
        "prompt_name": "query",
        "input_type": "query",
        "truncate": True,
        "truncate_prompt_tokens": 8,
        "truncation_side": "left",
        "use_activation": False,
        "add_special_tokens": False,
        "priority": 3,
        "unheard_of": {"a": 1},
    }
    client.embeddings.create(model="fake/model", input="hello", user="me", extra_body=extra)
    request = engine.requests[-1]
    assert (request.text.prompt_name, request.text.input_type) == ("query", "query")
    assert (request.text.truncate, request.text.max_tokens, request.text.truncation_side) == (True, 8, "left")
    assert (request.text.add_special_tokens, request.pooling.use_activation) == (False, False)
    assert request.lane is Lane.INTERACTIVE


def test_null_in_every_optional_field_means_the_default(client, engine):
    client.embeddings.create(model="fake/model", input="hello", encoding_format="float")
    plain = engine.requests[-1]
    fields = ["dimensions", "user", "prompt", "prompt_name", "input_type", "truncate", "truncate_prompt_tokens"]
    fields += ["truncation_side", "use_activation", "add_special_tokens", "priority", "model", "encoding_format"]
    client.embeddings.create(model="fake/model", input="hello", extra_body=dict.fromkeys(fields))
    assert engine.requests[-1].text == plain.text
    assert engine.requests[-1].pooling == plain.pooling


def test_minus_one_asks_for_the_models_limit(client, engine):
    client.embeddings.create(model="fake/model", input="hello", extra_body={"truncate_prompt_tokens": -1})
    assert engine.requests[-1].text.max_tokens is None


def test_truncation_is_told_only_where_it_happened(url):
    headers = {"Authorization": "Bearer key"}
    reply = httpx.post(f"{url}/embeddings", json={"input": ["a", LONG, "b", LONG]}, headers=headers).json()
    assert reply["truncated"] == [1, 3]
    assert reply["usage"]["prompt_tokens"] == 3 + 16 + 3 + 16
    assert "truncated" not in httpx.post(f"{url}/embeddings", json={"input": ["a", "b"]}, headers=headers).json()


@pytest.mark.parametrize(
    ("asked", "kind", "code", "param"),
    [
        ({"model": "text-embedding-3-small"}, openai.NotFoundError, "model_not_found", "model"),
        ({"dimensions": 9}, openai.BadRequestError, "invalid_request", "dimensions"),
        ({"dimensions": 0}, openai.BadRequestError, "invalid_request", "dimensions"),
        ({"input": []}, openai.BadRequestError, "invalid_request", "input"),
        ({"input": ["a", None]}, openai.BadRequestError, "invalid_request", "input[1]"),
        ({"input": [[1, 1000]]}, openai.BadRequestError, "invalid_request", "input[0]"),
        ({"input": [[-1]]}, openai.BadRequestError, "invalid_request", "input[0]"),
        ({"encoding_format": "hex"}, openai.BadRequestError, "invalid_request", "encoding_format"),
        ({"input": ["x"] * 3001}, openai.BadRequestError, "too_many_items", "input"),
        (
            {"input": ["a", LONG], "extra_body": {"truncate": False}},
            openai.BadRequestError,
            "context_length_exceeded",
            "input[1]",
        ),
        (
            {"extra_body": {"truncate_prompt_tokens": 17}},
            openai.BadRequestError,
            "invalid_request",
            "truncate_prompt_tokens",
        ),
        ({"extra_body": {"prompt_name": "none"}}, openai.BadRequestError, "invalid_request", "prompt_name"),
        ({"input": ["fine", "BOOM"]}, openai.InternalServerError, "item_failed", "input[1]"),
        ({"input": ["fine", "NAN"]}, openai.InternalServerError, "item_failed", "input[1]"),
        ({"input": "CRASH"}, openai.InternalServerError, "internal_error", None),
    ],
)
def test_errors_arrive_as_the_packages_own(client, asked, kind, code, param):
    with pytest.raises(kind) as caught:
        client.embeddings.create(**{"model": "fake/model", "input": "x", **asked})
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.type in ("invalid_request_error", "not_found_error", "server_error")
    assert caught.value.request_id
    assert caught.value.body["message"] == caught.value.response.json()["detail"]  # type: ignore[index]


def test_a_wrong_key(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            client.embeddings.create(model="fake/model", input="x")
        assert caught.value.code == "invalid_api_key"


def test_overload_is_retried_by_the_package(url, engine, monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    engine.overloaded = True
    try:
        with (
            openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=1) as client,
            pytest.raises(openai.RateLimitError) as caught,
        ):
            client.embeddings.create(model="fake/model", input="x")
        assert caught.value.code == "overloaded"
        assert caught.value.response.headers["retry-after"] == "3"
        assert waits == [3.0]
    finally:
        engine.overloaded = False


def test_client_errors_are_not_retried(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=2) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model="fake/model", input=[])
        assert caught.value.response.headers["x-should-retry"] == "false"


def test_models(client):
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("fake/model", "model", "forebay")
    assert model.created > 0
    facts = model.model_dump()
    assert (facts["dimension"], facts["max_model_len"], facts["tasks"]) == (8, 16, ["embed"])
    assert facts["prompts"] == {"query": "query: "}
    assert client.models.retrieve("fake/model") == model  # sent as fake%2Fmodel
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("fake/other")
    assert caught.value.code == "model_not_found"


def test_the_async_client(url):
    async def embed() -> list[object]:
        async with openai.AsyncOpenAI(base_url=url, api_key="key", max_retries=0) as client:  # without /v1
            replies = await asyncio.gather(
                *[client.embeddings.create(model="fake/model", input=f"text {number}") for number in range(20)]
            )
            with pytest.raises(openai.BadRequestError):
                await client.embeddings.create(model="fake/model", input=[])
        return [reply.data[0].embedding for reply in replies]

    assert_vectors(asyncio.run(embed()), [f"text {number}" for number in range(20)])


def test_langchain(url):
    options = {
        "model": "fake/model",
        "base_url": f"{url}/v1",
        "api_key": "key",
        "check_embedding_ctx_length": False,
    }
    texts = [f"text {number}" for number in range(1100)]
    with openai.DefaultHttpxClient() as http:
        embeddings = OpenAIEmbeddings(**options, http_client=http)
        assert_vectors(embeddings.embed_documents(texts), texts)
        assert_vectors([embeddings.embed_query("hello")], ["hello"])

    async def embed() -> list[list[float]]:
        async with openai.DefaultAsyncHttpxClient() as http:
            return await OpenAIEmbeddings(**options, http_async_client=http).aembed_documents(["a", "b"])

    assert_vectors(asyncio.run(embed()), ["a", "b"])


def test_langchains_foreign_ids_are_refused_with_the_remedy(url):
    headers = {"Authorization": "Bearer key"}
    reply = httpx.post(f"{url}/v1/embeddings", json={"input": [[57668, 53901]]}, headers=headers)
    assert reply.status_code == 400
    assert "check_embedding_ctx_length=False" in reply.json()["error"]["message"]
