"""Runs cover the batch, and rows are where they are said to be."""

import pytest
import torch

from forebay.layers.batch import Run, fill_rows
from tests.support.engine import flat_batch


def test_a_run_is_rows_side_by_side() -> None:
    assert Run(start=4, num_seqs=3, length=5).rows == slice(4, 19)
    assert Run(start=4, num_seqs=3, length=0).rows == slice(4, 4)


def test_the_longest_sequence() -> None:
    assert flat_batch([1, 1, 7]).max_len == 7
    assert flat_batch([0]).max_len == 0


@pytest.mark.parametrize("lens", [[1], [3, 3, 9], [16] * 5, [500, 513], [7] * 300])
def test_a_filled_batch_has_the_same_sequences_and_one_of_few_sizes(lens: list[int]) -> None:
    batch = flat_batch(lens)
    full = batch.filled()
    num_tokens = sum(lens)
    assert torch.equal(full.input_ids[:num_tokens], batch.input_ids)
    assert torch.equal(full.positions[:num_tokens], batch.positions)
    assert torch.equal(full.cu_seqlens[: len(lens) + 1], batch.cu_seqlens)
    assert full.runs[: len(batch.runs)] == batch.runs
    assert int(full.cu_seqlens[-1]) == len(full.input_ids) == sum(run.num_seqs * run.length for run in full.runs)
    assert not full.input_ids[num_tokens:].any()
    assert not full.positions[num_tokens:].any()


def test_few_sizes_serve_all_batches_at_little_waste() -> None:
    sizes = {len(fill_rows(torch.zeros(rows, 1))) for rows in range(1, 4097)}
    assert len(sizes) < 100
    for rows in range(129, 4097):
        assert rows <= len(fill_rows(torch.zeros(rows, 1))) <= rows * 17 / 16 + 1
