"""What the process serves and how far it is: engines under their names; loading, ready, draining or failed.

It knows no HTTP. The model is loaded on a thread of its own, so that the server answers from its first moment.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from forebay.core.config import ServerOptions
from forebay.core.errors import ForebayError, InvalidRequest, NotReady, UnknownModel
from forebay.core.events import Observer
from forebay.server.schema import json_type

if TYPE_CHECKING:
    from forebay.api.async_engine import AsyncEngine

log = logging.getLogger("forebay.server")

UNNAMED = (None, "", "default")
"""What a client may say instead of a model's name."""

Load = Callable[[Callable[[str], None], Observer], "AsyncEngine"]
Status = Literal["loading", "ready", "draining", "failed"]


class Service:
    """One engine under its served names. ``stage`` tells what loading is at."""

    def __init__(self, options: ServerOptions, load: Load, observer: Observer) -> None:
        self.stage = "starting"
        self.loaded_at = 0
        self.on_loaded: Callable[[AsyncEngine], None] = lambda engine: None
        self._options = options
        self._load = load
        self._observer = observer
        self._engines: dict[str, AsyncEngine] = {}
        self._failed = self._draining = self._closed = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to load; returns at once."""
        self._thread = threading.Thread(target=self._run_load, name="forebay-load", daemon=True)
        self._thread.start()

    @property
    def is_loading(self) -> bool:
        """Whether the loading thread still runs; it can't be stopped from outside."""
        return self._thread is not None and self._thread.is_alive()

    def _run_load(self) -> None:
        started = time.monotonic()
        try:
            engine = self._load(self._enter, self._observer)
        except ForebayError as error:
            log.error("the model can't be loaded (%s): %s", error.code, error.message)
            self._failed = True
            return
        except BaseException:
            log.exception("the model can't be loaded; it failed while %s", self.stage)
            self._failed = True
            return
        with self._lock:
            self.loaded_at = int(time.time())
            self._engines = dict.fromkeys(self._options.served_names or (engine.info.name,), engine)
            self.on_loaded(engine)
            closed = self._closed
        if closed:
            engine.close()
            return
        log.info("ready in %.1f s: %s", time.monotonic() - started, ", ".join(self._engines))

    def _enter(self, stage: str) -> None:
        self.stage = stage
        log.info("%s", stage)

    @property
    def status(self) -> Status:
        """Where the service stands."""
        if self._failed:
            return "failed"
        if self._draining:
            return "draining"
        return "ready" if self._engines else "loading"

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which models can be asked for, the default first."""
        return tuple(self._engines)

    def check_ready(self) -> None:
        """Raise NotReady unless new work can be taken."""
        if self.status == "draining":
            raise NotReady("the server is stopping; send the request to another one, or retry later")
        if self.status != "ready":
            raise NotReady(f"the model is not loaded yet ({self.stage}); retry later")

    def find(self, model: object = None) -> "tuple[str, AsyncEngine]":
        """Return the served name and engine that a request means; none, '' and 'default' mean the first one."""
        if not isinstance(model, str | None):
            raise InvalidRequest(f"'model' must be a string, or null; got {json_type(model)}", field="model")
        if model in self._engines:
            return model, self._engines[model]
        if model in UNNAMED:
            return next(iter(self._engines.items()))
        known = ", ".join(f"'{name}'" for name in self._engines)
        raise UnknownModel(f"this server has no model of that name; it serves {known}", field="model")

    def drain(self) -> None:
        """Take no new work from now on."""
        self._draining = True

    def close(self) -> None:
        """Stop the engines, or the one that is still loading as soon as it is loaded."""
        with self._lock:
            self._closed = True
            engines = set(self._engines.values())
        for engine in engines:
            engine.close()
