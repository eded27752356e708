"""Several tasks and parameters in one step, several outputs of one forward, steps and windows: the same numbers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from forebay import PoolerConfig, PoolingModel
from forebay.core.params import PoolingParams
from forebay.core.request import Row, SparseVector
from forebay.core.tasks import Task
from forebay.engine.runner import Result, Runner
from tests.models.cases import MUTANT_FACTOR, TOLERANCE
from tests.models.test_m3 import make as make_m3
from tests.support import pipelines
from tests.support.engine import CPU, make_job
from tests.support.heads import head_folder, reference_of
from tests.support.store import Store
from tests.support.texts import MIXED, sentence
from tests.support.tiny import HIDDEN, MAX_LEN

BOUND = 1e-6
ASKED = (
    PoolingParams((Task.EMBED,)),
    PoolingParams((Task.EMBED,), dimensions=16),
    PoolingParams((Task.EMBED,), truncate_dim=16),
    PoolingParams((Task.EMBED,), use_activation=False),
    PoolingParams((Task.SPARSE,)),
    PoolingParams((Task.SPARSE,), max_active_dims=3),
    PoolingParams((Task.TOKEN_EMBED,)),
    PoolingParams((Task.TOKEN_EMBED,), chunk_size=4, dimensions=8),
    PoolingParams((Task.TOKEN_CLASSIFY,)),
    PoolingParams((Task.TOKEN_CLASSIFY,), use_activation=False),
    PoolingParams((Task.SPARSE, Task.EMBED, Task.TOKEN_EMBED)),
)
IDS = (
    [0, 9, 2],
    [0, 9, 10, 11, 2],
    [0, 30, 2, 31, 3, 32, 2],
    [0, 12, 13, 14, 15, 16, 17, 18, 2],
    [0, 2],
    [0, 124, 3, 88, 85, 12, 122, 103, 88, 85, 92, 57, 101, 98, 94, 99, 22, 118, 4, 9, 46, 99, 21, 117, 2],
)


@pytest.fixture(scope="module")
def m3(store: Store) -> PoolingModel:
    backbone = store.backbone("xlm-roberta")
    return store.engine(store.folder("m3", lambda place: make_m3(place, backbone=backbone)))


def numbers(row: Row) -> NDArray[np.float64]:
    """All that an output says, in one array."""
    if isinstance(row, SparseVector):
        return np.stack([row.ids.astype(np.float64), row.weights.astype(np.float64)])
    return row.astype(np.float64)


def difference(one: object, other: object) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max(initial=0))


def test_one_step_of_many_wishes(m3: PoolingModel) -> None:
    """Every wish for every text at once, in one forward, against each alone."""
    runner = Runner(m3.engine._model.pipelines, CPU)
    together = [sequence for params in ASKED for sequence in make_job(IDS, params=params).sequences]
    order = np.random.default_rng(1).permutation(len(together))
    results = {id(result.sequence): result for result in runner.run([together[place] for place in order]).results}
    assert len(results) == len(ASKED) * len(IDS)
    for sequence in together:
        (alone,) = runner.run([sequence]).results
        found = results[id(sequence)]
        assert len(found.rows) == len(alone.rows) == len(sequence.params.outputs)
        for one, other in zip(found.rows, alone.rows, strict=True):
            assert numbers(one).shape == numbers(other).shape
            assert difference(numbers(one), numbers(other)) <= BOUND


def test_equal_neighbours_give_equal_bits(m3: PoolingModel) -> None:
    """Texts of the same lengths, other wishes beside them: not a bit differs."""
    runner = Runner(m3.engine._model.pipelines, CPU)
    few = [make_job([ids], params=ASKED[10]).sequences[0] for ids in IDS]
    many = [*few, *(sequence for params in ASKED for sequence in make_job(IDS, params=params).sequences)]
    alone = {id(result.sequence): result.rows for result in runner.run(few).results}
    beside = {id(result.sequence): result.rows for result in runner.run(many).results}
    for sequence in few:
        for one, other in zip(alone[id(sequence)], beside[id(sequence)], strict=True):
            assert np.array_equal(numbers(one), numbers(other))


def test_the_wishes_differ(m3: PoolingModel) -> None:
    """Or else parameters that go to the wrong neighbour would pass."""
    runner = Runner(m3.engine._model.pipelines, CPU)
    made = [[numbers(result.rows[0]) for result in _alone(runner, params)] for params in ASKED[:10]]
    for place, rows in enumerate(made):
        for others in made[:place]:
            pairs = list(zip(rows, others, strict=True))
            assert any(one.shape != other.shape or difference(one, other) >= 1000 * BOUND for one, other in pairs)


def _alone(runner: Runner, params: PoolingParams) -> list[Result]:
    return [runner.run(make_job([ids], params=params).sequences).results[0] for ids in IDS]


@pytest.fixture
def forwards(m3: PoolingModel) -> Iterator[list[int]]:
    """The number of tokens of every forward."""
    seen: list[int] = []
    (pipeline,) = m3.engine._model.pipelines.values()
    assert isinstance(pipeline.model, nn.Module)
    hook = pipeline.model.register_forward_hook(lambda module, inputs, states: seen.append(len(states)))
    yield seen
    hook.remove()


def test_three_outputs_are_one_forward(m3: PoolingModel, forwards: list[int]) -> None:
    output = m3.encode(MIXED, outputs=["embed", "sparse", "token_embed"])
    assert forwards == [int(output.num_tokens.sum())]
    assert list(output.outputs) == ["embed", "sparse", "token_embed"]
    singles = {"embed": m3.embed(MIXED), "sparse": m3.sparse(MIXED), "token_embed": m3.token_embed(MIXED)}
    assert len(forwards) == 4
    for task, single in singles.items():
        for one, other in zip(output[task], single, strict=True):
            assert np.array_equal(numbers(one), numbers(other))


def test_parameters_of_several_outputs(m3: PoolingModel) -> None:
    """Each goes to the outputs that it means something to."""
    params = PoolingParams(dimensions=16, max_active_dims=2)
    output = m3.encode(MIXED, outputs=["sparse", "embed", "token_embed"], pooling=params)
    assert difference(output["embed"], m3.embed(MIXED, dimensions=16)) == 0
    for one, other in zip(output["token_embed"], m3.token_embed(MIXED, dimensions=16), strict=True):
        assert np.array_equal(one, other)
    for one, other in zip(output["sparse"], m3.sparse(MIXED, max_active_dims=2), strict=True):
        assert np.array_equal(numbers(one), numbers(other))


NAMES = {"num_labels": 4, "id2label": dict(enumerate("abcd")), "label2id": {name: i for i, name in enumerate("abcd")}}
TAG = 9


@pytest.mark.parametrize("columns", [None, (2,), (3, 0)])
@pytest.mark.parametrize("raw", [False, True])
def test_steps_and_chosen_labels(store: Store, raw: bool, columns: tuple[int, ...] | None) -> None:
    """Scores of the tokens with one id alone; the activation sees all labels before some are kept."""
    folder = head_folder(store, "bert", "token", **NAMES)
    config = PoolerConfig(tok_pooling_type="STEP", step_tag_id=TAG, returned_token_ids=columns)
    engine, reference = store.engine(folder, pooler_config=config), reference_of(folder, "token")
    word = reference.tokenizer.convert_ids_to_tokens(TAG)
    texts = [f"the lake {word} is deep {word}", "the lake", word, f"{word} {word} {word}", sentence(40, 1)]
    output = engine.token_classify(texts, use_activation=False if raw else None)
    kept = range(4) if columns is None else columns
    assert output.labels == tuple("abcd"[column] for column in kept)
    for index, logits in enumerate(reference.token_logits(texts)):
        ids = np.array(reference.tokenizer(texts[index])["input_ids"])
        scores = logits if raw else torch.from_numpy(logits).softmax(-1).numpy()
        expected = scores[ids == TAG][:, list(kept)]
        assert output[index].shape == expected.shape
        assert difference(output[index], expected) <= (1e-4 if raw else TOLERANCE)
        assert len(output.is_special[index]) == len(expected)
    assert [len(rows) for rows in output.scores[:4]] == [2, 0, 1, 3]


def test_steps_of_an_embedder(store: Store) -> None:
    folder = store.mean_pipeline("bert")
    engine = store.engine(folder, pooler_config=PoolerConfig(pooling_type="STEP", step_tag_id=TAG))
    word = store.reference(folder).model.tokenizer.convert_ids_to_tokens(TAG)
    texts = [f"the lake {word} is deep {word}", "the lake"]
    whole = store.engine(folder).token_embed(texts)
    ids = store.reference(folder).model.tokenizer(texts)["input_ids"]
    for index, rows in enumerate(engine.token_embed(texts)):
        assert difference(rows, whole[index][np.array(ids[index]) == TAG]) <= BOUND
    assert difference(engine.embed(texts), store.engine(folder).embed(texts)) <= BOUND


def chunker(store: Store, family: str, **settings: Any) -> Path:
    """A mean, a projection and a normalisation: windows are averaged before both."""
    backbone = store.backbone(family)
    modules = [
        pipelines.transformer(backbone),
        pipelines.pooling("mean"),
        pipelines.dense(HIDDEN, 24, activation=nn.Tanh()),
        pipelines.normalize(),
    ]
    name = f"chunker-{family}-{len(settings)}"
    return store.folder(name, lambda place: pipelines.save_pipeline(place, modules, **settings))


FAMILIES = ("bert", "roberta", "xlm-roberta")
TEXTS = (
    *MIXED,
    "the lake, the river!",
    "水车慢慢转 the lake 東京",
    "🌊👩‍🔬 the river🏞️flows",
    "e\u0301te\u0301   naïve\n\tlake ",
)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_window_over_everything_is_the_embedding(store: Store, family: str) -> None:
    engine = store.engine(chunker(store, family))
    whole = engine.embed(TEXTS)
    for size in (MAX_LEN, 10_000):
        windows = engine.token_embed(TEXTS, chunk_size=size)
        assert [len(rows) for rows in windows] == [1] * len(TEXTS)
        assert difference(np.concatenate(list(windows)), whole) <= BOUND


def formula(reference: pipelines.Reference, text: str, size: int, prompt: str = "") -> tuple[np.ndarray, list[Any]]:
    """Vectors and characters of each window, from the backbone's states and the tokenizer's own offsets."""
    encoding = reference.model.tokenizer(
        prompt + text, truncation=True, max_length=MAX_LEN, return_offsets_mapping=True, return_special_tokens_mask=True
    )
    ids = torch.tensor([encoding["input_ids"]])
    with torch.no_grad():
        states = reference.backbone(input_ids=ids).last_hidden_state[0]
        means = torch.stack([states[first : first + size].mean(0) for first in range(0, len(states), size)])
        vectors = nn.functional.normalize(reference.model[2].linear(means).tanh(), dim=-1)
    chars = []
    for first in range(0, len(states), size):
        window = slice(first, first + size)
        own = [
            (max(start - len(prompt), 0), end - len(prompt))
            for (start, end), special in zip(
                encoding["offset_mapping"][window], encoding["special_tokens_mask"][window], strict=True
            )
            if not special and end - len(prompt) > max(start - len(prompt), 0)
        ]
        chars.append((min(start for start, _ in own), max(end for _, end in own)) if own else None)
    return vectors.numpy(), chars


@pytest.mark.parametrize("prompt", ["", "search query: ", "水🌊 "])
@pytest.mark.parametrize("size", [1, 2, 5, 16])
@pytest.mark.parametrize("family", FAMILIES)
def test_windows_and_their_characters(store: Store, family: str, size: int, prompt: str) -> None:
    folder = chunker(store, family)
    reference = store.reference(folder)
    output = store.engine(folder).token_embed(TEXTS, chunk_size=size, prompt=prompt)
    assert output.spans is not None
    for index, text in enumerate(TEXTS):
        vectors, chars = formula(reference, text, size, prompt)
        assert output[index].shape == vectors.shape
        assert difference(output[index], vectors) <= TOLERANCE
        spans = output.spans[index]
        assert [tuple(span) if span[1] > span[0] else None for span in spans.tolist()] == chars
        assert (np.diff(spans[:, 0]) >= 0).all()
        assert spans.max(initial=0) <= len(text)
    vectors, _ = formula(reference, TEXTS[2], size, prompt)
    late = np.roll(vectors, 1, axis=0)
    assert difference(late, vectors) >= MUTANT_FACTOR * TOLERANCE


def test_characters_written_out(store: Store) -> None:
    engine = store.engine(chunker(store, "bert"))
    text = "the lake flows, 水车 ends"  # [CLS] the lake | flows , 水 | 车 e ##n | ##d ##s [SEP]
    output = engine.token_embed(text, chunk_size=3)
    assert output.spans is not None
    assert [text[start:end] for start, end in output.spans[0].tolist()] == ["the lake", "flows, 水", "车 en", "ds"]
    output = engine.token_embed("", chunk_size=3)
    assert output.spans is not None
    assert output.spans[0].tolist() == [[0, 0]]


@pytest.mark.parametrize("family", FAMILIES)
def test_windows_of_a_text_cut_from_the_left(store: Store, family: str) -> None:
    engine, text = store.engine(chunker(store, family)), sentence(300, 2)
    output = engine.token_embed(text, chunk_size=7, truncation_side="left")
    assert output.spans is not None
    assert output.truncated.tolist() == [True]
    assert len(output[0]) == len(output.spans[0]) == -(-MAX_LEN // 7)
    last = text[output.spans[0][0, 0] :]
    again = engine.token_embed(last, chunk_size=7)
    assert again.spans is not None
    assert output.spans[0][-1, 1] == len(text)
    if family == "bert":  # elsewhere a word's tokens depend on what stands before it
        assert difference(again[0], output[0]) <= BOUND
        assert np.array_equal(again.spans[0] + len(text) - len(last), output.spans[0])
