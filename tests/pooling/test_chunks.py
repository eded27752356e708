"""A sequence in chunks, cut anywhere, is pooled as the whole; the last token by its id against that by its place."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from forebay.layers.batch import Run
from forebay.pooling.cursor import Cursor
from forebay.pooling.methods import METHODS, Method, all_rows, last_by_id, step_rows

HIDDEN = 6
PADDING, TAG = 0, 3
BOUND = 1e-6
BY_NAME: dict[str, Method] = {**METHODS, "LAST by id": last_by_id(PADDING)}


class Text(NamedTuple):
    """Its tokens, how many of them are the prompt's, and where it is cut; equal cuts are empty chunks."""

    ids: list[int]
    prompt_len: int
    cuts: list[int]


@st.composite
def texts(draw: st.DrawFn, num_cuts: int) -> Text:
    ids = draw(st.lists(st.integers(0, 4), min_size=0, max_size=12))
    prompt_len = draw(st.integers(0, len(ids)))
    inner = sorted(draw(st.lists(st.integers(0, len(ids)), min_size=num_cuts, max_size=num_cuts)))
    return Text(ids, prompt_len, [0, *inner, len(ids)])


BATCHES = st.integers(0, 4).flatmap(lambda num_cuts: st.lists(texts(num_cuts), min_size=1, max_size=4))


def states(batch: list[Text]) -> list[Tensor]:
    """Rows of each text; the first column is negative, so that a maximum that starts at zero would show."""
    generator = torch.Generator().manual_seed(sum(map(len, batch)))
    found = [torch.randn(len(text.ids), HIDDEN, generator=generator) for text in batch]
    for rows in found:
        rows[:, 0] = -rows[:, 0].abs() - 1
    return found


def lay_out(batch: list[Text], rows: list[Tensor], places: list[tuple[int, int]]) -> tuple[Tensor, Cursor]:
    """The flat states and the cursor of one chunk: ``places`` are each text's first token and the one behind it."""
    lens = np.array([end - start for start, end in places], np.int64)
    starts = np.cumsum(lens) - lens
    ids = [token for text, (start, end) in zip(batch, places, strict=True) for token in text.ids[start:end]]
    cursor = Cursor(
        starts,
        lens,
        np.array([text.prompt_len for text in batch], np.int64),
        np.array([start for start, _ in places], np.int64),
        np.array(ids, np.int64),
        tuple(Run(int(start), 1, int(length)) for start, length in zip(starts, lens, strict=True)),
    )
    return torch.cat([own[start:end] for own, (start, end) in zip(rows, places, strict=True)]), cursor


def whole(batch: list[Text]) -> tuple[Tensor, Cursor]:
    return lay_out(batch, states(batch), [(0, len(text.ids)) for text in batch])


def chunked(batch: list[Text]) -> Iterator[tuple[Tensor, Cursor]]:
    rows = states(batch)
    for number, _ in enumerate(pairwise(batch[0].cuts)):
        yield lay_out(batch, rows, [(text.cuts[number], text.cuts[number + 1]) for text in batch])


def fold(method: Method, batch: list[Text]) -> Tensor:
    carried = None
    for hidden, cursor in chunked(batch):
        new = method.partial(hidden, cursor)
        carried = new if carried is None else method.merge(carried, new)
    assert carried is not None
    return method.finish(carried)


@pytest.mark.parametrize("name", BY_NAME)
@given(batch=BATCHES)
@settings(max_examples=60, deadline=None)
def test_any_cut_gives_the_whole(name: str, batch: list[Text]) -> None:
    found = fold(BY_NAME[name], batch)
    expected = BY_NAME[name](*whole(batch))
    assert found.dtype == torch.float32
    assert (found - expected).abs().max() <= BOUND * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("name", BY_NAME)
