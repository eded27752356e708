"""The layout of replies: what a client reads, whatever the number of items and outputs."""

import json

import numpy as np
import pytest

from forebay.core.request import Reply
from forebay.core.tasks import Task
from forebay.server.dialect import Answer, Served
from forebay.server.encode import Spelling
from forebay.server.envelope import MAX_HEADER, ArrayList

ROWS = [np.arange(4, dtype=np.float32) + number for number in range(3)]
MATRICES = [np.ones((number, 4), np.float32) for number in range(3)]


def render(outputs: dict[Task, list[np.ndarray]], spelling: Spelling, name: str = "m", notes=()) -> Answer:
    size = len(next(iter(outputs.values())))
    reply = Reply(outputs, np.full(size, 2, np.int32), np.zeros(size, np.bool_))
    served = Served(name, "abc", None)  # type: ignore[arg-type]
    return ArrayList("pooling", "pooling", "data", tuple(outputs), spelling).render(reply, served, notes)


def unpack(answer: Answer) -> tuple[dict, list[np.ndarray]]:
    """What the documentation tells clients to do."""
    meta = json.loads(answer.body[int(answer.headers["metadata-start"]) :])
    found = [
        np.frombuffer(answer.body[entry["start"] : entry["end"]], meta["dtype"]).reshape(entry["shape"])
        for entry in meta["data"]
    ]
    return meta, found


@pytest.mark.parametrize("rows", [ROWS, MATRICES, ROWS * 700])
@pytest.mark.parametrize("endianness", ["little", "big", "native"])
def test_bytes_are_unpacked_by_their_metadata(rows, endianness):
    answer = render({Task.EMBED: rows}, Spelling("bytes", endianness=endianness))
    meta, found = unpack(answer)
    assert answer.media_type == "application/octet-stream"
    assert len(found) == len(rows)
    for one, expected in zip(found, rows, strict=True):
        np.testing.assert_array_equal(one, expected)
    assert (meta["id"], meta["model"], meta["usage"]["prompt_tokens"]) == ("pooling-abc", "m", 2 * len(rows))


def test_small_metadata_stand_in_the_header_as_vllms_clients_read_them():
    answer = render({Task.EMBED: ROWS}, Spelling("bytes"))
    meta = json.loads(answer.headers["metadata"])
    assert meta == unpack(answer)[0]
    assert set(meta["data"][0]) == {"index", "embed_dtype", "endianness", "start", "end", "shape"}
    assert (meta["data"][1]["start"], meta["data"][1]["end"]) == (16, 32)


def test_headers_stay_small_and_ascii():
    large = render({Task.EMBED: ROWS * 30}, Spelling("bytes"))
    assert set(large.headers) == {"metadata-start"}
    foreign = render({Task.EMBED: ROWS}, Spelling("bytes"), "模型\n")
    assert foreign.headers["metadata"].isascii()
    assert "\n" not in foreign.headers["metadata"]
    assert json.loads(foreign.headers["metadata"])["model"] == unpack(foreign)[0]["model"] == "模型\n"
    grown = render({Task.EMBED: ROWS}, Spelling("bytes"), "模" * (MAX_HEADER // 6))
    assert set(grown.headers) == {"metadata-start"}


def test_several_outputs_are_told_apart():
    outputs = {Task.EMBED: ROWS, Task.TOKEN_EMBED: MATRICES}
    meta, found = unpack(render(outputs, Spelling("bytes", "float16"), notes=[{"n": n} for n in range(3)]))
    assert [(entry["index"], entry["task"], entry["n"]) for entry in meta["data"][:3]] == [
        (0, "embed", 0),
        (0, "token_embed", 0),
        (1, "embed", 1),
    ]
    np.testing.assert_array_equal(found[2], ROWS[1])
    np.testing.assert_array_equal(found[5], MATRICES[2])
    assert meta["dtype"] == "<f2"


def test_bytes_only_are_the_arrays_and_nothing_else():
    answer = render({Task.EMBED: ROWS}, Spelling("bytes_only", "float16"))
    assert answer.headers == {}
    np.testing.assert_array_equal(np.frombuffer(answer.body, "<f2").reshape(3, 4), ROWS)


def test_base64_has_its_shape_beside_it():
    data = json.loads(render({Task.TOKEN_EMBED: MATRICES}, Spelling("base64")).body)["data"]
    assert [entry["shape"] for entry in data] == [[0, 4], [1, 4], [2, 4]]
    eights = [np.ones((3, 16), np.float32)]
    data = json.loads(render({Task.TOKEN_EMBED: eights}, Spelling("base64", "binary")).body)["data"]
    assert data[0]["shape"] == [3, 2]
