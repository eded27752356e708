"""The command table, errors and exit codes."""

import os
import signal
import subprocess
import sys
import time

import pytest

from forebay.cli import main
from forebay.version import __version__
from tests.cli.fake_model import FakeModel


def test_help_is_light_and_lists_every_command():
    code = (
        "import sys; from forebay.cli.main import run; assert run(['--help']) == 0;"
        "heavy = {'torch', 'numpy', 'tokenizers', 'pyarrow', 'starlette', 'uvicorn'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in main.COMMANDS:
        assert name in done.stdout


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_has_help(cli, name):
    done = cli(name, "--help")
    assert done.code == 0
    assert "Usage: forebay " + name in done.out


def test_version(cli):
    assert cli("--version").out.strip() == __version__


def test_no_command_shows_help_and_fails(cli):
    done = cli()
    assert done.code == main.MISUSED
    assert "Commands" in done.out + done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "No such command"),
        (["embed", "--dimensions", "x"], "--dimensions"),
        (["embed", "--dimensions", "0"], "--dimensions"),
        (["embed", "--unknown"], "--unknown"),
        (["embed", "--dimensions", "9", "{input}"], "dimensions is 9"),
        (["embed", "--prompt-name", "other", "{input}"], "unknown prompt 'other'"),
        (["embed", "--prompt-name", "query", "--prompt", "p", "{input}"], "exclude each other"),
        (["embed", "absent.txt"], "'absent.txt' is not there"),
        (["serve", "--port", "65536"], "--port"),
        (["serve", "--dtype", "int4"], "--dtype"),
        (["serve", "--pooler-config", "{"], "--pooler-config is not JSON"),
        (["serve", "--pooler-config", "[]"], "--pooler-config is a JSON list"),
        (["serve", "--pooler-config", '{"normalize": true}'], "use 'use_activation'"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(cli, tmp_path, arguments, message):
    source = tmp_path / "in.txt"
    source.write_text("a\n")
    done = cli(*(source if argument == "{input}" else argument for argument in arguments))
    assert done.code == main.MISUSED
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert message in done.err
    assert done.out == ""


def test_load_errors_are_one_line_and_exit_code_1(cli, monkeypatch):
    done = cli("info", "absent")
    assert (done.code, done.err) == (
        main.FAILED,
        "error: no checkpoint 'absent'; expected a folder or a hub id\n",
    )
    monkeypatch.setenv("FOREBAY_DEBUG", "1")
    with pytest.raises(main.ForebayError):
        cli("info", "absent")


def test_a_full_disk_is_one_line(cli, monkeypatch):
    def fail(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FakeModel, "__init__", fail)
    done = cli("info")
    assert (done.code, done.err) == (main.FAILED, "error: [Errno 28] No space left on device\n")


def test_interrupt_is_exit_code_130_and_keeps_the_run(fake_command, tmp_path):
    source, out = tmp_path / "in.txt", tmp_path / "out.npy"
    source.write_text("text\n" * 1000)
    process = subprocess.Popen(
        [*fake_command, "embed", source, "-o", out],
        env=os.environ | {"FAKE_DELAY": "2"},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells let background jobs ignore it
    )
    while not out.with_name("out.npy.progress").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == main.INTERRUPTED
    assert "Traceback" not in err
    assert "--resume" in err
    assert not out.exists()


def test_broken_pipe_ends_quietly(fake_command, tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("text\n" * 5000)
    process = subprocess.Popen(
        [*fake_command, "embed", source, "--no-progress"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith('{"embedding":')
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == main.FAILED


def test_module_runs_like_the_script():
    done = subprocess.run([sys.executable, "-m", "forebay", "--version"], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == __version__
