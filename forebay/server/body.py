"""A request's body: read within its limit, unpacked within the same limit, decoded to a JSON object.

It knows bytes and JSON, no fields.
"""

import asyncio
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import orjson
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from forebay.core.errors import Cancelled, InvalidRequest, PayloadTooLarge
from forebay.server.errors import BodiesTooLarge, BodyTimeout, UnsupportedEncoding
from forebay.server.schema import json_type

WINDOW = 1 << 20
"""Bytes that one turn of the unpacker yields before others may run."""

FREE_BYTES = 64 << 10
"""Bytes of each body that are not counted against the room of all bodies."""

STALL_SECONDS = 30.0
"""Seconds for which nothing of a body may come."""

SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
BOM = b"\xef\xbb\xbf"


class Room:
    """The bytes that the bodies of all requests under way may take together, beside the first few of each.

    So a small request is read however many large ones are there.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0

    @contextmanager
    def share(self) -> Iterator["Share"]:
        """One request's part of it, given back at the end."""
        share = Share(self)
        try:
            yield share
        finally:
            self._taken -= share.size

    def take(self, size: int) -> None:
        """Take so many bytes more; BodiesTooLarge where they are not there."""
        if self._taken + size > self._limit:
            raise BodiesTooLarge(
                f"the bodies of the requests under way fill the {self._limit} bytes that they may take together; retry "
                "later, send fewer or smaller requests at once, or start the server with a larger --max-bodies-mb"
            )
        self._taken += size


class Share:
    """One request's part of a Room."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.size = 0

    def grow_to(self, num_bytes: int) -> None:
        """Make room for a body of so many bytes."""
        more = num_bytes - FREE_BYTES - self.size
        if more > 0:
            self._room.take(more)
            self.size += more


async def read_body(request: HttpRequest, limit: int, share: Share, seconds: float) -> bytearray:
    """Return the body, unpacked; PayloadTooLarge as soon as it is known to exceed ``limit``, packed or unpacked.

    BodyTimeout where it does not come within ``seconds``, or nothing comes for some time.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    unpacker = _unpacker(request.headers.get("content-encoding", ""))
    stall, loop = min(STALL_SECONDS, seconds), asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds) as whole, asyncio.timeout(stall) as silence:
            body = bytearray()
            received = 0
            async for chunk in request.stream():
                silence.reschedule(loop.time() + stall)
                received += len(chunk)
                if received > limit:
                    raise _too_large(limit)
                share.grow_to(len(body) + len(chunk))
                if unpacker is None:
                    body += chunk
                else:
                    await _unpack(unpacker, chunk, body, limit, share)
    except ClientDisconnect:
        raise Cancelled("the client went away before its whole body had come") from None
    except TimeoutError:
        if whole.expired():
            raise BodyTimeout(f"the whole body did not come within {seconds:g} seconds") from None
        raise BodyTimeout(f"nothing of the body came for {stall:g} seconds") from None
    if unpacker is not None:
        _finish(unpacker, body, limit)
    return body


def _unpacker(encoding: str) -> "zlib._Decompress | None":
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name in ("gzip", "x-gzip", "deflate"):
        return zlib.decompressobj(wbits=47)  # 32 + 15: gzip or zlib, told by the header
    raise UnsupportedEncoding("this Content-Encoding is not supported; send the body as it is, or packed with gzip")


async def _unpack(unpacker: "zlib._Decompress", chunk: bytes, body: bytearray, limit: int, share: Share) -> None:
    while chunk:
        try:
            body += unpacker.decompress(chunk, WINDOW)
        except zlib.error:
            raise InvalidRequest("the body is not what its Content-Encoding says it is") from None
        if len(body) > limit:
            raise _too_large(limit)
        share.grow_to(len(body) + WINDOW)
        chunk = unpacker.unconsumed_tail
        await asyncio.sleep(0)


def _finish(unpacker: "zlib._Decompress", body: bytearray, limit: int) -> None:
    body += unpacker.flush()
    if len(body) > limit:
        raise _too_large(limit)
    if not unpacker.eof or unpacker.unused_data:
        raise InvalidRequest("the compressed body ends too early, or goes on after its end")


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the body exceeds {limit} bytes; send fewer items a request, or start the server with a larger --max-body-mb"
    )


def decode(raw: bytearray) -> Mapping[str, Any]:
    """Parse a JSON object; a lone surrogate becomes U+FFFD, everything else that is not JSON is refused."""
    if not raw:
        raise InvalidRequest("the body is empty; send a JSON object", code="invalid_json")
    if raw.startswith(BOM):
        raw = raw[len(BOM) :]
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        value = _decode_surrogates(raw, error)
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body must be a JSON object; got {json_type(value)}")
    return value


def _decode_surrogates(raw: bytearray, error: orjson.JSONDecodeError) -> Any:
    """Parse once more with a reader that tolerates lone surrogates, if that can be what is wrong."""
    if not SURROGATE.search(raw):
        raise _not_json(error)
    try:
        text = json.dumps(json.loads(raw, parse_constant=_refuse), ensure_ascii=False)
        return orjson.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    except (ValueError, RecursionError):
        raise _not_json(error) from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _not_json(error: orjson.JSONDecodeError) -> InvalidRequest:
    return InvalidRequest(f"the body is not valid JSON: {error.msg} at byte {error.pos}", code="invalid_json")
