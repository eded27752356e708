"""The real all-MiniLM-L6-v2 against sentence-transformers in float32, and on public similarity sets."""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from forebay import PoolingModel
from tests.support.pipelines import Reference
from tests.support.texts import MIXED, sentence

pytestmark = pytest.mark.parity

DATA = Path(__file__).parents[3] / "shared" / "data"
MAX_DIFFERENCE = 2e-5
MIN_COSINE = 0.999999
SPEARMAN_TOLERANCE = 1e-5

TEXTS = (
    *MIXED,
    *(sentence(length, length) for length in (1, 2, 5, 14, 33, 90, 180, 250, 253, 254, 255, 256, 300, 430, 600)),
    "Der Fluß fließt über die Straße; naïve façade, Ωmega, 水の流れ 🌊",
    "Mill\u00adrace \u200bwith invisible signs, a tab\tand\na line",
    "supercalifragilisticexpialidocious" * 9,
    "x" * 300,
)


@pytest.fixture(scope="module")
def model() -> Iterator[PoolingModel]:
    with PoolingModel("default") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def reference(model: PoolingModel) -> Reference:
    return Reference(Path(model.info.path))


def test_vectors_are_the_reference_librarys(model: PoolingModel, reference: Reference) -> None:
    expected = reference.embed(TEXTS)
    output = model.embed(TEXTS)
    assert output.embeddings.shape == (len(TEXTS), 384)
    assert np.abs(output.embeddings - expected).max() <= MAX_DIFFERENCE
    assert (output.embeddings * expected).sum(1).min() >= MIN_COSINE


def test_the_limit_is_the_checkpoints_256_not_the_tokenizers_512(model: PoolingModel, reference: Reference) -> None:
    full = [len(reference.model.tokenizer(text, truncation=False)["input_ids"]) for text in TEXTS]
    output = model.embed(TEXTS)
    assert model.info.abilities.max_len == 256
    assert output.num_tokens.tolist() == [min(count, 256) for count in full]
    assert output.truncated.tolist() == [count > 256 for count in full]
    longest = [sentence(430, 430)]
    longer = Reference(Path(model.info.path))
    longer.model.max_seq_length = 512
    assert np.abs(longer.embed(longest) - model.embed(longest).embeddings).max() >= 100 * MAX_DIFFERENCE


def test_known_mistakes_would_be_seen(model: PoolingModel, reference: Reference) -> None:
    texts = [text for text in TEXTS if len(text) < 300]
    expected = model.embed(texts).embeddings
    modules = list(reference.model)
    modules[1].pooling_mode = "cls"
    try:
        wrong = reference.embed(texts)
    finally:
        modules[1].pooling_mode = "mean"
    assert np.abs(wrong - expected).max() >= 100 * MAX_DIFFERENCE


@pytest.mark.parametrize(
    ("name", "expected"),
    [("stsb", 0.8203247), ("sts13", 0.8060022)],
)
def test_similarity_sets(model: PoolingModel, name: str, expected: float) -> None:
    left, right, scores = {"stsb": _read_stsb, "sts13": _read_sts13}[name]()
    one, other = model.embed(left).embeddings, model.embed(right).embeddings
    correlation = spearmanr((one * other).sum(1), scores).statistic
    assert abs(correlation - expected) <= SPEARMAN_TOLERANCE


Pairs = tuple[list[str], list[str], list[float]]


def _read_stsb() -> Pairs:
    with _found(DATA / "sts" / "stsb-en-test.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 1379
    return [row[0] for row in rows], [row[1] for row in rows], [float(row[2]) for row in rows]


def _read_sts13() -> Pairs:
    rows = [
        line.split("\t")
        for file in sorted(_found(DATA / "sts" / "sts13").glob("*.tsv"))
        for line in file.read_text(encoding="utf-8").split("\n")
        if line.split("\t")[0].strip()
    ]
    assert len(rows) == 1500
    return [row[1] for row in rows], [row[2] for row in rows], [float(row[0]) for row in rows]


def _found(path: Path) -> Path:
    if not path.exists():
        pytest.skip("the evaluation data is not there: expected shared/data beside the checkout")
    return path
