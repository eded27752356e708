"""Padding, which the reference library needs and Forebay has not: on either side it changes nothing, if masked."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from forebay import PoolingModel
from forebay.core.config import EngineLimits
from tests.models.decoder_cases import DECODER_CASES, SLIDING, TOLERANCE
from tests.models.test_decoders import difference, folder_of, states
from tests.support import tiny
from tests.support.language_models import ids_of, save
from tests.support.store import Store
from tests.support.texts import sentence

LENGTHS = (1, 3, 40, 120)
PADDING, END = 1, 2
NAMES = (
    *("llama", "mistral", "qwen2", "qwen3", "qwen2_vl", "gemma", "gemma2", "gemma3", "gpt2", "gpt_neox"),
    *("bidirectional llama", "bidirectional mistral", "bidirectional qwen2", "bidirectional qwen3"),
    *("bidirectional gemma", "bidirectional gemma2", "bidirectional gemma3"),
)


@cache
def texts() -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(8)
    return tuple(torch.randint(3, 300, (length,), generator=generator) for length in LENGTHS)


@torch.no_grad()
def padded(folder: Path, side: str, *, is_masked: bool = True) -> list[Tensor]:
    """transformers' states of a padded batch, of the real tokens."""
    config = json.loads((folder / "config.json").read_text())
    config = AutoConfig.for_model(config.pop("model_type"), **config)
    model = AutoModel.from_pretrained(folder, config=config, attn_implementation="eager", dtype=torch.float32)
    longest = max(LENGTHS)
    ids, mask = torch.full((len(LENGTHS), longest), PADDING), torch.zeros(len(LENGTHS), longest, dtype=torch.long)
    places = [slice(0, length) if side == "right" else slice(longest - length, longest) for length in LENGTHS]
    for row, (text, place) in enumerate(zip(texts(), places, strict=True)):
        ids[row, place], mask[row, place] = text, 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    seen = mask if is_masked else torch.ones_like(mask)
    found = model(input_ids=ids, attention_mask=seen, position_ids=positions).last_hidden_state
    return [state[place] for state, place in zip(found, places, strict=True)]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", NAMES)
def test_states_are_those_of_a_padded_batch(store: Store, name: str, side: str) -> None:
    """Lengths of 1, 3, 40 and 120 side by side; a window of padding alone makes no NaN here."""
    case = next(case for case in DECODER_CASES if case.name == name)
    folder = folder_of(store, case)
    own = states(folder, texts())
    assert all(bool(state.isfinite().all()) for state in own)
    assert difference(own, padded(folder, side)) <= TOLERANCE
    if side == "left" or name.startswith("bidirectional"):  # else no token sees what stands behind it
        assert difference(own, padded(folder, side, is_masked=False)) >= 100 * TOLERANCE


CLASSIFIED = ("a river", "the", sentence(40, 1), "Deep, cold water!", sentence(12, 2))


@torch.no_grad()
def padded_logits(folder: Path, side: str, width: int) -> np.ndarray:
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    rows = ids_of(folder, CLASSIFIED)
    width = max(width, *map(len, rows))
    ids, mask = torch.full((len(rows), width), PADDING), torch.zeros(len(rows), width, dtype=torch.long)
    for index, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        ids[index, place], mask[index, place] = torch.tensor(row), 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return model(input_ids=ids, attention_mask=mask, position_ids=positions).logits.numpy()  # type: ignore[no-any-return]


@pytest.mark.parametrize("width", [0, 200], ids=["longest", "max_length"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_a_classifier_reads_the_row_of_a_padded_batch(tmp_path: Path, family: str, side: str, width: int) -> None:
    """Each by the last token that is no padding, however much of it there is."""
    folder = save(tmp_path / "model", family, "SequenceClassification", ends="$A </s>", num_labels=3)
    with PoolingModel(str(folder)) as model:
        found = model.classify(CLASSIFIED, use_activation=False).scores
    assert np.abs(found - padded_logits(folder, side, width)).max() <= 1e-4


LONG = (1, 255, 256, 257, 299, 300, 301, 513, 700)
"""Around the window, and past every block of queries, keys and rows that either path computes at a time."""

WINDOWS = {
    "mistral": {"sliding_window": 300},
    "gemma2": {"sliding_window": 300},
    "bidirectional gemma3": {"sliding_window": 600, "use_bidirectional_attention": True},
    "qwen3": {},
    "bidirectional gpt2": {"is_causal": False, "n_positions": 1024},
}


def long_folder(store: Store, name: str) -> Path:
    family = name.rpartition(" ")[2]
    sizes = {} if family == "gpt2" else {"max_position_embeddings": 1024}
    return store.folder(f"long-{name}", lambda place: tiny.decoder(family, place, **{**sizes, **WINDOWS[name]}))


@cache
def long_texts() -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(9)
    return tuple(torch.randint(3, 300, (length,), generator=generator) for length in LONG)


@cache
def alone(folder: Path, window: int | None = None, end: int | None = None) -> list[Tensor]:
    """Each text's states by itself; ``end`` is a token that is put behind it."""
    behind = torch.tensor([] if end is None else [end], dtype=torch.long)
    config = json.loads((folder / "config.json").read_text())
    if window is not None:
        config["sliding_window"] = window
    config = AutoConfig.for_model(config.pop("model_type"), **config)
    model = AutoModel.from_pretrained(folder, config=config, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        return [model(input_ids=torch.cat([row, behind])[None]).last_hidden_state[0] for row in long_texts()]


@pytest.mark.parametrize("name", WINDOWS)
def test_longer_than_every_window_and_block(store: Store, name: str) -> None:
    folder = long_folder(store, name)
    expected = alone(folder)
    assert difference(states(folder, long_texts()), expected) <= TOLERANCE
    if SLIDING in str((folder / "config.json").read_text()) or name == "mistral":
        step = 2 if "bidirectional" in name else 1
        assert difference(alone(folder, WINDOWS[name]["sliding_window"] + step), expected) >= 100 * TOLERANCE


@pytest.mark.parametrize("path", ["native", "torch"])
@pytest.mark.parametrize("name", ["mistral", "gemma2", "qwen3"])
def test_the_same_in_chunks_and_behind_known_prefixes(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str, path: str
) -> None:
    """Through the engine: steps of 96 tokens, and once more where most is known."""
    if path == "torch":
        monkeypatch.setenv("FOREBAY_NATIVE", "0")
    else:
        pytest.importorskip("forebay._native", reason="the native kernels are not built")
    folder = long_folder(store, name)
    expected = torch.stack([rows[-1] for rows in alone(folder, end=END)])
    ids = [row.tolist() for row in long_texts()]
    options = {"pooler_config": {"pooling_type": "LAST", "use_activation": False}, "max_model_len": 1024}
    with PoolingModel(str(folder), limits=EngineLimits(max_step_tokens=96), **options) as model:  # type: ignore[arg-type]
        for _ in range(2):
            found = torch.from_numpy(model.embed(ids).embeddings)
            assert difference(list(found), list(expected)) <= TOLERANCE
