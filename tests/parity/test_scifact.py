"""SciFact reranked in full: BM25's candidates of every test query, by each of the two routes of an embedder.

The values are those that ``python -m benchmarks.scifact_rerank --depths 5`` prints of sentence-transformers.
"""

from collections.abc import Mapping

import numpy as np
import pytest

from benchmarks.scifact_rerank import Candidates, ndcg, read_candidates
from forebay import PoolingModel
from tests.parity.test_minilm import DATA, _found

pytestmark = pytest.mark.parity

TOLERANCE = 5e-4
LENGTH = 128
NUM_QUERIES = 300


def rerank(model: PoolingModel, candidates: Candidates) -> Mapping[str, np.ndarray]:
    """The scores of each query's candidates, in BM25's order."""
    scores = {}
    for query, names in candidates.found.items():
        found = model.rerank(candidates.queries[query], [candidates.documents[name] for name in names])
        scores[query] = np.zeros(len(names))
        for one in found:
            scores[query][one.index] = one.score
    return scores


CASES = [(None, 5, 0.637281, 0.637932), ("token_embed", 5, 0.628802, 0.637932)]


@pytest.mark.parametrize(("task", "depth", "expected", "bm25"), CASES)
def test_every_query_reranked(task: str | None, depth: int, expected: float, bm25: float) -> None:
    _found(DATA / "scifact")
    candidates = read_candidates(depth)
    assert len(candidates.queries) == NUM_QUERIES
    assert ndcg(candidates, {query: -np.arange(depth) for query in candidates.found}) == pytest.approx(bm25, abs=1e-6)
    config = None if task is None else {"task": task}
    with PoolingModel("default", max_model_len=LENGTH, pooler_config=config) as model:
        scores = rerank(model, candidates)
    found = ndcg(candidates, scores)
    assert abs(found - expected) <= TOLERANCE
    assert ndcg(candidates, {query: -values for query, values in scores.items()}) < found - 0.1
