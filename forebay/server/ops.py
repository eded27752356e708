"""The routes of operation: liveness, readiness, health by a real forward pass, models, info, metrics.

It knows the service and its state; nothing of texts and vectors.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import orjson
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from forebay.core.config import EngineLimits, ServerOptions
from forebay.core.errors import DeadlineExceeded, ForebayError, Overloaded
from forebay.core.info import ModelInfo
from forebay.core.params import PoolingParams
from forebay.core.request import Request
from forebay.core.tasks import ScoreType, Task
from forebay.server.errors import RETRY_AFTER_NOT_READY
from forebay.server.metrics import Metrics
from forebay.server.service import Service
from forebay.version import __version__

HEALTH_FRESH = 5.0
"""Seconds for which a forward pass counts as proof of health."""

HEALTH_TIMEOUT = 5.0
"""Seconds that a forward pass of one word may take."""


class Operations:
    """Endpoints over one service."""

    def __init__(self, service: Service, metrics: Metrics, options: ServerOptions, limits: EngineLimits | None) -> None:
        self._service = service
        self._metrics = metrics
        self._pulse = Pulse(service, metrics)
        self._limits = {
            "max_items": options.max_items,
            "bulk_items": options.bulk_items,
            "max_body_bytes": options.max_body_bytes,
            "max_bodies_bytes": options.max_bodies_bytes,
            "request_timeout": options.request_timeout,
            **({} if limits is None else asdict(limits)),
        }

    def routes(self) -> list[Route]:
        """The routes, ready for an app."""
        return [
            Route("/", self.index),
            Route("/livez", self.livez),
            Route("/readyz", self.readyz),
            Route("/health", self.health),
            Route("/info", self.info),
            Route("/metrics", self.metrics),
            Route("/models", self.models),
            Route("/v1/models", self.models),
            Route("/models/{id:path}", self.model),
            Route("/v1/models/{id:path}", self.model),
        ]

    async def index(self, request: HttpRequest) -> Response:
        """Say what this is and where to go."""
        paths = sorted(route.path for route in request.app.routes)
        return _json({"name": "forebay", "version": __version__, "status": self._service.status, "routes": paths})

    async def livez(self, request: HttpRequest) -> Response:
        """The process runs; 503 only where a restart would help."""
        failed = self._service.status == "failed"
        return _json({"status": "failed" if failed else "alive"}, 503 if failed else 200)

    async def readyz(self, request: HttpRequest) -> Response:
        """The server takes work."""
        return self._state()

    async def health(self, request: HttpRequest) -> Response:
        """The model computes: a real forward pass, at most one every few seconds."""
        if self._service.status != "ready":
            return self._state()
        error = await self._pulse.feel()
        if error is None:
            return _json({"status": "healthy"})
        return _unavailable({"status": "unhealthy", "code": error.code, "message": error.message})

    def _state(self) -> Response:
        service = self._service
        if service.status == "ready":
            return _json({"status": "ready"})
        stage = {"stage": service.stage} if service.status == "loading" else {}
        return _unavailable({"status": service.status, **stage})

    async def info(self, request: HttpRequest) -> Response:
        """Everything that was decided about the loaded model, and by whom."""
        _, engine = self._ready()
        facts = {field: getattr(engine.info, field) for field in engine.info.__slots__}
        names = self._service.names
        said = {"version": __version__, "served_names": names, **facts, "limits": self._limits}
        return _json({**said, **_tei_names(engine.info, self._limits)})

    async def models(self, request: HttpRequest) -> Response:
        """Every served name, in OpenAI's shape."""
        self._ready()
        return _json({"object": "list", "data": [self._card(name) for name in self._service.names]})

    async def model(self, request: HttpRequest) -> Response:
        """One served name; it may contain slashes."""
        self._ready()
        return _json(self._card(request.path_params["id"]))

    def _ready(self) -> Any:
        if not self._service.names:
            self._service.check_ready()
        return self._service.find()

    def _card(self, model: str) -> dict[str, Any]:
        name, engine = self._service.find(model)
        abilities = engine.info.abilities
        return {
            "id": name,
            "object": "model",
            "created": self._service.loaded_at,
            "owned_by": "forebay",
            "root": engine.info.name,
            "tasks": abilities.tasks,
            "default_task": abilities.default_task,
            "dimension": abilities.default_dimension,
            "sparse_dimension": abilities.vocab_size if Task.SPARSE in abilities.tasks else 0,
            "labels": abilities.labels,
            "score_type": abilities.score_type,
            "max_model_len": abilities.max_len,
            "prompts": engine.info.prompts,
        }

    async def metrics(self, request: HttpRequest) -> Response:
        """Prometheus metrics."""
        return Response(self._metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})


