"""Each method against its formula; alone as in any batch; chunk after chunk as at once."""

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from forebay.layers.batch import Run
from forebay.pooling.cursor import Cursor
from forebay.pooling.methods import METHODS, all_rows, last_by_id, step_rows
from tests.pooling.formulas import FORMULAS, pooled
from tests.support.engine import flat_cursor

HIDDEN = 5
SEQUENCES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 14)), min_size=1, max_size=12).map(
    lambda pairs: sorted((length, min(prompt_len, length)) for length, prompt_len in pairs)
)


def states(num_rows: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random rows, all of them negative in the first column: a maximum that starts at zero would show."""
    hidden = torch.randn(num_rows, HIDDEN, generator=torch.Generator().manual_seed(seed))
    hidden[:, 0] = -hidden[:, 0].abs() - 1
    return hidden.to(dtype)


def expected(name: str, hidden: Tensor, cursor: Cursor) -> Tensor:
    rows = hidden.double().numpy()
    return torch.tensor(
        np.array(
            [
                pooled(name, rows[start : start + length], int(prompt_len))
                for start, length, prompt_len in zip(cursor.starts, cursor.lens, cursor.prompt_lens, strict=True)
            ]
        )
    ).float()


def test_every_method_has_its_formula_here() -> None:
    assert set(FORMULAS) == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
@given(SEQUENCES)
@settings(max_examples=40, deadline=None)
def test_it_is_the_formula(name: str, sequences: list[tuple[int, int]]) -> None:
    lens, prompt_lens = [length for length, _ in sequences], [prompt_len for _, prompt_len in sequences]
    _, cursor = flat_cursor(lens, prompt_lens)
    hidden = states(sum(lens))
    found = METHODS[name](hidden, cursor)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected(name, hidden, cursor), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_alone_is_as_in_the_batch(name: str) -> None:
    lens = [1, 1, 2, 3, 3, 3, 8]
    _, cursor = flat_cursor(lens)
    hidden = states(sum(lens))
    together = METHODS[name](hidden, cursor)
    for row, (start, length) in enumerate(zip(cursor.starts, cursor.lens, strict=True)):
        _, alone = flat_cursor([int(length)])
        torch.testing.assert_close(METHODS[name](hidden[start : start + length], alone)[0], together[row])


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("rows", [[0], [2, 3], [0, 4, 6], [1, 2, 3, 5]], ids=str)
def test_a_selection_sees_its_own_rows(name: str, rows: list[int]) -> None:
    lens, prompt_lens = [0, 1, 2, 3, 3, 3, 8], [0, 0, 1, 0, 2, 0, 5]
    _, cursor = flat_cursor(lens, prompt_lens)
    hidden = states(sum(lens))
    whole = METHODS[name](hidden, cursor)
    torch.testing.assert_close(METHODS[name](hidden, cursor.select(rows)), whole[rows])


@pytest.mark.parametrize("name", METHODS)
def test_long_batches_are_pooled_in_slabs(name: str) -> None:
    """More rows than are brought to float32 at once, and one sequence longer than that."""
    lens = [9] * 1000 + [5000]
    _, cursor = flat_cursor(lens)
    hidden = states(sum(lens), dtype=torch.bfloat16)
    found = METHODS[name](hidden, cursor)
    torch.testing.assert_close(found, expected(name, hidden, cursor), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_sums_are_made_in_float32(name: str) -> None:
    """Three thousand rows of about 1 in bfloat16, whose own sum would stop at 256."""
    _, cursor = flat_cursor([3000])
    hidden = torch.full((3000, HIDDEN), 1.0078125, dtype=torch.bfloat16)
    root = 3000**0.5 if name == "MEAN_SQRT_LEN" else 1.0
    torch.testing.assert_close(
        METHODS[name](hidden, cursor), torch.full((1, HIDDEN), 1.0078125 * root), rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("name", METHODS)
def test_not_a_number_stays_with_its_sequence(name: str) -> None:
    lens = [3, 3, 4]
    _, cursor = flat_cursor(lens)
    hidden = states(10)
    hidden[3:6] = float("nan")
    found = METHODS[name](hidden, cursor)
    assert torch.isfinite(found).all(1).tolist() == [True, False, True]


def chunks(lens: list[int], prompt_lens: list[int], cuts: list[int]) -> list[tuple[Cursor, list[int]]]:
    """Each chunk's cursor and its rows of the whole; sequence i gives at most ``cuts[i]`` tokens a chunk."""
    starts = np.concatenate([[0], np.cumsum(lens)[:-1]]).astype(int)
    found, done = [], [0] * len(lens)
    while not found or done != lens:
        sizes = [min(cut, length - past) for cut, length, past in zip(cuts, lens, done, strict=True)]
        rows = [
            int(start) + past + place
            for start, past, size in zip(starts, done, sizes, strict=True)
            for place in range(size)
        ]
        own = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        runs = tuple(Run(int(start), 1, size) for start, size in zip(own, sizes, strict=True))
        arrays = [np.array(values, np.int64) for values in (sizes, prompt_lens, done, [7] * len(rows))]
        found.append((Cursor(own, *arrays, runs), rows))
        done = [past + size for past, size in zip(done, sizes, strict=True)]
    return found


CHUNKED = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12), st.integers(1, 5)), min_size=1, max_size=5).map(
    lambda rows: sorted((length, min(prompt_len, length), cut) for length, prompt_len, cut in rows)
)


