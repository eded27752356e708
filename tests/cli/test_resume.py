"""A killed bulk run goes on where it stopped, and ends as if nothing had happened."""

import json
import os
import signal
import subprocess
import time

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest

from tests.cli.fake_model import vector

NUM_TEXTS = 400


def count_saved(journal):
    """Rows that the journal tells of; it may not be there yet."""
    try:
        return orjson.loads(journal.read_bytes())["rows"]
    except FileNotFoundError:
        return 0


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.jsonl"
    texts = ("FAIL" if index % 97 == 96 else f"text {index}" for index in range(NUM_TEXTS))
    path.write_text("".join(json.dumps({"text": text, "id": i}) + "\n" for i, text in enumerate(texts)))
    return path


@pytest.fixture
def start(fake_command, source):
    """Start a run, kill it once it has saved some chunks, and return its journal's path."""

    def start_and_kill(out, *options, command=("embed",)):
        process = subprocess.Popen(
            [*fake_command, *command, source, "-o", out, *options],
            env=os.environ | {"FAKE_DELAY": "0.03"},
            stderr=subprocess.DEVNULL,
        )
        journal = out.with_name(out.name + ".progress")
        while count_saved(journal) < 64:
            assert process.poll() is None
            time.sleep(0.005)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert 64 <= count_saved(journal) < NUM_TEXTS
        return journal

    return start_and_kill


SPARSE = ["-m", "language-model", "--output", "sparse"]
TOKENS = ["-m", "language-model", "--output", "tokens", "--chunk-size", "2"]
IDS = ["--id-field", "id"]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["embed"], "out.npy"),
        (["embed", *IDS], "out.jsonl"),
        (["embed", *IDS], "out.parquet"),
        (["embed", *SPARSE], "out.npz"),
        (["embed", *SPARSE, "--tokens"], "out.jsonl"),
        (["embed", *TOKENS, *IDS], "out.parquet"),
        (["classify", "-m", "classifier", "--all-scores"], "out.parquet"),
        (["classify", "-m", "tagger", *IDS], "out.jsonl"),
    ],
)
def test_a_killed_run_resumes_to_the_same_output(fake_command, source, start, tmp_path, command, name):
    whole, out = tmp_path / f"whole-{name}", tmp_path / name
    subprocess.run([*fake_command, *command, source, "-o", whole], stderr=subprocess.DEVNULL, check=False)
    start(out, command=command)
    assert not out.exists()
    done = subprocess.run([*fake_command, *command, source, "-o", out, "--resume"], capture_output=True, check=False)
    assert done.returncode == 1  # of the texts that fail
    assert f"error: 4 of {NUM_TEXTS} texts failed".encode() in done.stderr
    if out.suffix == ".parquet":
        assert pq.read_table(out).equals(pq.read_table(whole))
    else:
        assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source.name, whole.name, name])


def test_rows_beyond_the_journal_are_computed_again(cli, source, start, tmp_path):
    out = tmp_path / "out.npy"
    journal = start(out)
    with (tmp_path / "out.npy.partial").open("ab") as stream:
        stream.write(b"half a row")
    saved = count_saved(journal)
    done = cli("embed", source, "-o", out, "--resume")
    assert f"{NUM_TEXTS - saved} texts in" in done.err
    vectors = np.load(out)
    assert vectors.shape[0] == NUM_TEXTS
    np.testing.assert_array_equal(vectors[-1], vector(f"text {NUM_TEXTS - 1}"))


def test_changed_options_are_refused(cli, source, start, tmp_path):
    start(tmp_path / "out.npy")
    before = (tmp_path / "out.npy.partial").read_bytes()
    for option in (
        ["--dimensions", 4],
        ["--truncate-dim", 4],
        ["--prompt", "p"],
        ["--raw"],
        ["--model", "other"],
        ["--convert", "embed"],
        ["--truncation-side", "left"],
        ["--pooler-config", "{}"],
    ):
        done = cli("embed", source, "-o", tmp_path / "out.npy", "--resume", *option)
        assert done.code == 2
        assert "can't resume" in done.err
        assert option[0].removeprefix("--") in done.err
    assert (tmp_path / "out.npy.partial").read_bytes() == before


