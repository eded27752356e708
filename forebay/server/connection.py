"""One connection of the server: uvicorn's protocol, with an end for clients that send or read too slowly.

It knows HTTP's heads and the sizes of buffers. How long a body may take is the matter of body.py.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from forebay.core.errors import ForebayError, InvalidRequest
from forebay.server.dialects.openai import render_error
from forebay.server.errors import HeadTimeout, HeadTooLarge

HEAD_SECONDS = 30.0
"""Seconds from the first byte of a head (or from the start of a connection) to its end."""

MAX_HEAD = 64 << 10
"""Bytes of a request's line and headers."""

STALL_SECONDS = 30.0
"""Seconds that a client may read nothing of an answer that waits for it."""


class GuardedProtocol(HttpToolsProtocol):
    """Ends a connection whose head does not come, or is endless, or whose client does not read."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._head_size = self._raw_size = 0
        self._is_in_head = False
        self._has_sent = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock of the first head."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all clocks."""
        self._stop_head_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what comes of a head, and start the clock of the next one."""
        self._has_sent = True
        was_free = self._is_in_head or self._is_idle
        super().data_received(data)
        if self.parser is None or self.transport.is_closing():
            return
        if self._is_in_head and was_free:  # what the parser holds of an unfinished header is told to no one
            self._raw_size += len(data)
            if self._raw_size > MAX_HEAD:
                self._refuse(_too_large())
        if self._is_in_head or self._is_idle:
            self._await_head()

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def on_message_begin(self) -> None:
        """A head begins."""
        self._is_in_head, self._head_size, self._raw_size = True, 0, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count the request's line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._is_in_head = False
        self._stop_head_timer()
        super().on_headers_complete()

    def _count(self, size: int) -> None:
        self._head_size += size
        if self._head_size > MAX_HEAD:
            raise _too_large()  # the parser stops, and send_400_response tells why

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._end_waiting)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_waiting(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if self._has_sent and self._is_in_head:
            self._refuse(HeadTimeout(f"the head of a request did not come within {HEAD_SECONDS:g} seconds"))
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or has too large a head."""
        is_large = self._head_size > MAX_HEAD
        self._refuse(_too_large() if is_large else InvalidRequest("this is no HTTP/1.1 request", code="invalid_http"))

    def _refuse(self, error: ForebayError) -> None:
        """Say an error in place of an answer and close; an earlier request that came whole is answered first."""
        if self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body:
            self.cycle.keep_alive = False
            self.flow.pause_reading()
            return
        body = render_error(error)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[error.status] + head + body)
        self.transport.close()

    def pause_writing(self) -> None:
        """Watch whether the client goes on reading."""
        super().pause_writing()
        if self._write_timer is None:
            self._watch_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It does."""
        self._stop_write_timer()
        super().resume_writing()

    def _watch_reader(self, size: int) -> None:
        self._write_timer = self.loop.call_later(STALL_SECONDS, self._check_reader, size)

    def _check_reader(self, former_size: int) -> None:
        size = self.transport.get_write_buffer_size()
        if size >= former_size:
            self._write_timer = None
            self.transport.abort()
        else:
            self._watch_reader(size)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def _too_large() -> HeadTooLarge:
    return HeadTooLarge(
        f"the request's line and headers have more than {MAX_HEAD} bytes; send what is large in the body"
    )
