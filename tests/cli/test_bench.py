"""`forebay bench`: what it prints, not how fast it is."""

import pytest

from forebay.cli import bench


@pytest.mark.parametrize("model", ["default", "classifier", "tagger"])
def test_markdown_has_every_measurement(cli, model):
    done = cli("bench", model, "--texts", 5)
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "| throughput | texts/s | tokens/s |"
    assert lines[1] == "| --- | ---: | ---: |"
    assert [line.split()[2] for line in lines[2:5]] == list(bench.LENGTHS)
    for name in ("p50", "p99", "load time", "peak memory of the process"):
        assert name in done.out


@pytest.mark.parametrize("kind", bench.LENGTHS)
def test_texts_are_the_same_at_every_call_and_as_long_as_said(kind):
    texts = bench.make_texts(kind, 50)
    assert texts == bench.make_texts(kind, 50)
    lengths = [len(text.split()) for text in texts]
    least, most = bench.LENGTHS[kind]
    assert least <= min(lengths) <= max(lengths) <= most
    assert len(set(lengths)) > 1
