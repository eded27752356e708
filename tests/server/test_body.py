import asyncio
import gzip
import json
import zlib
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request as HttpRequest

from forebay.core.errors import Cancelled, InvalidRequest, PayloadTooLarge
from forebay.server.body import FREE_BYTES, WINDOW, Room, decode, read_body
from forebay.server.errors import BodiesTooLarge, BodyTimeout, UnsupportedEncoding


def receive_of(chunks: Iterable[bytes], *, ends: bool = True):
    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    messages.append({"type": "http.request", "body": b""} if ends else {"type": "http.disconnect"})
    left = iter(messages)

    async def receive():
        return next(left)

    return receive, left


def read(request: HttpRequest, limit: int, room: Room | None = None, seconds: float = 60) -> bytearray:
    with (room or Room(1 << 30)).share() as share:
        return asyncio.run(read_body(request, limit, share, seconds))


def body_of(chunks: Iterable[bytes], limit: int = 1000, *, ends: bool = True, **headers: str) -> bytes:
    receive, _ = receive_of(chunks, ends=ends)
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    request = HttpRequest({"type": "http", "method": "POST", "headers": raw}, receive)
    return bytes(read(request, limit))


def test_chunks_are_joined():
    assert body_of([b"ab", b"", b"c"]) == b"abc"
    assert body_of([b"x" * 1000]) == b"x" * 1000


def test_an_announced_length_is_refused_before_anything_is_read():
    def chunks():
        raise AssertionError("read")
        yield b""

    request = HttpRequest({"type": "http", "method": "POST", "headers": [(b"content-length", b"1001")]}, chunks)
    with pytest.raises(PayloadTooLarge):
        read(request, 1000)


def test_a_stream_is_refused_as_soon_as_it_is_too_long():
    receive, left = receive_of([b"x" * 600] * 5)
    request = HttpRequest({"type": "http", "method": "POST", "headers": []}, receive)
    with pytest.raises(PayloadTooLarge):
        read(request, 1000)
    assert len(list(left)) == 4  # two of six messages were taken


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
@pytest.mark.parametrize("size", [0, 1, 1000])
def test_packed_bodies(pack, size):
    packed = pack(b"x" * size)
    pieces = [packed[start : start + 3] for start in range(0, len(packed), 3)]
    assert body_of(pieces, content_encoding="gzip") == b"x" * size


def test_a_packed_body_counts_unpacked():
    with pytest.raises(PayloadTooLarge):
        body_of([gzip.compress(b"x" * 1001)], content_encoding="gzip")
    size = 3 * WINDOW + 5
    assert len(body_of([gzip.compress(b"x" * size)], size, content_encoding="GZIP")) == size


@pytest.mark.parametrize(
    "spoil", [lambda b: b[:-1], lambda b: b + b"more", lambda b: b"", lambda b: b"{}", lambda b: b + b]
)
def test_spoiled_packed_bodies(spoil):
    with pytest.raises(InvalidRequest):
        body_of([spoil(gzip.compress(b"{}"))], content_encoding="gzip")


def test_other_encodings():
    assert body_of([b"{}"], content_encoding="identity") == b"{}"
    with pytest.raises(UnsupportedEncoding):
        body_of([b"{}"], content_encoding="br")


def test_a_client_that_leaves_half_way():
    with pytest.raises(Cancelled):
        body_of([b"{"], ends=False)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), json_values), st.booleans())
def test_decode_reads_what_json_wrote(value, ascii_only):
    assert decode(bytearray(json.dumps(value, ensure_ascii=ascii_only).encode())) == value


@given(st.lists(st.text(st.characters())))  # surrogates too
def test_lone_surrogates_become_replacement_characters(texts):
    expected = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]
    assert decode(bytearray(json.dumps({"input": texts}).encode())) == {"input": expected}


def test_messages_of_bad_json_tell_where():
    with pytest.raises(InvalidRequest, match="at byte 12") as caught:
        decode(bytearray(b'{"input":"a",}'))
    assert caught.value.code == "invalid_json"


def test_all_bodies_together_have_room_for_so_much():
    """The first bytes of each are free, so that small ones are always read."""
    room = Room(1000)
    request = HttpRequest({"type": "http", "headers": []}, receive_of([b"x" * FREE_BYTES, b"x" * 600])[0])
    with room.share() as share:
        asyncio.run(read_body(request, 1 << 20, share, 60))
        assert share.size == 600
        large = HttpRequest({"type": "http", "headers": []}, receive_of([b"x" * FREE_BYTES, b"x" * 401])[0])
        with pytest.raises(BodiesTooLarge, match=r"fill the 1000 bytes.*--max-bodies-mb"):
            read(large, 1 << 20, room)
        small = HttpRequest({"type": "http", "headers": []}, receive_of([b"x" * FREE_BYTES])[0])
        assert len(read(small, 1 << 20, room)) == FREE_BYTES
    again = HttpRequest({"type": "http", "headers": []}, receive_of([b"x" * (FREE_BYTES + 1000)])[0])
    assert len(read(again, 1 << 20, room)) == FREE_BYTES + 1000


def test_a_packed_body_takes_room_as_it_is_unpacked():
    packed = gzip.compress(b"x" * (5 * WINDOW))
    headers = [(b"content-encoding", b"gzip")]
    request = HttpRequest({"type": "http", "headers": headers}, receive_of([packed])[0])
    with pytest.raises(BodiesTooLarge):
        read(request, 1 << 30, Room(2 * WINDOW))


@pytest.mark.parametrize(("seconds", "words"), [(0.05, "the whole body did not come within 0.05"), (60, "nothing of")])
def test_a_body_that_stalls(monkeypatch, seconds, words):
    monkeypatch.setattr("forebay.server.body.STALL_SECONDS", 0.1)
    silent = iter([{"type": "http.request", "body": b"{", "more_body": True}])

    async def receive():
        message = next(silent, None)
        return message if message is not None else await asyncio.sleep(3600)

    request = HttpRequest({"type": "http", "headers": []}, receive)
    with pytest.raises(BodyTimeout, match=words):
        read(request, 1000, seconds=seconds)


def test_a_body_that_drips_is_read(monkeypatch):
    """The clock of silence starts anew with every piece."""
    monkeypatch.setattr("forebay.server.body.STALL_SECONDS", 0.5)
    receive, _ = receive_of([b"x"] * 12)

    async def drip():
        await asyncio.sleep(0.06)
        return await receive()

    assert read(HttpRequest({"type": "http", "headers": []}, drip), 1000) == b"x" * 12
