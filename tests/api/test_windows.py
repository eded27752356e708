"""Long texts embedded by windows (chunked processing): a plain formula, the bound, what can't be joined."""

import numpy as np
import pytest

from forebay import PoolingModel
from forebay.core.errors import InputTooLong, InvalidRequest

WORDS = "the quick brown fox jumps over a lazy dog near the river bank while it rains "
LONG = WORDS * 60  # about 960 tokens, where the model reads 256


@pytest.fixture(scope="module")
def windows():
    with PoolingModel("default", pooler_config={"enable_chunked_processing": True}) as model:
        yield model


@pytest.fixture(scope="module")
def plain():
    with PoolingModel("default") as model:
        yield model


def window_ids(model: PoolingModel, text: str) -> list[list[int]]:
    """The text's ids in windows of 254, each framed by [CLS] and [SEP]."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{model.info.path}/tokenizer.json")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    body = tokenizer.encode(text, add_special_tokens=False).ids
    return [[101, *body[start : start + 254], 102] for start in range(0, len(body), 254)]


def test_a_long_text_is_the_token_weighted_mean_of_its_windows(windows, plain):
    ids = window_ids(plain, LONG)
    vectors = plain.embed(ids).embeddings
    weights = np.array([len(row) for row in ids], np.float64)
    mean = weights @ vectors.astype(np.float64) / weights.sum()
    output = windows.embed([LONG, "short"])
    assert len(ids) > 2
    np.testing.assert_allclose(output.embeddings[0], mean / np.linalg.norm(mean), atol=1e-6)
    np.testing.assert_array_equal(output.num_tokens, [sum(map(len, ids)), 3])
    assert not output.truncated.any()
    assert np.abs(output.embeddings[0] - plain.embed(LONG).embeddings[0]).max() > 1e-4  # what cutting would give


def test_raw_vectors_are_not_normalised_after_joining(windows, plain):
    ids = window_ids(plain, LONG)
    vectors = plain.embed(ids, use_activation=False).embeddings
    weights = np.array([len(row) for row in ids], np.float64)
    output = windows.embed([LONG], use_activation=False).embeddings[0]
    np.testing.assert_allclose(output, weights @ vectors / weights.sum(), atol=1e-5)


def test_a_short_text_is_left_as_it_was(windows, plain):
    texts = ["", "one", WORDS]
    np.testing.assert_allclose(windows.embed(texts).embeddings, plain.embed(texts).embeddings, atol=1e-6)


def test_the_bound_cuts_and_tells():
    config = {"enable_chunked_processing": True, "max_embed_len": 500}
    with PoolingModel("default", pooler_config=config) as model:
        output = model.embed([LONG, WORDS])
        np.testing.assert_array_equal(output.truncated, [True, False])
        assert output.num_tokens[0] == 498 + 2 * 2  # 500 with one frame are 498 words in two windows
        with pytest.raises(InputTooLong, match="at most 500"):
            model.embed([LONG], truncate=False)


def test_outputs_that_can_not_be_joined_are_cut_as_ever(windows):
    output = windows.token_embed([LONG])
    assert (len(output.matrices[0]), bool(output.truncated[0])) == (256, True)


def test_a_request_chooses_for_itself(windows, plain):
    """However the model was loaded: by windows, cut, or refused where neither is enough."""
    for model in (windows, plain):
        whole, cut = model.embed(LONG, split=True), model.embed(LONG, split=False)
        np.testing.assert_array_equal(whole.embeddings, windows.embed(LONG).embeddings)
        np.testing.assert_array_equal(cut.embeddings, plain.embed(LONG).embeddings)
        assert (bool(whole.truncated[0]), bool(cut.truncated[0])) == (False, True)
        assert model.embed(LONG, split=True, truncate=False).num_tokens == whole.num_tokens
        with pytest.raises(InputTooLong, match="at most 256"):
            model.embed(LONG, split=False, truncate=False)
        short = model.embed(LONG, split=True, max_tokens=10)
        num_words = sum(len(ids) - 2 for ids in window_ids(plain, LONG))
        assert short.num_tokens[0] == num_words + 2 * -(-num_words // 8)


def test_what_can_not_be_joined_is_not_split(windows):
    with pytest.raises(InvalidRequest, match="'token_embed' of its windows can't be joined") as caught:
        windows.token_embed(LONG, split=True)
    assert caught.value.field == "split"
    assert windows.token_embed(LONG, split=False).truncated[0]
    with pytest.raises(InvalidRequest, match="split is of type str"):
        windows.embed(LONG, split="yes")


def test_bi_encoders_compare_what_was_read_by_windows(windows, plain):
    whole = windows.score("a river", [LONG, WORDS])
    np.testing.assert_allclose(plain.score("a river", [LONG, WORDS], split=True).scores, whole.scores, atol=1e-6)
    assert abs(plain.score("a river", LONG)[0] - whole[0]) > 1e-4


def test_the_order_of_many_windows_does_not_matter(windows):
    texts = [LONG + str(place) for place in range(20)]
    together = windows.embed(texts).embeddings
    alone = np.concatenate([windows.embed(text).embeddings for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_a_bound_without_windows_is_refused():
    with pytest.raises(InvalidRequest, match="enable_chunked_processing"):
        PoolingModel("default", pooler_config={"max_embed_len": 500})
