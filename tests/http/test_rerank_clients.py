"""The routes of reranking, driven by the real packages of those who use them, against a live cross-encoder."""

import asyncio
import os
import warnings
from collections.abc import Iterator

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # read on import: it would fetch prices

with warnings.catch_warnings():  # of the packages' own making, at import
    warnings.simplefilter("ignore")
    import cohere
    import litellm
    import voyageai
    from langchain_cohere import CohereRerank
    from voyageai.error import AuthenticationError, InvalidRequestError

import numpy as np
import pytest

from forebay import PoolingModel
from forebay.core.config import ServerOptions
from tests.support import heads
from tests.support.live_server import serving

pytestmark = pytest.mark.filterwarnings("ignore")  # the packages' own

QUERY = "where does the river go"
DOCUMENTS = ["The river flows over stone.", "A mill.", "The river flows over stone.", "", "Bread is baked."]
KEY = "key"


@pytest.fixture(scope="module")
def model(store) -> Iterator[PoolingModel]:
    def make(place):
        return heads.with_head(place, "bert", "sequence", num_labels=1)

    with PoolingModel(str(store.folder("http-reranker", make))) as model:
        yield model


@pytest.fixture(scope="module")
def url(model) -> Iterator[str]:
    with serving(model.engine, ServerOptions(api_key=KEY, max_items=1000)) as url:
        yield url


@pytest.fixture(scope="module")
def ranking(model) -> list[tuple[int, float]]:
    return [(entry.index, entry.score) for entry in model.rerank(QUERY, DOCUMENTS)]


def assert_ranking(found, expected) -> None:
    found = list(found)
    assert [index for index, _ in found] == [index for index, _ in expected]
    np.testing.assert_allclose([score for _, score in found], [score for _, score in expected], atol=1e-6)


def pairs(results) -> list[tuple[int, float]]:
    return [(result.index, result.relevance_score) for result in results]


def dicts(results) -> list[tuple[int, float]]:
    return [(result["index"], result["relevance_score"]) for result in results]


@pytest.mark.parametrize("base", ["", "/v1"])
@pytest.mark.parametrize(("top_n", "length"), [(None, 5), (2, 2), (50, 5)])
def test_cohere(url, ranking, base, top_n, length):
    client = cohere.ClientV2(api_key=KEY, base_url=url + base)
    reply = client.rerank(model="default", query=QUERY, documents=DOCUMENTS, top_n=top_n, max_tokens_per_doc=4096)
    assert_ranking(pairs(reply.results), ranking[:length])
    assert reply.id.startswith("rerank-")
    assert reply.meta.api_version.version == "2"
    assert reply.meta.billed_units.search_units == 1


def test_cohere_of_the_first_version(url, ranking):
    client = cohere.Client(api_key=KEY, base_url=url)
    documents = [{"text": DOCUMENTS[0]}, *DOCUMENTS[1:]]
    reply = client.rerank(query=QUERY, documents=documents, return_documents=True, max_chunks_per_doc=10)
    assert_ranking(pairs(reply.results), ranking)
    assert [result.document.text for result in reply.results] == [DOCUMENTS[index] for index, _ in ranking]


def test_cohere_with_fields(url, model):
    client = cohere.Client(api_key=KEY, base_url=url)
    documents = [{"title": "A mill", "text": "It stands."}, {"title": "The river", "text": "It flows."}]
    reply = client.rerank(query=QUERY, documents=documents, rank_fields=["title", "text"], return_documents=True)
    expected = model.rerank(QUERY, ["A mill\nIt stands.", "The river\nIt flows."])
    assert_ranking(pairs(reply.results), [(entry.index, entry.score) for entry in expected])
    assert reply.results[0].document.text == documents[reply.results[0].index]["text"]


def test_cohere_off_the_event_loop(url, ranking):
    async def ask():
        client = cohere.AsyncClientV2(api_key=KEY, base_url=url)
        asked = (client.rerank(model="default", query=QUERY, documents=DOCUMENTS) for _ in range(4))
        return await asyncio.gather(*asked)

    for reply in asyncio.run(ask()):
        assert_ranking(pairs(reply.results), ranking)


def test_what_cohere_says_of_errors(url):
    client = cohere.ClientV2(api_key=KEY, base_url=url)
    with pytest.raises(cohere.BadRequestError) as caught:
        client.rerank(model="default", query=QUERY, documents=[])
    assert "'documents' is an empty list" in caught.value.body["message"]
    with pytest.raises(cohere.NotFoundError):
        client.rerank(model="another", query=QUERY, documents=DOCUMENTS)
    with pytest.raises(cohere.UnauthorizedError):
        cohere.ClientV2(api_key="wrong", base_url=url).rerank(model="default", query=QUERY, documents=DOCUMENTS)


@pytest.mark.parametrize("base", ["", "/v1"])
def test_langchain_cohere(url, ranking, base):
    rerank = CohereRerank(cohere_api_key=KEY, base_url=url + base, model="default", top_n=3)
    assert_ranking(dicts(rerank.rerank(DOCUMENTS[:3] + DOCUMENTS[4:], QUERY)), _without_empty(ranking)[:3])


def _without_empty(ranking):
    """That client leaves out nothing, but an empty document is no sensible input to it: the list without."""
    return [(index - (index > 3), score) for index, score in ranking if index != 3]


@pytest.mark.parametrize("base", ["", "/v1"])
@pytest.mark.parametrize(("top_k", "length"), [(None, 5), (2, 2)])
def test_voyage(url, ranking, base, top_k, length):
    client = voyageai.Client(api_key=KEY, base_url=url + base, max_retries=0)
    reply = client.rerank(QUERY, DOCUMENTS, model="default", top_k=top_k)
    assert_ranking(pairs(reply.results), ranking[:length])
    assert [result.document for result in reply.results] == [DOCUMENTS[index] for index, _ in ranking[:length]]
    assert reply.total_tokens > 0


def test_what_voyage_says_of_errors(url):
    client = voyageai.Client(api_key=KEY, base_url=f"{url}/v1", max_retries=0)
    with pytest.raises(InvalidRequestError, match="top_k is -1"):
        client.rerank(QUERY, DOCUMENTS, model="default", top_k=-1)
    with pytest.raises(AuthenticationError, match="API key"):
        voyageai.Client(api_key="wrong", base_url=f"{url}/v1", max_retries=0).rerank(QUERY, ["a"], model="default")


@pytest.mark.parametrize(
    ("provider", "base"),
    [
        ("cohere", ""),
        ("jina_ai", ""),
        ("hosted_vllm", ""),
        ("hosted_vllm", "/v1"),
        ("huggingface", ""),
        ("infinity", ""),
    ],
)
def test_litellm(url, ranking, provider, base):
    reply = litellm.rerank(
        model=f"{provider}/default",
        query=QUERY,
        documents=DOCUMENTS,
        top_n=2,
        api_base=url + base,
        api_key=KEY,
        return_documents=provider == "jina_ai",
    )
    assert_ranking(dicts(reply.results), ranking[:2])
    if provider == "jina_ai":
        assert [result["document"]["text"] for result in reply.results] == [
            DOCUMENTS[index] for index, _ in ranking[:2]
        ]