@pytest.mark.parametrize("name", METHODS)
@given(CHUNKED)
@settings(max_examples=40, deadline=None)
def test_chunk_after_chunk_is_as_at_once(name: str, sequences: list[tuple[int, int, int]]) -> None:
    lens, prompt_lens, cuts = ([row[column] for row in sequences] for column in range(3))
    hidden = states(sum(lens))
    method, carried = METHODS[name], None
    for cursor, rows in chunks(lens, prompt_lens, cuts):
        new = method.partial(hidden[rows], cursor)
        carried = new if carried is None else method.merge(carried, new)
    assert carried is not None
    _, whole = flat_cursor(lens, prompt_lens)
    torch.testing.assert_close(method.finish(carried), expected(name, hidden, whole), rtol=1e-5, atol=1e-5)


def cursor_of(ids: list[list[int]]) -> Cursor:
    lens = np.array([len(own) for own in ids], np.int64)
    starts, nothing = np.cumsum(lens) - lens, np.zeros_like(lens)
    runs = tuple(Run(int(start), 1, int(length)) for start, length in zip(starts, lens, strict=True))
    return Cursor(starts, lens, nothing, nothing, np.array([*chain(*ids)], np.int64), runs)


def test_the_last_token_that_is_no_padding() -> None:
    ids = [[5, 6, 0], [0, 0], [7], [5, 0, 6, 0, 0], []]
    hidden = states(11)
    found = last_by_id(0)(hidden, cursor_of(ids))
    torch.testing.assert_close(found, torch.stack([hidden[1], hidden[3], hidden[5], hidden[8], torch.zeros(HIDDEN)]))


def test_all_rows_and_those_of_a_tag() -> None:
    ids = [[5, 9, 6, 9], [5], [9, 9], []]
    hidden, cursor = states(7), cursor_of(ids)
    rows, lens = all_rows(hidden, cursor)
    assert torch.equal(rows, hidden)
    assert lens.tolist() == [4, 1, 2, 0]
    rows, lens = step_rows(9)(hidden, cursor)
    assert torch.equal(rows, hidden[[1, 3, 5, 6]])
    assert lens.tolist() == [2, 0, 2, 0]
    rows, lens = step_rows(9)(hidden, cursor.select([1, 2]))
    assert torch.equal(rows, hidden[[5, 6]])
    assert lens.tolist() == [0, 2]
