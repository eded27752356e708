"""The server process: uvicorn with a drain before its end, and an end when the model can't be loaded.

It knows signals and exit codes; of the app only the service's status.
"""

import asyncio
import logging
import os
import sys
import time
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from forebay.core.config import ServerOptions
from forebay.server.connection import GuardedProtocol
from forebay.server.service import Service

log = logging.getLogger("forebay.server")

KEEP_ALIVE = 75
"""Seconds that an idle connection stays open: longer than the pools of common clients keep one."""


def run(app: Starlette, service: Service, options: ServerOptions) -> int:
    """Serve ``app`` until a signal comes or its model fails to load; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    config = uvicorn.Config(
        app,
        host=options.host,
        port=options.port,
        loop="uvloop",
        http=GuardedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=1,
    )
    server = DrainingServer(config, service, options.drain_seconds)
    try:
        server.run()
    except SystemExit:  # uvicorn could not open the port, and has said why
        server.exit_code = 1
    if service.is_loading:  # native code on that thread would abort the process in the interpreter's own end
        logging.shutdown()
        sys.stdout.flush()
        os._exit(server.exit_code)
    return server.exit_code


class DrainingServer(uvicorn.Server):
    """Stops in two steps: a first signal ends the taking of work, a second one everything."""

    def __init__(self, config: uvicorn.Config, service: Service, drain_seconds: float) -> None:
        super().__init__(config)
        self.exit_code = 0
        self._service = service
        self._drain_seconds = drain_seconds
        self._drain_until: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain on the first signal, end the process on the next."""
        if self._drain_until is not None:
            os._exit(128 + sig)
        self._drain_until = time.monotonic() + self._drain_seconds
        self._service.drain()

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Open the port and say so."""
        await super().startup()
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)

    async def on_tick(self, counter: int) -> bool:
        """Tell whether to stop; asked ten times a second."""
        if self._service.status == "failed":
            self.exit_code = 1
            return True
        if self._drain_until is not None and await self._is_drained(self._drain_until):
            return True
        return await super().on_tick(counter)

    async def _is_drained(self, until: float) -> bool:
        under_way = [task for task in self.server_state.tasks if not task.done()]
        if not under_way:
            log.info("stopped; every request under way was answered")
            return True
        if time.monotonic() > until:
            log.warning("stopped; requests not answered within the drain time: %d", len(under_way))
            await asyncio.to_thread(self._service.close)  # answers them with NotReady
            return True
        return False
