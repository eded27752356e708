"""Wrong scores that others have given, one by one: late interaction's sums and means, each wrong one told from the
right one by far more than the tolerance.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from forebay import PoolingModel
from forebay.core.params import TextParams
from tests.models.test_late import METADATA
from tests.models.test_m3 import make
from tests.support import multi_vector as makers
from tests.support.multi_vector import Reference
from tests.support.store import Store

Floats = NDArray[np.float32]
TOLERANCE, FACTOR = 1e-4, 100
QUERY = "the river flows over stone"
DOCUMENTS = ["Fish, in cold water! (deep)", "a", "lake " * 9, "mill stream. " * 30, "stone, stone; river"]


@pytest.fixture(scope="module")
def colbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return makers.stanford(tmp_path_factory.mktemp("catalogue") / "model", metadata=METADATA)


@pytest.fixture(scope="module")
def model(colbert: Path) -> Iterator[PoolingModel]:
    with PoolingModel(str(colbert)) as loaded:
        yield loaded


def far(wrong: object, right: Floats) -> bool:
    return bool(np.abs(np.asarray(wrong) - right).max() >= FACTOR * TOLERANCE)


def best(query: Floats, document: Floats) -> Floats:
    return (query @ document.T).max(1)


def test_row_43_the_sum_over_all_rows_of_the_query(colbert: Path, model: PoolingModel) -> None:
    """Not over the rows that its attention mask keeps, not the mean, not of one pooled vector."""
    reference = Reference(colbert)
    (query,), documents = reference.embed([QUERY], "query"), reference.embed(DOCUMENTS, "document")
    right = np.array([best(query, document).sum() for document in documents])
    np.testing.assert_allclose(model.score(QUERY, DOCUMENTS).scores, right, atol=TOLERANCE)
    encoded = model.engine._model.texts[""].encode([QUERY], TextParams(input_type="query"), "")
    assert encoded.readings is not None
    num_real = encoded.readings[0].num_attended
    assert num_real < len(query), "no filler, no test"
    pooled_query = query.mean(0, keepdims=True)
    mutants = {
        "fillers left out": [best(query[:num_real], document).sum() for document in documents],
        "the mean": [best(query, document).mean() for document in documents],
        "a pooled query": [best(pooled_query, document).sum() for document in documents],
        "pooled documents": [(query @ document.mean(0)).sum() for document in documents],
        "the document's best": [best(document, query).sum() for document in documents],
        "all products": [(query @ document.T).sum() for document in documents],
    }
    for name, wrong in mutants.items():
        assert far(wrong, right), name


def test_row_43_padding_is_no_match(model: PoolingModel) -> None:
    """Rows of zeros, as padding has them, would be the best of all that points away from the query."""
    query = model.token_embed(QUERY, input_type="query").matrices[0]
    documents = [-query[:2], -query[3:8], query[:1] - 2 * query[1:2]]
    right = np.array([best(query, document).sum() for document in documents])
    padded = [best(query, np.concatenate([document, np.zeros_like(document)])).sum() for document in documents]
    assert far(padded, right)
    np.testing.assert_allclose(model.score(query, documents).scores, right, atol=TOLERANCE)
    np.testing.assert_allclose([model.score(query, [document])[0] for document in documents], right, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("row", "change", "side"),
    [
        (45, {"query_token_id": "[unused1]"}, "query"),
        (45, {"mask_punctuation": False}, "document"),
        (45, {"query_maxlen": 8}, "query"),
        (45, {"attend_to_mask_tokens": True}, "query"),
    ],
)
def test_row_45_in_scores(
    colbert: Path, model: PoolingModel, tmp_path: Path, row: int, change: dict[str, object], side: str
) -> None:
    """Markers, skip list, length and attention of fillers are seen in scores, not in vectors alone."""
    right = model.score(QUERY, DOCUMENTS).scores
    with PoolingModel(str(makers.stanford(tmp_path / "model", metadata=METADATA | change))) as other:
        assert far(other.score(QUERY, DOCUMENTS).scores, right), (row, side)


def test_row_45_markers_are_ids_not_text(model: PoolingModel) -> None:
    """Put in as text they fall into pieces."""
    right = model.token_embed(DOCUMENTS[0], input_type="document").matrices[0]
    as_text = model.token_embed(f"[unused1] {DOCUMENTS[0]}", input_type="document", add_special_tokens=True).matrices[0]
    assert right.shape != as_text.shape or far(as_text, right)


def test_row_42_m3_divides_by_the_querys_own_rows(store: Store) -> None:
    """Its first row is no token vector: the divisor is the number of tokens less one."""
    folder = store.folder("m3", lambda place: make(place, backbone=store.backbone("xlm-roberta")))
    model = store.engine(folder, pooler_config={"task": "token_embed"})
    query, documents = model.token_embed([QUERY]).matrices[0], model.token_embed(DOCUMENTS).matrices
    num_tokens = int(model.token_embed([QUERY]).num_tokens[0])
    assert len(query) == num_tokens - 1
    sums = np.array([best(query, document).sum() for document in documents])
    right = sums / (num_tokens - 1)
    np.testing.assert_allclose(model.score(QUERY, DOCUMENTS).scores, right, atol=1e-5)
    for name, wrong in {"a sum": sums, "all tokens": sums / num_tokens, "the document's": sums / 4}.items():
        assert far(wrong, right), name


def test_row_21_a_score_is_activated_once(store: Store) -> None:
    """Twice, all scores lie between one half and 0.731."""
    from tests.models.test_cross_encoders import PAIRS, expected_of, scores_of
    from tests.support.heads import head_folder

    folder = head_folder(store, "bert", "sequence", num_labels=1)
    once = torch.from_numpy(expected_of(folder, PAIRS)).sigmoid().numpy()
    found = scores_of(store.engine(folder), PAIRS)
    np.testing.assert_allclose(found, once, atol=1e-5)
    assert far(torch.from_numpy(once).sigmoid().numpy(), once)
    assert found.max() > 0.731
