"""Long documents read by windows beside the whole query: the reference scores each window, a plain formula joins them.

A word of the lexicon is one token of the tiny BERT, so that windows can be told as texts.
"""

from typing import Any

import numpy as np
import pytest

from forebay import PoolingModel
from forebay.core.errors import InputTooLong, InvalidRequest
from tests.models.test_cross_encoders import LOGITS, difference, expected_of
from tests.support.heads import head_folder
from tests.support.store import Store
from tests.support.texts import sentence

QUERY = sentence(9, 1)
LONG = sentence(200, 2)
SIZE = 64 - 3 - 9
CHUNKED = {"enable_chunked_processing": True}


def model_of(store: Store, **pooler: Any) -> PoolingModel:
    folder = head_folder(store, "bert", "sequence", num_labels=1)
    return store.engine(folder, pooler_config={**CHUNKED, **pooler})


def window_scores(store: Store, document: str, overlap: int = 0, size: int = SIZE) -> tuple[np.ndarray, np.ndarray]:
    """The reference's logit of each window, and the windows' tokens."""
    words = document.split()
    starts = range(0, max(len(words) - overlap, 1), size - overlap)
    windows = [words[start : start + size] for start in starts]
    folder = head_folder(store, "bert", "sequence", num_labels=1)
    logits = expected_of(folder, [(QUERY, " ".join(window)) for window in windows])
    return logits, np.array([len(window) + 12 for window in windows])


@pytest.mark.parametrize("overlap", [0, 10])
@pytest.mark.parametrize("how", ["max", "mean"])
def test_the_scores_of_windows_become_one(store: Store, how: str, overlap: int) -> None:
    logits, num_tokens = window_scores(store, LONG, overlap)
    assert len(logits) == (4 if overlap == 0 else 5)
    expected = logits.max() if how == "max" else num_tokens @ logits / num_tokens.sum()
    model = model_of(store, chunk_scores=how, chunk_overlap=overlap)
    output = model.score(QUERY, [LONG, "a"], use_activation=False)
    assert difference(output[0], expected) <= LOGITS
    assert difference(output[1], window_scores(store, "a")[0]) <= LOGITS
    assert not output.truncated.any()
    assert output.num_tokens == num_tokens.sum() + 13
    others = [logits.min(), logits[0], logits.max() if how == "mean" else logits.mean()]
    assert min(abs(other - expected) for other in others) >= 100 * LOGITS


def test_the_best_window_by_default(store: Store) -> None:
    logits, _ = window_scores(store, LONG)
    assert difference(model_of(store).score(QUERY, LONG).scores, 1 / (1 + np.exp(-logits.max()))) <= 1e-5


def test_a_request_chooses_for_itself(store: Store) -> None:
    plain, windows = store.engine(head_folder(store, "bert", "sequence", num_labels=1)), model_of(store)
    by_windows, cut = windows.score(QUERY, LONG).scores, plain.score(QUERY, LONG).scores
    for model in (plain, windows):
        assert np.array_equal(model.score(QUERY, LONG, split=True).scores, by_windows)
        assert np.array_equal(model.score(QUERY, LONG, split=False).scores, cut)
    assert abs(by_windows - cut) >= 1e-3
    with pytest.raises(InvalidRequest, match="'classify' of its windows can't be joined"):
        plain.classify(LONG, split=True)


def test_the_bound_cuts_and_tells(store: Store) -> None:
    model = model_of(store, max_embed_len=112)
    output = model.score(QUERY, LONG, use_activation=False)
    logits, _ = window_scores(store, " ".join(LONG.split()[:100]))
    assert difference(output.scores, logits.max()) <= LOGITS
    assert output.truncated.tolist() == [True]
    with pytest.raises(InputTooLong, match="9 and 100 are read"):
        model.score(QUERY, LONG, truncate=False)


def test_the_documents_own_limit_holds_for_all_windows(store: Store) -> None:
    output = model_of(store).score(QUERY, LONG, use_activation=False, max_tokens_per_doc=70)
    logits, _ = window_scores(store, " ".join(LONG.split()[:70]))
    assert difference(output.scores, logits.max()) <= LOGITS
    assert output.truncated.tolist() == [True]


def test_a_long_query_leaves_the_document_half_of_a_window(store: Store) -> None:
    output = model_of(store).score(LONG, [LONG], use_activation=False)
    folder = head_folder(store, "bert", "sequence", num_labels=1)
    words = LONG.split()
    windows = [(" ".join(words[:30]), " ".join(words[start : start + 31])) for start in range(0, 200, 31)]
    assert difference(output.scores, expected_of(folder, windows).max()) <= LOGITS
    assert output.truncated.tolist() == [True]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"chunk_overlap": 3}, "enable_chunked_processing"),
        ({"chunk_scores": "max"}, "enable_chunked_processing"),
        ({**CHUNKED, "chunk_scores": "median"}, "'max' or 'mean'"),
        ({**CHUNKED, "chunk_overlap": -1}, "0 or more"),
        ({**CHUNKED, "chunk_overlap": 33}, "at most half"),
    ],
)
def test_options_that_make_no_sense(store: Store, config: dict[str, Any], words: str) -> None:
    folder = head_folder(store, "bert", "sequence", num_labels=1)
    with pytest.raises(InvalidRequest, match=words):
        PoolingModel(str(folder), pooler_config=config)
