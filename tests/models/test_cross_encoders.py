"""Cross-encoders of every architecture against sentence-transformers' CrossEncoder, each with mistakes that must be
seen: pairs in both orders, of all lengths, beyond the limit from either side.
"""

import json
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder
from torch import nn

from forebay import PoolingModel
from tests.models.cases import MUTANT_FACTOR
from tests.support.heads import head_folder
from tests.support.store import Store
from tests.support.texts import sentence

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet", "electra", "albert", "modernbert")
TYPED = ("bert", "electra")
LOGITS, SCORES = 1e-4, 1e-5

QUERY = sentence(9, 1)
DOCUMENTS = (
    sentence(20, 2),
    "",
    "a",
    sentence(50, 3),  # the pair's exact limit is near
    sentence(51, 4),
    sentence(52, 5),
    sentence(200, 6),
    "  Héllo,\tWORLD!\n ",
    sentence(30, 7),
    sentence(20, 2),
)
LONG_BOTH = (sentence(36, 8), sentence(70, 9))
LONG_QUERY = (sentence(120, 10), sentence(7, 11))
PAIRS = (*((QUERY, document) for document in DOCUMENTS), LONG_BOTH, LONG_QUERY, (sentence(31, 12), sentence(30, 13)))

Floats = NDArray[np.float32]


@cache
def reference_of(folder: Path) -> CrossEncoder:
    return CrossEncoder(str(folder), device="cpu")


def expected_of(folder: Path, pairs: Sequence[tuple[str, str]], **options: Any) -> Floats:
    scores: Floats = reference_of(folder).predict(list(pairs), activation_fn=nn.Identity(), **options)
    return scores


def scores_of(model: PoolingModel, pairs: Sequence[tuple[str, str]], **options: Any) -> Floats:
    scores: Floats = model.score([one for one, _ in pairs], [other for _, other in pairs], **options).scores
    return scores


def difference(one: object, other: object) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


def copied(store: Store, family: str, place: Path, **config: Any) -> Path:
    """The same checkpoint at a place of its own, with changes to its config.json."""
    folder = Path(shutil.copytree(head_folder(store, family, "sequence", num_labels=1), place))
    _edit(folder / "config.json", **config)
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_order_are_those_of_the_reference(store: Store, family: str) -> None:
    folder = head_folder(store, family, "sequence", num_labels=1)
    model = store.engine(folder)
    expected = expected_of(folder, PAIRS)
    logits = scores_of(model, PAIRS, use_activation=False)
    assert difference(logits, expected) <= LOGITS
    activated = reference_of(folder).predict(list(PAIRS))
    assert difference(scores_of(model, PAIRS), activated) <= SCORES
    assert difference(expected, activated) >= MUTANT_FACTOR * SCORES
    ranked = model.rerank(QUERY, DOCUMENTS)
    reference = reference_of(folder).rank(QUERY, list(DOCUMENTS))
    places = [one["corpus_id"] for one in reference]
    assert [one.index for one in ranked] == places
    assert difference([one.score for one in ranked], [one["score"] for one in reference]) <= SCORES


@pytest.mark.parametrize("family", FAMILIES)
def test_mistakes_in_a_pair_would_be_seen(store: Store, family: str) -> None:
    folder = head_folder(store, family, "sequence", num_labels=1)
    expected = expected_of(folder, PAIRS)
    swapped = expected_of(folder, [(other, one) for one, other in PAIRS])
    joined = expected_of(folder, [(f"{one} {other}", "") for one, other in PAIRS])
    for name, wrong in {"the texts exchanged": swapped, "no separator": joined}.items():
        assert difference(wrong, expected) >= MUTANT_FACTOR * LOGITS, name
    tokenizer = reference_of(folder).tokenizer
    side, tokenizer.truncation_side = tokenizer.truncation_side, "left"
    try:
        wrong = expected_of(folder, PAIRS)
    finally:
        tokenizer.truncation_side = side
    assert difference(wrong, expected) >= MUTANT_FACTOR * LOGITS, "cut on the other side"
    words = LONG_BOTH[0].split()
    num_words = max(n for n in range(len(words)) if len(tokenizer(" ".join(words[:n]))["input_ids"]) <= 45)
    pair = [(" ".join(words[:num_words]), LONG_BOTH[1])]
    only_document = expected_of(folder, pair, processing_kwargs={"text": {"truncation": "only_second"}})
    assert difference(only_document, expected_of(folder, pair)) >= MUTANT_FACTOR * LOGITS, "only the document cut"