def test_a_mistake_in_the_merge_would_be_seen(name: str) -> None:
    """Each other method's merge, and each that forgets one side, gives another result here.

    But CLS has the row that it wants in one chunk alone: the newer of its weights is the larger too.
    """
    batch = [Text([1, 2, 0, 3, 0, 0], 1, [0, 2, 5, 6, 6]), Text([1, 4, 4], 2, [0, 1, 2, 3, 3])]
    method, expected = BY_NAME[name], BY_NAME[name](*whole(batch))
    alike = {method.merge, METHODS["LAST"].merge} if name == "CLS" else {method.merge}
    wrongs = [lambda carried, new: new, lambda carried, new: carried]
    wrongs += {other.merge for other in METHODS.values()} - alike
    for merge in wrongs:
        found = fold(Method(method.partial, merge, method.finish), batch)
        assert (found - expected).abs().max() >= 1e-3


@pytest.mark.parametrize("take", [all_rows, step_rows(TAG)], ids=["all", "step"])
@given(batch=BATCHES)
@settings(max_examples=60, deadline=None)
def test_rows_of_chunks_end_to_end(take: object, batch: list[Text]) -> None:
    """What is carried between chunks are the rows themselves."""
    parts: list[list[Tensor]] = [[] for _ in batch]
    for hidden, cursor in chunked(batch):
        rows, lens = take(hidden, cursor)  # type: ignore[operator]
        for own, part in zip(parts, rows.split(lens.tolist()), strict=True):
            own.append(part)
    rows, lens = take(*whole(batch))  # type: ignore[operator]
    assert lens.sum() == len(rows)
    for own, expected in zip(parts, rows.split(lens.tolist()), strict=True):
        assert torch.equal(torch.cat(own), expected)


def test_last_by_id_and_last_by_place() -> None:
    """A text that ends in the padding id itself is pooled one token earlier by the rule of causal classifiers."""
    ids = [[5, 6, 7], [5, 6, 0], [5, 0, 0], [0, 5], [0, 0, 0], [7]]
    batch = [Text(own, 0, [0, len(own)]) for own in ids]
    rows = states(batch)
    hidden, cursor = whole(batch)
    by_id, by_place = last_by_id(PADDING)(hidden, cursor), METHODS["LAST"](hidden, cursor)
    for index, place in enumerate([2, 1, 0, 1, 0, 0]):
        assert torch.equal(by_id[index], rows[index][place])
        assert torch.equal(by_place[index], rows[index][-1])
    assert [torch.equal(*pair) for pair in zip(by_id, by_place, strict=True)] == [True, False, False, True, False, True]


@pytest.mark.parametrize("side", ["right", "left"])
def test_last_by_id_is_the_rule_of_transformers(side: str) -> None:
    """Whichever side its batch is padded on; a mask is not asked."""
    config = transformers.Qwen2Config(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_labels=3,
        pad_token_id=PADDING,
        initializer_range=0.5,
    )
    torch.manual_seed(3)
    model = transformers.Qwen2ForSequenceClassification(config).eval()
    ids = [[5, 6, 7, 8], [5, 6, 0], [9, 0, 8, 0, 0], [7]]
    longest = max(map(len, ids))
    pads = [[PADDING] * (longest - len(own)) for own in ids]
    padded = [own + pad if side == "right" else pad + own for own, pad in zip(ids, pads, strict=True)]
    mask = [
        [1] * len(own) + [0] * len(pad) if side == "right" else [0] * len(pad) + [1] * len(own)
        for own, pad in zip(ids, pads, strict=True)
    ]
    positions = (torch.tensor(mask).cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        expected = model(
            input_ids=torch.tensor(padded), attention_mask=torch.tensor(mask), position_ids=positions
        ).logits
        rows = [model.model(input_ids=torch.tensor([own])).last_hidden_state[0] for own in ids]
        batch = [Text(own, 0, [0, len(own)]) for own in ids]
        hidden, cursor = lay_out(batch, rows, [(0, len(own)) for own in ids])
        found = model.score(last_by_id(PADDING)(hidden, cursor))
        by_place = model.score(METHODS["LAST"](hidden, cursor))
    assert (found - expected).abs().max() <= 1e-5
    assert (by_place - expected).abs().max() >= 1e-3
