"""Whatever comes over the wire: never a 5xx, never an echo, and the next request is answered."""

import asyncio
import gzip
import json
import random
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.live_server import exchange

FINE = {"input": "fine"}
TEXTS = {
    "empty": "",
    "space": " ",
    "newline": "\n",
    "nul": "\0",
    "one char": "a",
    "8193 words": "word " * 8193,
    "5 MB": "a" * 5_000_000,
    "5 MB emoji": "😀" * 1_250_000,
    "100000 a": "a " * 100_000,
}


def raw(**fields: object) -> bytes:
    return json.dumps({"input": "x", **fields}).encode()


BODIES: dict[str, tuple[bytes, int]] = {
    **{name: (raw(input=text), 200) for name, text in TEXTS.items()},
    "2048 items": (raw(input=["x"] * 2048), 200),
    "5000 items": (raw(input=["x"] * 5000), 400),
    "lone high surrogate": (rb'{"input":"a\ud83db"}', 200),
    "lone low surrogate": (rb'{"input":["a\udc00","\uDBFF"]}', 200),
    "surrogate in a key": (rb'{"input":"a","\ud800":1}', 200),
    "surrogate in the model": (rb'{"input":"a","model":"\ud800"}', 404),
    "surrogate and NaN": (rb'{"input":"\ud800","a":NaN}', 400),
    "surrogate and rubbish": (rb'{"input":"\ud800",', 400),
    "surrogate in a deep nest": (rb'{"input":"\ud800","a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
    "escaped backslash": (rb'{"input":"\\ud800"}', 200),
    "raw surrogate bytes": (b'{"input":"\xed\xa0\x80"}', 400),
    "invalid utf-8": (b'{"input":"\xff"}', 400),
    "utf-16": ('{"input":"a"}'.encode("utf-16"), 400),
    "BOM": (b'\xef\xbb\xbf{"input":"a"}', 200),
    "duplicate keys": (b'{"input":5,"input":"a"}', 200),
    "NaN": (b'{"input":"a","dimensions":NaN}', 400),
    "Infinity": (b'{"input":"a","dimensions":-Infinity}', 400),
    "1e999": (b'{"input":"a","dimensions":1e999}', 400),
    "huge integer": (b'{"input":"a","dimensions":' + b"9" * 5000 + b"}", 400),
    "deep nest": (b"[" * 100_000, 400),
    "nothing": (b"", 400),
    "blanks": (b"  \n", 400),
    "half": (b'{"input":"a', 400),
    "a list": (b'["a"]', 400),
    "a string": (b'"a"', 400),
    "null": (b"null", 400),
    "no input": (b"{}", 400),
    "input null": (raw(input=None), 400),
    "input object": (raw(input={"a": 1}), 400),
    "input number": (raw(input=5), 400),
    "input true": (raw(input=True), 400),
    "input list of true": (raw(input=[True]), 400),
    "input nested": (raw(input=[[[1]]]), 400),
    "input ids and text": (raw(input=[1, "a"]), 400),
    "input empty ids": (raw(input=[[]]), 400),
    "input float ids": (raw(input=[[1.5]]), 400),
    "input huge ids": (b'{"input":[[99999999999999999999999]]}', 400),
    "model empty": (raw(model=""), 200),
    "model null": (raw(model=None), 200),
    "model number": (raw(model=5), 400),
    "model 10 kB": (raw(model="m" * 10_000), 404),
    "encoding BASE64": (raw(encoding_format="BASE64"), 400),
    "encoding null": (raw(encoding_format=None), 200),
    "encoding number": (raw(encoding_format=1), 400),
    "dimensions 0": (raw(dimensions=0), 400),
    "dimensions -1": (raw(dimensions=-1), 400),
    "dimensions 1": (raw(dimensions=1), 200),
    "dimensions D": (raw(dimensions=8), 200),
    "dimensions D+1": (raw(dimensions=9), 400),
    "dimensions null": (raw(dimensions=None), 200),
    "dimensions text": (raw(dimensions="8"), 400),
    "dimensions 8.5": (raw(dimensions=8.5), 400),
    "dimensions true": (raw(dimensions=True), 400),
    "truncate text": (raw(truncate="yes"), 400),
    "prompt list": (raw(prompt=["a"]), 400),
    "side up": (raw(truncation_side="up"), 400),
}


def check_next(client: httpx.Client) -> None:
    assert client.post("/v1/embeddings", json=FINE).status_code == 200


def check_error(reply: httpx.Response) -> None:
    body = reply.json()
    assert body["error"]["message"] == body["detail"]
    assert body["error"]["code"]
    assert len(body["detail"]) < 400


@pytest.mark.parametrize("name", BODIES)
def test_bodies(client, name):
    body, status = BODIES[name]
    reply = client.post("/v1/embeddings", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == status
    if status == 200:
        assert b"null" not in reply.content
    else:
        check_error(reply)
    check_next(client)


def test_a_lone_surrogate_becomes_a_replacement_character(client, engine):
    client.post("/v1/embeddings", content=rb'{"input":["a\ud83db","\ud83d\ude00\ud83d"]}')
    assert engine.requests[-1].items == ("a\ufffdb", "😀\ufffd")


def test_errors_never_echo_the_input(client):
    for fields in ({"input": {"secret": "secret"}}, {"encoding_format": "secret"}, {"dimensions": "secret"}):
        reply = client.post("/embeddings", json={"input": "secret", **fields})
        assert reply.status_code == 400
        assert "secret" not in reply.text


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded", "rubbish"])
def test_content_types(client, content_type):
    request = client.build_request("POST", "/embeddings", content=raw())
    request.headers.pop("content-type", None)
    if content_type:
        request.headers["content-type"] = content_type
    assert client.send(request).status_code == 200


def test_a_chunked_body(client):
    assert client.post("/embeddings", content=iter([b'{"inp', b'ut":"a', b'"}'])).status_code == 200


def test_a_packed_body(client):
    packed = gzip.compress(raw())
    assert client.post("/embeddings", content=packed, headers={"content-encoding": "gzip"}).status_code == 200
    for content, encoding, status in ((packed, "br", 415), (packed[:-9], "gzip", 400), (raw(), "gzip", 400)):
        reply = client.post("/embeddings", content=content, headers={"content-encoding": encoding})
        assert reply.status_code == status
        check_error(reply)
    check_next(client)


@pytest.mark.parametrize("path", ["/v1/embeddings/", "//v1//embeddings", "/embeddings", "/v1/embeddings?x=%ff"])
def test_paths_that_mean_the_same(client, path):
    assert client.post(str(client.base_url) + path, json=FINE).status_code == 200


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
def test_other_methods_on_a_post_route(client, method):
    reply = client.request(method, "/v1/embeddings")
    assert reply.status_code == 405
    assert reply.headers["allow"] == "POST"
    check_next(client)


@pytest.mark.parametrize("path", ["/v1/embedings", "/v2/embeddings", "/%ff%00", "/" + "x" * 5000, "/v1/models/%ff"])
def test_paths_that_do_not_exist(client, path):
    reply = client.post(path, json=FINE) if "models" not in path else client.get(path)
    assert reply.status_code == 404
    check_error(reply)
    check_next(client)


def test_a_near_path_is_named(client):
    assert "/v1/embeddings" in client.post("/v1/embedding", json=FINE).json()["error"]["message"]


def test_http_1_0_and_no_host(client):
    body = raw()
    head = f"POST /embeddings HTTP/1.0\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    assert b" 200 " in exchange(client, head + body)


def test_a_body_that_never_ends_and_a_client_that_leaves(client):
    head = b"POST /embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n"
    exchange(client, head + b'{"input":', read=False)
    check_next(client)


def test_no_http_at_all(client):
    assert b" 400 " in exchange(client, b"\x16\x03\x01 rubbish\r\n\r\n")
    check_next(client)


def test_many_connections_that_break_off_at_random(client):
    chance = random.Random(0)
    body = raw(input=["some text"] * 50)
    message = b"POST /embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    where = urlsplit(str(client.base_url))

    async def break_off() -> None:
        _, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write(message[: chance.randrange(1, len(message) + 1)])
        await writer.drain()
        await asyncio.sleep(chance.random() / 50)
        writer.transport.abort()

    async def storm() -> None:
        await asyncio.gather(*[break_off() for _ in range(300)])

    asyncio.run(storm())
    check_next(client)