class Pulse:
    """A forward pass of one word: one at a time, its outcome good for some seconds."""

    def __init__(self, service: Service, metrics: Metrics) -> None:
        self._service = service
        self._metrics = metrics
        self._felt = float("-inf")
        self._error: ForebayError | None = None
        self._probe: asyncio.Task[None] | None = None

    async def feel(self) -> ForebayError | None:
        """Return what is wrong, or None."""
        if time.monotonic() - self._felt > HEALTH_FRESH:
            if self._probe is None:
                self._probe = asyncio.create_task(self._run())
            await asyncio.shield(self._probe)
        return self._error

    async def _run(self) -> None:
        try:
            self._error = await self._forward()
        finally:
            self._felt = time.monotonic()
            self._probe = None

    async def _forward(self) -> ForebayError | None:
        _, engine = self._service.find()
        probe = Request(items=("health",), pooling=PoolingParams(outputs=(engine.info.abilities.default_task,)))
        try:
            reply = await asyncio.wait_for(engine.run(probe), HEALTH_TIMEOUT)
            reply.raise_errors()
        except (TimeoutError, Overloaded):
            # A long queue is no illness: other steps that finish are as good a proof.
            if time.monotonic() - self._metrics.last_step < HEALTH_FRESH:
                return None
            return DeadlineExceeded(f"no forward pass finished within {HEALTH_TIMEOUT:g} seconds")
        except ForebayError as error:
            return error
        except Exception as error:
            return ForebayError(f"a forward pass failed with {type(error).__name__}")
        return None


def _tei_names(info: ModelInfo, limits: Mapping[str, Any]) -> dict[str, Any]:
    """The same under the names by which clients of text-embeddings-inference look for it."""
    abilities = info.abilities
    model_type: dict[str, Any] = {"embedding": {"pooling": _pooling_word(info)}}
    if Task.CLASSIFY in abilities.tasks:
        ids = [str(index) for index in range(len(abilities.labels))]
        names = {
            "id2label": dict(zip(ids, abilities.labels, strict=True)),
            "label2id": dict(zip(abilities.labels, ids, strict=True)),
        }
        model_type = {"reranker" if abilities.score_type is ScoreType.CROSS_ENCODER else "classifier": names}
    return {
        "model_id": info.name,
        "model_dtype": info.dtype,
        "model_type": model_type,
        "max_input_length": abilities.max_len,
        "max_client_batch_size": limits["max_items"],
        "max_batch_tokens": limits.get("max_step_tokens"),
        "auto_truncate": True,
    }


def _pooling_word(info: ModelInfo) -> str:
    """How a text's vector is pooled, in one word."""
    value = next((str(one.value) for one in info.decisions if one.name.partition(" [")[0] == "pooling"), "")
    return value.partition(" ")[0].lower()


def _json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value, default=_plain), status, headers, "application/json")


def _unavailable(value: object) -> Response:
    return _json(value, 503, {"retry-after": str(RETRY_AFTER_NOT_READY)})


def _plain(value: object) -> object:
    """What orjson does not know by itself: mappings that are no dicts."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} can't be said in JSON")
