"""Blocks: found by what they hold, never given out while held, the least recently freed taken first."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.engine.blocks import BlockPool, hash_chain


def chain(text: str, salt: str = "") -> list[bytes]:
    """Of blocks of two letters."""
    return hash_chain(np.array([ord(letter) for letter in text], np.int32), 2, salt)


def fill(pool: BlockPool, text: str) -> list[int]:
    """Hold, compute, keep, let go."""
    known = pool.find(chain(text))
    table = pool.take(known, pool.count_blocks(len(text)) - len(known))
    assert table is not None
    pool.keep(table, chain(text))
    pool.free(table)
    return table


def test_a_chain_tells_all_that_came_before() -> None:
    assert chain("abcd")[1] != chain("xbcd")[1]
    assert chain("abcd") == chain("abcdz")
    assert chain("abcd")[0] != chain("abcd", "salt")[0]
    assert chain("a") == []


def test_a_common_prefix_is_found() -> None:
    pool = BlockPool(10, 2)
    table = fill(pool, "abcdefg")
    assert pool.find(chain("abcdxy")) == table[:2]
    assert pool.find(chain("xbcd")) == []
    assert pool.find(chain("abcdefg")) == table[:3]  # the last block is not full
    assert pool.num_held == 0


def test_what_is_held_is_not_taken() -> None:
    pool = BlockPool(3, 2)
    table = pool.take([], 2)
    assert table is not None
    assert pool.take([], 2) is None
    assert pool.num_held == 2
    pool.free(table)
    assert pool.take([], 3) is not None


def test_a_known_block_may_be_held_by_several() -> None:
    pool = BlockPool(4, 2)
    table = fill(pool, "abcd")
    first, second = pool.take(table, 1), pool.take(table, 1)
    assert first is not None
    assert second is not None
    assert (first[:2], second[:2], first[2] != second[2]) == (table, table, True)
    pool.free(first)
    assert pool.take([], 2) is None  # one is free: the first's own
    pool.free(second)
    assert pool.num_held == 0


def test_what_is_known_and_free_counts_as_taken() -> None:
    """Three blocks, two of them known: only one more is there."""
    pool = BlockPool(3, 2)
    table = fill(pool, "abcd")
    assert pool.take(table, 2) is None
    assert pool.num_held == 0
    assert pool.take(table, 1) is not None


def test_the_least_recently_freed_goes_first_and_its_end_before_its_beginning() -> None:
    pool = BlockPool(4, 2)
    fill(pool, "abcd")
    fill(pool, "efgh")
    fill(pool, "abcd")  # used again
    assert pool.take([], 1) is not None
    assert [len(pool.find(chain(text))) for text in ("abcd", "efgh")] == [2, 1]
    assert pool.take([], 2) is not None
    assert [len(pool.find(chain(text))) for text in ("abcd", "efgh")] == [1, 0]


def test_blocks_without_known_content_go_before_all() -> None:
    pool = BlockPool(4, 2)
    fill(pool, "abcd")
    other = pool.take([], 2)
    assert other is not None
    pool.free(other)
    assert set(pool.take([], 2) or ()) == set(other)
    assert len(pool.find(chain("abcd"))) == 2


def test_the_same_content_twice_is_known_once() -> None:
    """Two sequences computed it side by side: one copy is found, the other is free for anything."""
    pool = BlockPool(4, 2)
    tables = [pool.take([], 2), pool.take([], 2)]
    for table in tables:
        assert table is not None
        pool.keep(table, chain("abcd"))
        pool.free(table)
    assert pool.find(chain("abcd")) == tables[0]
    assert set(pool.take([], 2) or ()) == set(tables[1] or ())


@given(st.integers(1, 12), st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_no_block_is_lost_or_given_out_twice(size: int, seed: int) -> None:
    pool, chance = BlockPool(size, 2), random.Random(seed)
    content: dict[int, str] = {}  # what was last written to each block
    held: list[tuple[str, list[int]]] = []
    for _ in range(60):
        if held and chance.random() < 0.5:
            text, table = held.pop(chance.randrange(len(held)))
            if chance.random() < 0.8:
                pool.keep(table, chain(text))
            pool.free(table)
            continue
        text = "".join(chance.choice("ab") for _ in range(chance.randint(1, 9)))
        known = pool.find(chain(text)[: (len(text) - 1) // 2])
        for place, block in enumerate(known):
            assert content[block] == text[: 2 * place + 2]
        table = pool.take(known, pool.count_blocks(len(text)) - len(known))
        others = {block for _, one in held for block in one}
        if table is None:
            assert len(others | set(known)) + pool.count_blocks(len(text)) - len(known) > size
            continue
        assert not others & set(table[len(known) :])
        for place in range(len(known), len(table)):
            content[table[place]] = text[: 2 * place + 2]
        held.append((text, table))
        assert pool.num_held == len({block for _, one in held for block in one})


@pytest.mark.parametrize(("num_tokens", "expected"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks_are_counted_up(num_tokens: int, expected: int) -> None:
    assert BlockPool(3, 16).count_blocks(num_tokens) == expected


def test_no_more_free_blocks_keep_their_content_than_are_wanted() -> None:
    """A pool for one long text: what is kept of many short ones stays as small as it was."""
    pool = BlockPool(100, 2, 3)
    for text in ("abcd", "efgh", "ijkl"):
        fill(pool, text)
    assert [len(pool.find(chain(text))) for text in ("abcd", "efgh", "ijkl")] == [0, 1, 2]
    seen: set[int] = set()
    for place in range(200):
        seen |= set(fill(pool, f"{place:04}"))
    assert len(seen) <= 3 + 2 + 1, "memory that is in use already is taken first"
    assert pool.take([], 100) is not None
