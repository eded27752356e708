"""The bar and the summary."""

import pytest
from rich.progress import Task

from forebay.cli.progress import Meter, RateColumn


def test_summary_tells_counts():
    meter = Meter(shown=False)
    meter.begin("embedding", None, done=5)
    meter.advance(1000, 20_000, 0)
    meter.advance(500, 10_000, 3)
    assert meter.summarize().startswith("1,500 texts in ")
    assert meter.summarize().endswith("30,000 tokens; 3 texts were truncated")


def test_a_hidden_bar_prints_nothing(capsys):
    with Meter(shown=False) as meter:
        meter.begin("embedding", 10, done=0)
        meter.advance(10, 10, 0)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("speed", [None, 1234.5])
def test_rate(speed):
    task = Task(0, "x", None, 0, _get_time=lambda: 0.0, finished_speed=speed)
    assert RateColumn().render(task).plain == ("1,234 texts/s" if speed else "– texts/s")
