"""BGE-M3's three outputs of one forward against their formulas, written out with plain torch."""

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from forebay import PoolingModel
from forebay.core.errors import CheckpointNotFound, InvalidRequest, WeightsMismatch
from forebay.core.request import SparseVector
from tests.models.cases import MUTANT_FACTOR, TOLERANCE
from tests.support import pipelines
from tests.support.store import Store
from tests.support.texts import MIXED, sentence
from tests.support.tiny import HIDDEN, MAX_LEN
from tests.support.tokenizers import WORDS

COLBERT = 24
TEXTS = (*MIXED, "the lake </s> the <unk> <s> river <pad> lake", "水 the 水", "</s>")
Floats = NDArray[np.float32]


def make(place: Path, *, backbone: Path, half: bool = True) -> Path:
    """A checkpoint as it is published: the dense pipeline, and two pickled linear layers beside it."""
    modules = [pipelines.transformer(backbone), pipelines.pooling("cls"), pipelines.normalize()]
    pipelines.save_pipeline(place, modules)
    generator = torch.Generator().manual_seed(77)
    for name, size, scale in (("sparse_linear.pt", 1, 0.75), ("colbert_linear.pt", COLBERT, 0.3)):
        tensors = {"weight": torch.randn(size, HIDDEN, generator=generator) * scale, "bias": torch.full((size,), 0.5)}
        torch.save({key: value.half() if half else value for key, value in tensors.items()}, place / name)
    return place


@pytest.fixture(scope="module")
def folder(store: Store) -> Path:
    backbone = store.backbone("xlm-roberta")
    return store.folder("m3", lambda place: make(place, backbone=backbone))


