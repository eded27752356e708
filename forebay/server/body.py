"""A request's body: read within its limit, unpacked within the same limit, decoded to a JSON object.

It knows bytes and JSON, no fields.
"""

import asyncio
import json
import re
import zlib
from collections.abc import Mapping
from typing import Any, NoReturn

import orjson
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from forebay.core.errors import Cancelled, InvalidRequest, PayloadTooLarge
from forebay.server.errors import UnsupportedEncoding
from forebay.server.schema import json_type

WINDOW = 1 << 20
"""Bytes that one turn of the unpacker yields before others may run."""

SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
BOM = b"\xef\xbb\xbf"


async def read_body(request: HttpRequest, limit: int) -> bytearray:
    """Return the body, unpacked; PayloadTooLarge as soon as it is known to exceed ``limit``, packed or unpacked."""
    unpacker = _unpacker(request.headers.get("content-encoding", ""))
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    body = bytearray()
    received = 0
    try:
        async for chunk in request.stream():
            received += len(chunk)
            if received > limit:
                raise _too_large(limit)
            if unpacker is None:
                body += chunk
            else:
                await _unpack(unpacker, chunk, body, limit)
    except ClientDisconnect:
        raise Cancelled("the client went away before its whole body had come") from None
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


async def _unpack(unpacker: "zlib._Decompress", chunk: bytes, body: bytearray, limit: int) -> None:
    while chunk:
        try:
            body += unpacker.decompress(chunk, WINDOW)
        except zlib.error:
            raise InvalidRequest("the body is not what its Content-Encoding says it is") from None
        if len(body) > limit:
            raise _too_large(limit)
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
        f"the body exceeds {limit} bytes; send fewer items a request, or start the server with a larger max_body_bytes"
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
