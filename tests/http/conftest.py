"""Live servers around tiny checkpoints of every kind, and around real ones where they are there, for all dialects."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import torch

from forebay import PoolingModel
from tests.support import heads, pipelines, tiny
from tests.support.live_server import serving
from tests.support.store import Store

CACHE = Path.home() / ".cache" / "forebay-models"


class Served(NamedTuple):
    """A client of a server, and the model behind it as Python sees it."""

    client: httpx.Client
    model: PoolingModel

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """A JSON answer, which must be one."""
        reply = self.client.post(path, json=body)
        assert reply.status_code == 200, reply.text
        return reply.json()  # type: ignore[no-any-return]

    def refuse(self, path: str, **body: Any) -> dict[str, Any]:
        """The error of a body that must be refused; the server goes on."""
        reply = self.client.post(path, json=body)
        assert reply.status_code == 400, reply.text
        assert self.client.get("/readyz").status_code == 200
        return reply.json()["error"]  # type: ignore[no-any-return]


Serve = Callable[..., Served]


@pytest.fixture(scope="session")
def serve() -> Iterator[Serve]:
    """Serve a folder, once a session."""
    with ExitStack() as stack:
        made: dict[str, Served] = {}

        def start(folder: Path | str, **options: Any) -> Served:
            key = f"{folder} {options}"
            if key not in made:
                model = PoolingModel(str(folder), **options)
                url = stack.enter_context(serving(model.engine))
                made[key] = Served(stack.enter_context(httpx.Client(base_url=url, timeout=60)), model)
            return made[key]

        yield start


@pytest.fixture(scope="session")
def serve_real(serve: Serve) -> Serve:
    """Serve a real checkpoint of the cache, or skip."""

    def start(name: str) -> Served:
        if name == "default":
            return serve(name)
        if not (CACHE / name).is_dir():
            pytest.skip(f"{name} does not lie in {CACHE}")
        return serve(CACHE / name)

    return start


@pytest.fixture(scope="session")
def embedder(store: Store, serve: Serve) -> Served:
    """Mean-pooled unit vectors of 32 numbers, with a prompt."""
    modules = [pipelines.transformer(store.backbone("bert")), pipelines.pooling("mean"), pipelines.normalize()]
    prompts = {"query": "search query ", "document": ""}
    folder = store.folder("http-embedder", lambda place: pipelines.save_pipeline(place, modules, prompts=prompts))
    return serve(folder)


@pytest.fixture(scope="session")
def classifier(store: Store, serve: Serve) -> Served:
    """Three labels and a softmax."""
    labels = {0: "calm", 1: "wild", 2: "deep"}
    return serve(
        store.folder("http-classifier", lambda place: heads.with_head(place, "bert", "sequence", id2label=labels))
    )


@pytest.fixture(scope="session")
def tagger(store: Store, serve: Serve) -> Served:
    """Five labels for each token."""
    return serve(store.folder("http-tagger", make_tagger))


@pytest.fixture(scope="session")
def stepper(store: Store, serve: Serve) -> Served:
    """The same, but only the rows of the token "of" are kept."""
    return serve(store.folder("http-tagger", make_tagger), pooler_config={"pooling_type": "STEP", "step_tag_id": 7})


def make_tagger(place: Path) -> Path:
    labels = dict(enumerate(("O", "B-PLACE", "I-PLACE", "B-THING", "I-THING")))
    return heads.with_head(place, "bert", "token", id2label=labels)


@pytest.fixture(scope="session")
def splade(store: Store, serve: Serve) -> Served:
    """A language model's head: dense and sparse vectors."""
    return serve(store.folder("http-splade", lambda place: heads.with_head(place, "bert", "masked_lm")))


@pytest.fixture(scope="session")
def trio(store: Store, serve: Serve) -> Served:
    """BGE-M3's layout: dense, sparse and multi-vector outputs, and weights of tokens."""
    return serve(store.folder("http-trio", make_trio))


def make_trio(place: Path) -> Path:
    tiny.TRANSFORMERS["xlm-roberta"](place)
    generator = torch.Generator().manual_seed(42)
    for name, size in (("sparse_linear.pt", 1), ("colbert_linear.pt", 16)):
        weight = torch.randn(size, tiny.HIDDEN, generator=generator)
        torch.save({"weight": weight, "bias": torch.full((size,), 3.0)}, place / name)
    return place