def test_changed_input_is_refused(cli, source, start, tmp_path):
    start(tmp_path / "out.npy")
    lines = source.read_text()
    source.write_text(lines.replace("text 3", "text 4", 1))
    done = cli("embed", source, "-o", tmp_path / "out.npy", "--resume")
    assert done.code == 2
    assert "texts of the input changed" in done.err
    source.write_text(lines + '"one more"\n')
    done = cli("embed", source, "-o", tmp_path / "out.npy", "--resume")
    assert done.code == 2
    assert "can't resume: input changed" in done.err
    source.write_text(lines)
    assert cli("embed", source, "-o", tmp_path / "out.npy", "--resume").code == 1  # of the texts that fail


def test_a_stopped_run_is_not_lost_by_mistake(cli, source, start, tmp_path):
    out = tmp_path / "out.npy"
    start(out)
    done = cli("embed", source, "-o", out)
    assert done.code == 2
    assert "continue it by --resume, or start anew by --overwrite" in done.err
    assert cli("embed", source, "-o", out, "--overwrite").code == 1
    assert np.load(out).shape[0] == NUM_TEXTS


def test_an_old_output_stays_until_the_resumed_run_ends(cli, source, start, tmp_path):
    out = tmp_path / "out.npy"
    out.write_text("old")
    start(out, "--overwrite")
    assert out.read_text() == "old"
    assert cli("embed", source, "-o", out, "--resume").code == 1
    assert np.load(out).shape[0] == NUM_TEXTS


def test_a_kill_between_the_last_two_steps_is_settled(cli, source, start, tmp_path):
    out, partial = tmp_path / "out.npy", tmp_path / "out.npy.partial"
    journal = start(out)
    journal.write_bytes(orjson.dumps(orjson.loads(journal.read_bytes()) | {"is_complete": True}))
    finished = partial.read_bytes()
    done = cli("embed", source, "-o", out, "--resume")
    assert (done.code, "nothing to resume" in done.err) == (2, True)
    assert out.read_bytes() == finished
    assert not journal.exists()


@pytest.mark.parametrize("damage", ["journal", "output"])
def test_damage_is_told(cli, source, start, tmp_path, damage):
    journal = start(tmp_path / "out.npy")
    if damage == "journal":
        journal.write_text('{"rows": 3}')
    else:
        (tmp_path / "out.npy.partial").write_bytes(b"")
    done = cli("embed", source, "-o", tmp_path / "out.npy", "--resume")
    assert done.code == 2
    assert "start anew by --overwrite" in done.err


def test_missing_parts_are_told(cli, source, start, tmp_path):
    start(tmp_path / "out.parquet")
    (tmp_path / "out.parquet.parts" / "part-00001.parquet").unlink()
    done = cli("embed", source, "-o", tmp_path / "out.parquet", "--resume")
    assert done.code == 2
    assert "start anew by --overwrite" in done.err


def test_a_run_of_another_kind_is_refused(cli, source, start, tmp_path):
    out = tmp_path / "out.jsonl"
    start(out, *SPARSE)
    for command in (["embed", *SPARSE, "--tokens"], ["embed", *TOKENS], ["classify", "-m", "classifier"]):
        done = cli(*command, source, "-o", out, "--resume")
        assert (done.code, "can't resume: " in done.err) == (2, True)


def test_a_lost_spool_is_told(cli, source, start, tmp_path):
    start(tmp_path / "out.npz", *SPARSE)
    (tmp_path / "out.npz.parts" / "rows.spool").unlink()
    done = cli("embed", *SPARSE, source, "-o", tmp_path / "out.npz", "--resume")
    assert (done.code, "start anew by --overwrite" in done.err) == (2, True)
