"""`forebay plugin`: JSON in, JSON out."""

import io
import json
import sys

import pytest

from tests.cli.fake_model import FakeModel, vector

COMMAND = ("plugin", "some/model", "--io-processor", "lines")


def test_a_file_goes_through_the_processor(cli, tmp_path):
    path = tmp_path / "in.json"
    path.write_text('{"texts": ["a", "b"]}')
    done = cli(*COMMAND, path)
    assert (done.code, done.err) == (0, "")
    wanted = {"processor": "lines", "data": {"texts": ["a", "b"]}, "vector": pytest.approx(vector("plugin").tolist())}
    assert json.loads(done.out) == wanted


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_standard_input(cli, monkeypatch, arguments):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"[1, 2]")))
    assert json.loads(cli(*COMMAND, *arguments).out)["data"] == [1, 2]


def test_no_json_is_refused(cli, tmp_path):
    path = tmp_path / "in.json"
    path.write_text("{secret")
    done = cli(*COMMAND, path)
    assert done.code == 2
    assert done.err.startswith(f"error: {path}: not JSON (")
    assert "secret" not in done.err


def test_an_answer_that_is_no_json_is_told(cli, tmp_path, monkeypatch):
    path = tmp_path / "in.json"
    path.write_text("1")
    monkeypatch.setattr(FakeModel, "plugin", lambda self, data: {"bytes": b"x"})
    done = cli(*COMMAND, path)
    assert (done.code, done.out) == (1, "")
    assert "the answer of the IO processor 'lines' is no JSON" in done.err


def test_the_processor_must_be_named(cli):
    done = cli("plugin", "some/model")
    assert done.code == 2
    assert "--io-processor" in done.err
