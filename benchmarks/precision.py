"""What float32, bfloat16 and int8 cost a model's vectors: cosine to float32, STS-B and SciFact, beside ONNX Runtime.

``python -m benchmarks.precision`` prints a Markdown table. Where onnx and onnxruntime are installed, the same model is
exported and quantized by ONNX Runtime's dynamic int8 (weights per channel), and its vectors are measured alike. All
read at most 256 tokens. Speeds are not measured here: see ``benchmarks.paths``.
"""

import argparse
import csv
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.scifact import DATA, ndcg_at_10, read_data
from forebay import PoolingModel

LENGTH = 256
BATCH = 32
DTYPES = ("float32", "bfloat16", "int8")
PEER = "ONNX Runtime dynamic int8"
Vectors = NDArray[np.float32]
Encode = Callable[[Sequence[str]], Vectors]


class Corpus(NamedTuple):
    """STS-B's pairs with their similarities, and SciFact."""

    pairs: list[tuple[str, str]]
    similarities: list[float]
    documents: dict[str, str]
    queries: dict[str, str]
    relevant: dict[str, dict[str, int]]

    def texts(self) -> list[str]:
        firsts, seconds = zip(*self.pairs, strict=True)
        return [*firsts, *seconds, *self.queries.values(), *self.documents.values()]


class Measured(NamedTuple):
    """Spearman's correlation on STS-B, nDCG@10 on SciFact, and the vectors."""

    sts: float
    scifact: float
    vectors: Vectors


def read_corpus(data: Path, num_documents: int | None) -> Corpus:
    with (data / "sts" / "stsb-en-test.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    documents, queries, relevant = read_data(data / "scifact")
    kept = dict(list(documents.items())[:num_documents])
    return Corpus([(row[0], row[1]) for row in rows], [float(row[2]) for row in rows], kept, queries, relevant)


def encode_forebay(model: str, dtype: str) -> Encode:
    loaded = PoolingModel(model, dtype=dtype, device="cpu", max_model_len=LENGTH)  # type: ignore[arg-type]
    path = next(made for made in loaded.info.decisions if made.name == "compute path")
    print(f"{dtype}: {path.value} ({path.source})", flush=True)

    def encode(texts: Sequence[str]) -> Vectors:
        with loaded:
            return np.asarray(loaded.embed(list(texts), show_progress=False).embeddings)

    return encode


def encode_onnx(model: str) -> Encode:
    """The transformer exported and quantized; tokens and pooling (a mean, normalised) are this function's."""
    import onnxruntime
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from transformers import AutoModel, AutoTokenizer

    tokenizer, network = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model).eval()

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.network(input_ids=ids, attention_mask=mask, token_type_ids=types)[0]
            return found

    folder = Path(tempfile.mkdtemp(prefix="forebay-precision-"))
    names = ["input_ids", "attention_mask", "token_type_ids"]
    sample = tokenizer(["one text", "another, longer text"], padding=True, return_tensors="pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            States(),
            tuple(sample[name] for name in names),
            str(folder / "full.onnx"),
            input_names=names,
            output_names=["states"],
            dynamic_axes={name: {0: "texts", 1: "tokens"} for name in [*names, "states"]},
            opset_version=17,
            dynamo=False,
        )
    quantize_dynamic(folder / "full.onnx", folder / "int8.onnx", per_channel=True, weight_type=QuantType.QInt8)
    session = onnxruntime.InferenceSession(folder / "int8.onnx", providers=["CPUExecutionProvider"])

    def encode(texts: Sequence[str]) -> Vectors:
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        out: list[Vectors] = [np.zeros(0, np.float32)] * len(texts)
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            batch = tokenizer(
                [texts[place] for place in places],
                padding=True,
                truncation=True,
                max_length=LENGTH,
                return_tensors="np",
            )
            states = session.run(None, {name: batch[name].astype(np.int64) for name in names})[0]
            mask = batch["attention_mask"][..., None].astype(np.float32)
            means = (states * mask).sum(1) / mask.sum(1)
            for place, mean in zip(places, means, strict=True):
                out[place] = mean / np.linalg.norm(mean)
        return np.stack(out)

    return encode


def measure(encode: Encode, corpus: Corpus) -> Measured:
    vectors = encode(corpus.texts())
    count = len(corpus.pairs)
    firsts, seconds, queries = vectors[:count], vectors[count : 2 * count], vectors[2 * count :][: len(corpus.queries)]
    documents = vectors[2 * count + len(corpus.queries) :]
    sts = float(spearmanr((firsts * seconds).sum(1), corpus.similarities).statistic)
    scifact = ndcg_at_10(queries @ documents.T, list(corpus.queries), list(corpus.documents), corpus.relevant)
    return Measured(sts, scifact, vectors)


def say(name: str, measured: Measured, reference: Measured) -> str:
    cosines = (measured.vectors.astype(np.float64) * reference.vectors).sum(1)
    return (
        f"| {name} | {cosines.mean():.5f} | {cosines.min():.5f} "
        f"| {measured.sts:.4f} ({measured.sts - reference.sts:+.4f}) "
        f"| {measured.scifact:.4f} ({measured.scifact - reference.scifact:+.4f}) |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision", description=__doc__)
    parser.add_argument("--model", default="default", help="an embedder whose vectors are normalised")
    parser.add_argument("--data", type=Path, default=DATA.parent)
    parser.add_argument("--documents", type=int, help="take only so many of SciFact's documents")
    parser.add_argument("--no-peer", action="store_true", help="leave ONNX Runtime out")
    options = parser.parse_args()
    corpus = read_corpus(options.data, options.documents)
    lines = ["| | mean cosine | min cosine | STS-B Spearman | SciFact nDCG@10 |", "|---|---:|---:|---:|---:|"]
    reference: Measured | None = None
    with PoolingModel(options.model, device="cpu") as loaded:
        folder = loaded.info.path
    for dtype in DTYPES:
        measured = measure(encode_forebay(options.model, dtype), corpus)
        reference = reference or measured
        lines.append(say(f"Forebay {dtype}", measured, reference))
        print(lines[-1], flush=True)
    if not options.no_peer:
        try:
            peer = encode_onnx(folder)
        except ImportError as missing:
            print(f"{PEER} is left out: {missing}")
        else:
            assert reference is not None
            lines.append(say(PEER, measure(peer, corpus), reference))
    print("\n".join(["", *lines]))


if __name__ == "__main__":
    main()
