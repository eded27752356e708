"""Runs cover the batch, and rows are where they are said to be."""

from forebay.layers.batch import Run
from tests.support.engine import flat_batch


def test_a_run_is_rows_side_by_side() -> None:
    assert Run(start=4, num_seqs=3, length=5).rows == slice(4, 19)
    assert Run(start=4, num_seqs=3, length=0).rows == slice(4, 4)


def test_the_longest_sequence() -> None:
    assert flat_batch([1, 1, 7]).max_len == 7
    assert flat_batch([0]).max_len == 0
