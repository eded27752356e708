"""nDCG@10 of BM25's candidates on BEIR's SciFact, reranked by an embedder as bi-encoder and by its token vectors.

``python -m benchmarks.scifact_rerank`` computes it with sentence-transformers and prints both numbers for each depth
and length that is asked for; ``tests/parity/test_scifact.py`` holds Forebay to what is printed here.
"""

import argparse
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from benchmarks.scifact import DATA, read_data

Floats = NDArray[np.floating]

K1, B = 0.9, 0.4
TERM = re.compile(r"[a-z0-9]+")


class Candidates(NamedTuple):
    """Each query's documents, best by BM25 first, and which queries' documents are relevant."""

    queries: Mapping[str, str]
    documents: Mapping[str, str]
    relevant: Mapping[str, Mapping[str, int]]
    found: Mapping[str, Sequence[str]]

    @property
    def distinct(self) -> list[str]:
        """The ids of all documents that any query has, in the corpus's order."""
        wanted = {name for names in self.found.values() for name in names}
        return [name for name in self.documents if name in wanted]


def read_candidates(depth: int) -> Candidates:
    """All test queries and the first ``depth`` documents that BM25 finds for each."""
    documents, queries, relevant = read_data(DATA)
    scores = bm25(list(documents.values()), list(queries.values()))
    names = np.array(list(documents))
    order = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
    return Candidates(queries, documents, relevant, dict(zip(queries, names[order].tolist(), strict=True)))


def bm25(documents: Sequence[str], queries: Sequence[str]) -> Floats:
    """Scores [queries, documents] by Robertson's formula (Lucene's idf), words as they are, in lower case."""
    place_of: dict[str, int] = {}
    rows, columns, counts = [], [], []
    lens = np.zeros(len(documents))
    for row, text in enumerate(documents):
        terms = Counter(TERM.findall(text.lower()))
        lens[row] = sum(terms.values())
        for term, count in terms.items():
            rows.append(row)
            columns.append(place_of.setdefault(term, len(place_of)))
            counts.append(count)
    tf = np.array(counts, np.float64)
    columns_ = np.array(columns)
    df = np.bincount(columns_, minlength=len(place_of))
    idf = np.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
    norm = K1 * (1 - B + B * lens / lens.mean())
    weights = csr_matrix((idf[columns_] * tf / (tf + norm[rows]), (rows, columns_)), (len(documents), len(place_of)))
    asked = csr_matrix((len(queries), len(place_of))).tolil()
    for row, text in enumerate(queries):
        for term, count in Counter(TERM.findall(text.lower())).items():
            if term in place_of:
                asked[row, place_of[term]] = count
    found: Floats = (asked.tocsr() @ weights.T).toarray()
    return found


def ndcg(candidates: Candidates, scores: Mapping[str, Floats], depth: int = 10) -> float:
    """Mean nDCG of each query's candidates in the order of their scores; equal ones keep BM25's order."""
    discounts = 1 / np.log2(np.arange(2, depth + 2))
    values = []
    for query, names in candidates.found.items():
        grades = candidates.relevant[query]
        top = np.argsort(-scores[query], kind="stable")[:depth]
        gains = np.array([grades.get(names[place], 0) for place in top])
        ideal = np.sort(list(grades.values()))[::-1][:depth]
        values.append(float(gains @ discounts[: len(gains)] / (ideal @ discounts[: len(ideal)])))
    return float(np.mean(values))


def score_by_reference(candidates: Candidates, length: int) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """What sentence-transformers gives: cosines of sentence vectors, and MaxSim of token vectors of unit length."""
    from sentence_transformers import SentenceTransformer

    from forebay.checkpoint.locate import locate

    model = SentenceTransformer(str(locate("default").path), device="cpu")
    model.max_seq_length = length
    queries = _encode(model, list(candidates.queries.values()))
    starts = np.cumsum([0, *(len(tokens) for _, tokens in queries)])
    query_vectors, query_tokens = np.stack([vector for vector, _ in queries]), np.concatenate([t for _, t in queries])
    names = candidates.distinct
    place_of = {name: place for place, name in enumerate(names)}
    cosine = np.zeros((len(queries), len(names)), np.float32)
    max_sim = np.zeros_like(cosine)
    for start in range(0, len(names), 128):
        part = names[start : start + 128]
        for name, (vector, tokens) in zip(part, _encode(model, [candidates.documents[n] for n in part]), strict=True):
            cosine[:, place_of[name]] = query_vectors @ vector
            max_sim[:, place_of[name]] = np.add.reduceat((query_tokens @ tokens.T).max(1), starts[:-1])
    return tuple(  # type: ignore[return-value]
        {
            query: matrix[row, [place_of[name] for name in candidates.found[query]]]
            for row, query in enumerate(candidates.queries)
        }
        for matrix in (cosine, max_sim)
    )


def _encode(model: Any, texts: list[str]) -> list[tuple[Floats, Floats]]:
    """Each text's vector and its tokens' vectors, all of unit length."""
    found = []
    for one in model.encode(texts, output_value=None, batch_size=16, show_progress_bar=False):
        tokens = one["token_embeddings"][one["attention_mask"].bool()]
        vector = one["sentence_embedding"]
        found.append(((vector / vector.norm()).numpy(), (tokens / tokens.norm(dim=1, keepdim=True)).numpy()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depths", type=int, nargs="+", default=[10])
    parser.add_argument("--lengths", type=int, nargs="+", default=[128], help="tokens of a text, special ones included")
    arguments = parser.parse_args()
    print("| candidates | documents | tokens | BM25 | bi-encoder | token vectors | seconds |\n" + "|---" * 7 + "|")
    for length in arguments.lengths:
        deepest = read_candidates(max(arguments.depths))
        start = time.perf_counter()
        scored = score_by_reference(deepest, length)
        seconds = time.perf_counter() - start
        for depth in sorted(arguments.depths):
            some = deepest._replace(found={query: names[:depth] for query, names in deepest.found.items()})
            orders = [{query: -np.arange(len(names)) for query, names in some.found.items()}]
            orders += [{query: row[:depth] for query, row in scores.items()} for scores in scored]
            numbers = " | ".join(f"{ndcg(some, scores):.6f}" for scores in orders)
            print(f"| {depth} | {len(some.distinct)} | {length} | {numbers} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