class Formulas:
    """Dense, lexical and multi-vector outputs; what a test changes makes a mistake of them."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.lexical, self.multi = (self._linear(folder / f"{name}_linear.pt") for name in ("sparse", "colbert"))
        roles = ("cls_token_id", "eos_token_id", "pad_token_id", "unk_token_id")
        self.dropped = {getattr(self.tokenizer, role) for role in roles}

    def _linear(self, file: Path) -> nn.Linear:
        tensors = torch.load(file, weights_only=True)
        layer = nn.Linear(HIDDEN, len(tensors["weight"]))
        layer.load_state_dict(tensors)
        return layer

    @torch.no_grad()
    def states(self, text: str) -> tuple[list[int], Tensor]:
        ids = self.tokenizer(text, truncation=True, max_length=MAX_LEN)["input_ids"]
        return ids, self.model(input_ids=torch.tensor([ids])).last_hidden_state[0]

    def dense(self, text: str) -> Floats:
        vector: Floats = nn.functional.normalize(self.states(text)[1][0], dim=0).numpy()
        return vector

    @torch.no_grad()
    def weights(self, text: str, dropped: set[int] | None = None) -> dict[int, float]:
        ids, states = self.states(text)
        found: dict[int, float] = {}
        for token_id, weight in zip(ids, self.lexical(states).relu()[:, 0].tolist(), strict=True):
            if weight > 0 and token_id not in (self.dropped if dropped is None else dropped):
                found[token_id] = max(weight, found.get(token_id, 0.0))
        return found

    @torch.no_grad()
    def vectors(self, text: str) -> Floats:
        rows: Floats = nn.functional.normalize(self.multi(self.states(text)[1][1:]), dim=-1).numpy()
        return rows


@pytest.fixture(scope="module")
def formulas(folder: Path) -> Formulas:
    return Formulas(folder)


def difference(one: object, other: object) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max(initial=0))


def assert_weights(vector: SparseVector, expected: dict[int, float]) -> None:
    assert vector.ids.tolist() == sorted(expected)
    assert difference(vector.weights, [expected[token_id] for token_id in sorted(expected)]) <= TOLERANCE


def test_all_three_of_one_forward(store: Store, folder: Path, formulas: Formulas) -> None:
    engine = store.engine(folder)
    assert engine.info.abilities.tasks == ("embed", "token_embed", "token_classify", "sparse")
    output = engine.encode(TEXTS, outputs=["embed", "sparse", "token_embed"])
    for index, text in enumerate(TEXTS):
        assert difference(output["embed"][index], formulas.dense(text)) <= TOLERANCE
        assert_weights(output["sparse"][index], formulas.weights(text))
        expected = formulas.vectors(text)
        assert output["token_embed"][index].shape == expected.shape == (output.num_tokens[index] - 1, COLBERT)
        assert difference(output["token_embed"][index], expected) <= TOLERANCE


def test_each_alone(store: Store, folder: Path) -> None:
    engine = store.engine(folder)
    together = engine.encode(TEXTS, outputs=["embed", "sparse", "token_embed", "token_classify"])
    singles = engine.embed(TEXTS), engine.sparse(TEXTS), engine.token_embed(TEXTS), engine.token_classify(TEXTS)
    for task, single in zip(together.outputs, singles, strict=True):
        for one, other in zip(together[task], single, strict=True):
            if isinstance(one, SparseVector):
                assert np.array_equal(one.ids, other.ids)
                one, other = one.weights, other.weights
            assert np.array_equal(one, other)


def test_special_ids_are_dropped_inside_the_text_too(store: Store, folder: Path, formulas: Formulas) -> None:
    texts = [f"{first} </s> the <unk> <s> {first} <pad> {last}" for first, last in pairwise(WORDS)]
    kept_inside, kept_of_framed = set(), set()
    for text, vector in zip(texts, store.engine(folder).sparse(texts), strict=True):
        ids = formulas.tokenizer(text)["input_ids"]
        assert set(ids[1:-1]) >= formulas.dropped
        assert_weights(vector, formulas.weights(text))
        kept_inside |= set(formulas.weights(text, set())) & formulas.dropped
        kept_of_framed |= set(formulas.weights(text, {0, 2})) & formulas.dropped
    assert kept_inside == formulas.dropped, "each would be seen"
    assert kept_of_framed == {1, 3}, "dropping those of the frame alone would be seen"
    assert len(store.engine(folder).sparse("</s>")[0]) == 0


def test_mistakes_would_be_seen(formulas: Formulas) -> None:
    longest = max(TEXTS, key=len)
    for text in (longest, MIXED[3]):
        _, states = formulas.states(text)
        expected, rows = formulas.vectors(text), formulas.multi(states).detach()
        mistakes: dict[str, Tensor] = {
            "not normalised": rows[1:],
            "the first token kept": nn.functional.normalize(rows[:-1], dim=-1),
            "no bias": nn.functional.normalize((rows - formulas.multi.bias.detach())[1:], dim=-1),
        }
        for name, wrong in mistakes.items():
            assert difference(wrong, expected) >= MUTANT_FACTOR * TOLERANCE, name
        mean = nn.functional.normalize(states.mean(0), dim=0)
        assert difference(mean, formulas.dense(text)) >= MUTANT_FACTOR * TOLERANCE


def test_mistakes_in_the_weights_would_be_seen(formulas: Formulas) -> None:
    sums, lowest = 0.0, 0.0
    for text in TEXTS:
        ids, states = formulas.states(text)
        with torch.no_grad():
            raw = formulas.lexical(states)[:, 0].tolist()
        summed: dict[int, float] = {}
        for token_id, weight in zip(ids, raw, strict=True):
            summed[token_id] = summed.get(token_id, 0.0) + max(weight, 0.0)
        sums = max(sums, *(summed[token_id] - weight for token_id, weight in formulas.weights(text).items()), 0.0)
        lowest = min(lowest, *raw)
    assert sums >= MUTANT_FACTOR * TOLERANCE, "sums would be seen"
    assert lowest <= -MUTANT_FACTOR * TOLERANCE, "negative weights would be seen"


def test_the_heaviest_words(store: Store, folder: Path, formulas: Formulas) -> None:
    text = sentence(50, 6)
    expected = formulas.weights(text)
    heaviest = dict(sorted(expected.items(), key=lambda pair: -pair[1])[:3])
    assert len(expected) > 5
    assert_weights(store.engine(folder).sparse(text, max_active_dims=3)[0], heaviest)


def test_a_weight_for_every_token(store: Store, folder: Path, formulas: Formulas) -> None:
    ids, states = formulas.states(MIXED[3])
    with torch.no_grad():
        raw = formulas.lexical(states)
    engine = store.engine(folder)
    assert difference(engine.token_classify(MIXED[3])[0], raw.relu()) <= TOLERANCE
    assert difference(engine.token_classify(MIXED[3], use_activation=False)[0], raw) <= TOLERANCE
    composed = engine.encode(MIXED[3], task="embed&token_classify")
    assert list(composed.outputs) == ["embed", "token_classify"]
    assert len(composed["token_classify"][0]) == len(ids)
    with pytest.raises(InvalidRequest, match="aggregation"):
        engine.token_classify(MIXED[3], aggregation="simple")


@pytest.mark.parametrize("size", [3, 64])
def test_windows_are_of_all_tokens(store: Store, folder: Path, formulas: Formulas, size: int) -> None:
    text = MIXED[3]
    states = formulas.states(text)[1]
    output = store.engine(folder).token_embed(text, chunk_size=size)
    with torch.no_grad():
        means = torch.stack([states[start : start + size].mean(0) for start in range(0, len(states), size)])
        expected = nn.functional.normalize(formulas.multi(means), dim=-1)
    assert difference(output[0], expected) <= TOLERANCE
    assert output.spans is not None
    assert len(output.spans[0]) == len(expected)


def test_slices_of_the_multi_vectors(store: Store, folder: Path, formulas: Formulas) -> None:
    cut = nn.functional.normalize(torch.from_numpy(formulas.vectors(MIXED[3]))[:, :16], dim=-1)
    assert difference(store.engine(folder).token_embed(MIXED[3], dimensions=16)[0], cut) <= TOLERANCE


@pytest.mark.parametrize("missing", ["sparse_linear.pt", "colbert_linear.pt"])
def test_half_of_the_heads_is_an_error(folder: Path, missing: str, tmp_path: Path) -> None:
    """Made at random, it would give other weights at every start."""
    place = Path(shutil.copytree(folder, tmp_path / "half"))
    (place / missing).unlink()
    with pytest.raises(CheckpointNotFound, match=missing.replace(".", r"\.")):
        PoolingModel(str(place))


def _without(name: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


@pytest.mark.parametrize("file", ["sparse_linear.pt", "colbert_linear.pt"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_without("weight"), "'weight' is missing"),
        (_without("bias"), "'bias' is missing"),
        (lambda tensors: {**tensors, "more": torch.ones(1)}, "unknown tensors more"),
        (lambda tensors: {**tensors, "weight": torch.ones(len(tensors["weight"]), 5)}, "'weight' has shape"),
    ],
)
def test_damaged_heads(
    folder: Path, file: str, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], words: str, tmp_path: Path
) -> None:
    place = Path(shutil.copytree(folder, tmp_path / "damaged"))
    torch.save(change(torch.load(place / file, weights_only=True)), place / file)
    with pytest.raises(WeightsMismatch, match=words) as caught:
        PoolingModel(str(place))
    assert file in str(caught.value)


def test_the_plain_pipeline_without_heads(folder: Path, formulas: Formulas, tmp_path: Path) -> None:
    place = Path(shutil.copytree(folder, tmp_path / "dense"))
    for name in ("sparse_linear.pt", "colbert_linear.pt"):
        (place / name).unlink()
    with PoolingModel(str(place)) as model:
        assert model.info.abilities.tasks == ("embed", "token_embed")
        assert difference(model.embed(MIXED[3])[0], formulas.dense(MIXED[3])) <= TOLERANCE