@pytest.mark.parametrize("family", TYPED)
def test_token_types_tell_the_texts_apart(store: Store, family: str) -> None:
    """A tokenizer that gives the model no token types makes other scores, here as in the reference."""
    right = head_folder(store, family, "sequence", num_labels=1)
    untyped = store.folder(f"untyped-{family}", lambda place: _untyped(right, place))
    expected = expected_of(untyped, PAIRS)
    assert difference(expected, expected_of(right, PAIRS)) >= MUTANT_FACTOR * LOGITS
    assert difference(scores_of(store.engine(untyped), PAIRS, use_activation=False), expected) <= LOGITS


def _untyped(source: Path, place: Path) -> Path:
    shutil.copytree(source, place)
    _edit(place / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])
    return place


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_cut_on_the_left(store: Store, family: str, tmp_path: Path) -> None:
    """By the request, and by the checkpoint."""
    folder = copied(store, family, tmp_path / "left")
    _edit(folder / "tokenizer_config.json", truncation_side="left")
    expected = expected_of(folder, PAIRS)
    by_request = store.engine(head_folder(store, family, "sequence", num_labels=1))
    assert difference(scores_of(by_request, PAIRS, truncation_side="left", use_activation=False), expected) <= LOGITS
    with PoolingModel(str(folder)) as model:
        assert difference(scores_of(model, PAIRS, use_activation=False), expected) <= LOGITS


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_only_the_document_is_cut(store: Store, family: str, side: str) -> None:
    """A limit of its own for the document leaves the query whole, as the reference's only_second does."""
    folder = head_folder(store, family, "sequence", num_labels=1)
    tokenizer = reference_of(folder).tokenizer
    num_query = len(tokenizer(LONG_BOTH[0], add_special_tokens=False)["input_ids"])
    room = 64 - tokenizer.num_special_tokens_to_add(pair=True) - num_query
    before, tokenizer.truncation_side = tokenizer.truncation_side, side
    try:
        expected = expected_of(folder, [LONG_BOTH], processing_kwargs={"text": {"truncation": "only_second"}})
    finally:
        tokenizer.truncation_side = before
    output = store.engine(folder).score(
        *LONG_BOTH, use_activation=False, max_tokens_per_doc=room, truncation_side=side, max_tokens_per_query=num_query
    )
    assert difference(output.scores, expected) <= LOGITS
    assert output.truncated.tolist() == [True]
    assert output.num_tokens == 64


def test_a_lower_limit(store: Store) -> None:
    folder = head_folder(store, "xlm-roberta", "sequence", num_labels=1)
    options = {"processing_kwargs": {"text": {"truncation": True, "max_length": 24}}}
    expected = expected_of(folder, PAIRS, **options)
    model = store.engine(folder)
    assert difference(scores_of(model, PAIRS, use_activation=False, max_tokens=24), expected) <= LOGITS
    assert difference(expected_of(folder, PAIRS), expected) >= MUTANT_FACTOR * LOGITS


@pytest.mark.parametrize("family", FAMILIES)
def test_alone_is_as_in_the_batch(store: Store, family: str) -> None:
    model = store.engine(head_folder(store, family, "sequence", num_labels=1))
    together = scores_of(model, PAIRS, use_activation=False)
    for index, pair in enumerate(PAIRS):
        assert difference(model.score(*pair, use_activation=False).scores, together[index]) <= 1e-5


IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
PLACES: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "nothing": ({}, None),
    "oldest place": ({"sbert_ce_default_activation_function": IDENTITY}, None),
    "middle place": ({"sentence_transformers": {"activation_fn": TANH, "version": "4.1.0"}}, None),
    "new place": ({}, {"activation_fn": IDENTITY}),
    "new before middle": ({"sentence_transformers": {"activation_fn": IDENTITY}}, {"activation_fn": TANH}),
}


@pytest.mark.parametrize("place", PLACES)
def test_the_activation_from_its_places(store: Store, place: str, tmp_path: Path) -> None:
    config, saved = PLACES[place]
    folder = copied(store, "bert", tmp_path / "source")
    if saved is not None:
        CrossEncoder(str(folder), device="cpu").save_pretrained(str(tmp_path / "saved"))
        folder = tmp_path / "saved"
        _edit(folder / "config_sentence_transformers.json", **saved)
    _edit(folder / "config.json", **config)
    reference = CrossEncoder(str(folder), device="cpu")
    with PoolingModel(str(folder)) as model:
        assert model.info.abilities.score_type == "cross-encoder"
        assert difference(scores_of(model, PAIRS), reference.predict(list(PAIRS))) <= LOGITS
        raw = scores_of(model, PAIRS, use_activation=False)
    assert difference(raw, reference.predict(list(PAIRS), activation_fn=nn.Identity())) <= LOGITS


def test_prompts_stand_before_the_query(store: Store, tmp_path: Path) -> None:
    """Of the checkpoint, its default one and a named one, and of the request."""
    source = CrossEncoder(
        str(head_folder(store, "bert", "sequence", num_labels=1)),
        device="cpu",
        prompts={"search": "the mill: ", "other": "a lake "},
        default_prompt_name="search",
    )
    source.save_pretrained(str(tmp_path / "prompted"))
    reference = CrossEncoder(str(tmp_path / "prompted"), device="cpu")
    raw = {"activation_fn": nn.Identity()}
    cases: dict[str, dict[str, str]] = {
        "default": {},
        "named": {"prompt_name": "other"},
        "own": {"prompt": "clear water "},
        "none": {"prompt": ""},
    }
    found = {}
    with PoolingModel(str(tmp_path / "prompted")) as model:
        for name, options in cases.items():
            expected = reference.predict(list(PAIRS), **raw, **options)
            found[name] = scores_of(model, PAIRS, use_activation=False, **options)
            assert difference(found[name], expected) <= LOGITS, name
    for name in ("named", "own", "none"):
        assert difference(found[name], found["default"]) >= MUTANT_FACTOR * LOGITS, name


def _edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}, indent=1))


@pytest.mark.parametrize("bias", [False, True])
def test_modernbert_pools_as_its_checkpoint_says(store: Store, bias: bool) -> None:
    """The mean of all tokens before the head, which may have biases of its own."""
    changes = {"classifier_pooling": "mean", "classifier_bias": bias, "classifier_activation": "relu"}
    folder = head_folder(store, "modernbert", "sequence", num_labels=1, norm_bias=bias, **changes)
    expected = expected_of(folder, PAIRS)
    assert difference(scores_of(store.engine(folder), PAIRS, use_activation=False), expected) <= LOGITS
    first = store.engine(folder, pooler_config={"pooling_type": "CLS"})
    assert difference(scores_of(first, PAIRS, use_activation=False), expected) >= MUTANT_FACTOR * LOGITS


def test_modernbert_in_the_older_schema(store: Store, tmp_path: Path) -> None:
    """Names of layers' kinds and bases of positions as the published checkpoints have them."""
    source = head_folder(store, "modernbert", "sequence", num_labels=1)
    folder = Path(shutil.copytree(source, tmp_path / "older"))
    config = json.loads((folder / "config.json").read_text())
    for name in ("layer_types", "rope_parameters"):
        del config[name]
    config |= {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    (folder / "config.json").write_text(json.dumps(config))
    with PoolingModel(str(folder)) as model:
        assert difference(scores_of(model, PAIRS, use_activation=False), expected_of(folder, PAIRS)) <= LOGITS
        assert difference(expected_of(folder, PAIRS), expected_of(source, PAIRS)) <= LOGITS
