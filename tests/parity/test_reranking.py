"""Real reranking: TREC-QA's answers and SciFact's documents, ranked as the reference library ranks them.

The reference computes the same quality from its own scores, and the quality beats BM25's.
"""

import csv
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder, SentenceTransformer

from forebay import PoolingModel
from tests.parity.test_minilm import DATA, _found
from tests.parity.test_real_checkpoints import checkpoint
from tests.support.pipelines import Reference

pytestmark = pytest.mark.parity

TOLERANCE = 5e-4
BM25_MAP = 0.630

Floats = NDArray[np.floating]


@pytest.fixture(scope="module")
def model() -> Iterator[PoolingModel]:
    with PoolingModel("default") as loaded:
        yield loaded


class Question:
    """One query with its candidates, and which of them are right."""

    def __init__(self, query: str, candidates: Sequence[str], is_right: Sequence[bool]) -> None:
        self.query, self.candidates, self.is_right = query, list(candidates), np.array(is_right, np.bool_)

    def precision_and_rank(self, order: Sequence[int]) -> tuple[float, float]:
        """Average precision and reciprocal rank of the candidates in this order."""
        hits = self.is_right[list(order)]
        precisions = np.cumsum(hits) / np.arange(1, len(hits) + 1)
        return float(precisions[hits].mean()), float(1 / (1 + hits.argmax()))


def quality(questions: Sequence[Question], orders: Sequence[Sequence[int]]) -> tuple[float, float]:
    """MAP and MRR."""
    each = [question.precision_and_rank(order) for question, order in zip(questions, orders, strict=True)]
    mean_precision, mean_rank = np.mean(each, axis=0)
    return float(mean_precision), float(mean_rank)


def read_trecqa() -> list[Question]:
    """The questions of the test set that have right and wrong answers, as the BM25 baseline counts them."""
    with _found(DATA / "trecqa" / "test.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1517
    by_query: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        by_query[row["qtext"]].append(row)
    questions = [
        Question(query, [row["atext"] for row in found], [row["label"] == "1" for row in found])
        for query, found in by_query.items()
    ]
    return [question for question in questions if question.is_right.any() and not question.is_right.all()]


def stable_order(scores: Floats) -> list[int]:
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    return order


def test_trecqa_with_a_bi_encoder(model: PoolingModel) -> None:
    questions = read_trecqa()
    ranked = [[one.index for one in model.rerank(item.query, item.candidates)] for item in questions]
    found = quality(questions, ranked)
    reference = Reference(Path(model.info.path))
    queries = reference.embed([item.query for item in questions])
    answers = reference.embed([text for item in questions for text in item.candidates])
    expected, start = [], 0
    for query, item in zip(queries, questions, strict=True):
        part = answers[start : start + len(item.candidates)]
        expected.append(stable_order(part @ query / np.linalg.norm(part, axis=1)))
        start += len(part)
    assert np.abs(np.array(found) - quality(questions, expected)).max() <= TOLERANCE
    assert found[0] > BM25_MAP
    turned = quality(questions, [order[::-1] for order in ranked])
    assert turned[0] < BM25_MAP


def test_trecqa_with_a_cross_encoder() -> None:
    """A small one that was trained for glosses: its quality is not the point, the equality is."""
    folder = checkpoint("wn-reranker-tiny")
    questions = read_trecqa()[:20]
    reference = CrossEncoder(str(folder), device="cpu")
    expected = [[one["corpus_id"] for one in reference.rank(item.query, item.candidates)] for item in questions]
    with PoolingModel(str(folder)) as model:
        ranked = [[one.index for one in model.rerank(item.query, item.candidates)] for item in questions]
    assert np.abs(np.array(quality(questions, ranked)) - quality(questions, expected)).max() <= TOLERANCE


def test_trecqa_by_token_vectors() -> None:
    """The same embedder as a late-interaction model: every token's vector, of unit length."""
    questions = read_trecqa()
    with PoolingModel("default", pooler_config={"task": "token_embed"}) as model:
        assert model.info.similarity == "maxsim"
        ranked = [[one.index for one in model.rerank(item.query, item.candidates)] for item in questions]
        path = model.info.path
    found = quality(questions, ranked)
    reference = SentenceTransformer(path, device="cpu")
    expected = []
    for item in questions:
        rows = reference.encode([item.query, *item.candidates], output_value="token_embeddings")
        query, *candidates = [np.asarray(row / row.norm(dim=1, keepdim=True)) for row in rows]
        expected.append(stable_order(np.array([(query @ row.T).max(1).sum() for row in candidates])))
    wanted = quality(questions, expected)
    assert np.abs(np.array(found) - wanted).max() <= TOLERANCE
    assert found[0] > BM25_MAP
    assert quality(questions, [order[::-1] for order in ranked])[0] < BM25_MAP
