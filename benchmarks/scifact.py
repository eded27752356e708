"""nDCG@10 on BEIR's SciFact: a sparse model through Forebay against the reference library, same texts, same machine.

``python -m benchmarks.scifact MODEL`` prints both numbers, their difference and the largest difference of a vector.
``--engine forebay`` leaves the (slow) reference out and compares with the number stored in REFERENCE.
"""

import argparse
import gzip
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

DATA = Path(__file__).parents[2] / "shared" / "data" / "scifact"

# Made by this script with --engine both: sentence-transformers 6.2.0 (SparseEncoder: MLM head, SpladePooling max),
# transformers 5.24.0, torch 2.13.0, float32 on CPU, documents as "title text", 512 tokens.
REFERENCE = {"splade-tiny": 0.646647}


def read_data(folder: Path) -> tuple[dict[str, str], dict[str, str], dict[str, dict[str, int]]]:
    """Documents and queries by id, and the relevant documents of each query."""
    with gzip.open(folder / "corpus.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    documents = {str(row["_id"]): f"{row['title']} {row['text']}".strip() for row in rows}
    lines = (folder / "queries.tsv").read_text(encoding="utf-8").splitlines()
    queries = dict(line.split("\t", 1) for line in lines)
    relevant: dict[str, dict[str, int]] = {}
    for line in (folder / "qrels.txt").read_text(encoding="utf-8").splitlines():
        query, _, document, grade = line.split()
        relevant.setdefault(query, {})[document] = int(grade)
    return documents, {query: text for query, text in queries.items() if query in relevant}, relevant


def ndcg_at_10(scores: np.ndarray, queries: Sequence[str], documents: Sequence[str], relevant: dict) -> float:
    """Mean over queries of DCG / ideal DCG with gain = grade and discount log2(rank + 1) (Järvelin & Kekäläinen)."""
    discounts = 1 / np.log2(np.arange(2, 12))
    values = []
    for query, row in zip(queries, scores, strict=True):
        top = np.argsort(-row, kind="stable")[:10]
        gains = np.array([relevant[query].get(documents[place], 0) for place in top])
        ideal = np.sort(list(relevant[query].values()))[::-1][:10]
        values.append(float(gains @ discounts / (ideal @ discounts[: len(ideal)])))
    return float(np.mean(values))


def encode_forebay(model: str, texts: Sequence[str]) -> csr_matrix:
    from forebay import PoolingModel

    with PoolingModel(model) as loaded:
        output = loaded.sparse(texts)
    data, indices, indptr = output.to_csr()
    return csr_matrix((data, indices, indptr), shape=(len(texts), output.vocab_size))


def encode_reference(model: str, texts: Sequence[str]) -> csr_matrix:
    import torch
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer

    transformer = Transformer(model, transformer_task="fill-mask")
    encoder = SparseEncoder(modules=[transformer, SpladePooling(pooling_strategy="max")], device="cpu")
    encoder.max_seq_length = 512
    parts = []
    for start in range(0, len(texts), 256):
        dense = encoder.encode(list(texts[start : start + 256]), batch_size=16, convert_to_sparse_tensor=False)
        parts.append(csr_matrix(torch.stack(list(dense)).numpy() if isinstance(dense, list) else dense.numpy()))
    from scipy.sparse import vstack

    return csr_matrix(vstack(parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder of a sparse model")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--engine", choices=["forebay", "both"], default="both")
    arguments = parser.parse_args()
    documents, queries, relevant = read_data(arguments.data)
    texts = [*documents.values(), *queries.values()]
    encoders = {"forebay": encode_forebay, "sentence-transformers": encode_reference}
    vectors, numbers = {}, {}
    print("| engine | nDCG@10 | seconds |\n|---|---|---|")
    for name in ["forebay"] if arguments.engine == "forebay" else encoders:
        start = time.perf_counter()
        vectors[name] = encoders[name](arguments.model, texts)
        seconds = time.perf_counter() - start
        scores = (vectors[name][len(documents) :] @ vectors[name][: len(documents)].T).toarray()
        numbers[name] = ndcg_at_10(scores, list(queries), list(documents), relevant)
        print(f"| {name} | {numbers[name]:.6f} | {seconds:.0f} |")
    reference = numbers.get("sentence-transformers", REFERENCE.get(Path(arguments.model).name))
    if reference is not None:
        print(f"\ndifference of nDCG@10: {numbers['forebay'] - reference:+.2e}")
    if len(vectors) == 2:
        print(f"largest difference of a weight: {abs(vectors['forebay'] - vectors['sentence-transformers']).max():.2e}")


if __name__ == "__main__":
    main()
