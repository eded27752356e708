"""Sequences laid end to end and taken apart again; equal ones stand there once."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.core.params import PoolingParams
from forebay.engine.pack import Packed, pack
from forebay.engine.sequence import Sequence
from tests.support.engine import CPU, flat_cursor, make_sequences

IDS = st.lists(st.integers(0, 3), max_size=6)
PARAMS = [PoolingParams(), PoolingParams(dimensions=2), PoolingParams(use_activation=False)]
ITEMS = st.lists(st.tuples(IDS, st.integers(0, 2), st.sampled_from(PARAMS)), min_size=1, max_size=30)


def make(items: list[tuple[list[int], int, PoolingParams]]) -> list[Sequence]:
    return [
        sequence
        for ids, prompt_len, params in items
        for sequence in make_sequences([ids], params=params, prompt_lens=[prompt_len])
    ]


def unpack(packed: Packed) -> dict[int, tuple[list[int], int, PoolingParams]]:
    """For each sequence what the batch, the cursor and the groups say of it."""
    ids, cursor = packed.batch.input_ids.tolist(), packed.cursor
    found = {}
    for params, group in packed.groups.items():
        for member in group.members:
            row = group.rows[member.place]
            start, length = int(cursor.starts[row]), int(cursor.lens[row])
            found[id(member.sequence)] = (ids[start : start + length], int(cursor.prompt_lens[row]), params)
    return found


@given(ITEMS)
@settings(max_examples=150, deadline=None)
def test_unpack_is_the_inverse(items: list[tuple[list[int], int, PoolingParams]]) -> None:
    sequences = make(items)
    found = unpack(pack(sequences, CPU))
    assert [found[id(sequence)] for sequence in sequences] == items


@given(ITEMS)
@settings(max_examples=150, deadline=None)
def test_the_parts_agree(items: list[tuple[list[int], int, PoolingParams]]) -> None:
    packed = pack(make(items), CPU)
    batch, cursor, lens = packed.batch, packed.cursor, packed.cursor.lens.tolist()
    assert lens == sorted(lens)
    assert len(cursor) == len({(tuple(ids), prompt_len) for ids, prompt_len, _ in items})
    assert batch.cu_seqlens.tolist() == [0, *np.cumsum(lens).tolist()]
    assert cursor.starts.tolist() == batch.cu_seqlens.tolist()[:-1]
    assert batch.positions.tolist() == [place for length in lens for place in range(length)]
    assert cursor.token_positions().tolist() == batch.positions.tolist()
    assert [run.length for run in batch.runs for _ in range(run.num_seqs)] == lens
    assert [run.start for run in batch.runs] == [cursor.starts[lens.index(run.length)] for run in batch.runs]
    assert len({run.length for run in batch.runs}) == len(batch.runs)
    assert len(batch.input_ids) == len(batch.positions) == sum(lens)


def test_the_example_of_the_docstring() -> None:
    packed = pack(make_sequences([[5, 6, 7], [8], [5, 6, 7]]), CPU)
    assert packed.batch.input_ids.tolist() == [8, 5, 6, 7]
    assert packed.batch.cu_seqlens.tolist() == [0, 1, 4]
    (group,) = packed.groups.values()
    assert [group.rows[member.place] for member in group.members] == [1, 0, 1]


def test_rows_of_a_group_are_ascending_and_distinct() -> None:
    sequences = make_sequences([[3] * 4, [1], [3] * 4, [2] * 2])
    sequences += make_sequences([[2] * 2, [9] * 9], params=PARAMS[1])
    packed = pack(sequences, CPU)
    assert {params: group.rows for params, group in packed.groups.items()} == {PARAMS[0]: [0, 1, 2], PARAMS[1]: [1, 3]}


def test_only_empty_sequences() -> None:
    packed = pack(make_sequences([[], []]), CPU)
    assert (len(packed.cursor), packed.batch.max_len, len(packed.batch.input_ids)) == (1, 0, 0)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=12).map(sorted), st.data())
@settings(max_examples=100, deadline=None)
def test_a_selection_keeps_its_rows(lens: list[int], data: st.DataObject) -> None:
    batch, cursor = flat_cursor(lens)
    rows = sorted(data.draw(st.sets(st.integers(0, len(lens) - 1), min_size=1)))
    some = cursor.select(rows)
    assert some.lens.tolist() == [lens[row] for row in rows]
    assert some.starts.tolist() == [cursor.starts[row] for row in rows]
    assert [run.length for run in some.runs for _ in range(run.num_seqs)] == some.lens.tolist()
    expected = [place for row in rows for place in range(cursor.starts[row], cursor.starts[row] + lens[row])]
    assert some.own_rows().tolist() == expected
    covered = [place for run in some.runs for place in range(run.rows.start, run.rows.stop)]
    assert covered == expected
    assert some.take_rows(batch.input_ids).tolist() == batch.input_ids[expected].tolist()
