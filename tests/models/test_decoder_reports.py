"""Faults that were reported of other engines and that no other test repeats: each with the mistake beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from forebay import PoolingModel
from forebay.core.config import EngineLimits
from forebay.core.errors import InputTooLong, InvalidRequest
from tests.models.test_reward_models import two_layers
from tests.support.language_models import ids_of, save, states_of
from tests.support.texts import sentence

TEXTS = ("a river", "the", sentence(40, 1), "Deep, cold water!", sentence(12, 2))
VECTORS, FACTOR = 1e-5, 100
NATIVELY = [pytest.param("", id="native"), pytest.param("0", id="torch")]


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)  # type: ignore[no-any-return]


def too_large_for_half(place: Path) -> Path:
    """The last feed-forward half gives states that float16 has no numbers for."""
    folder = save(place, "gemma2", "CausalLM", ends="$A </s>")
    tensors = load_file(folder / "model.safetensors")
    for name in ("post_attention_layernorm", "post_feedforward_layernorm"):
        tensors[f"model.layers.0.{name}.weight"] *= 1e6
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("path", NATIVELY)
def test_states_beyond_float16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """infinity#328, unsloth#4014, vLLM#24318: NaN or null where activations pass 65504; float16 is never chosen."""
    monkeypatch.setenv("FOREBAY_NATIVE", path)
    folder = too_large_for_half(tmp_path / "model")
    ids = ids_of(folder, TEXTS)
    expected = unit(np.stack([rows[-1] for rows in states_of(folder, ids)]))
    with torch.no_grad():
        model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
        inner = [model(torch.tensor([row]), output_hidden_states=True).hidden_states[1] for row in ids]
    assert min(float(states.abs().max()) for states in inner) > 65504
    assert not any(bool(states.half().isfinite().all()) for states in inner)
    with PoolingModel(str(folder), convert="embed") as model:
        assert np.abs(model.embed(TEXTS).embeddings - expected).max() <= VECTORS
    with PoolingModel(str(folder), convert="embed", dtype="bfloat16") as model:
        found = model.embed(TEXTS).embeddings
    assert (np.sum(found * expected, 1) > 0.99).all()
    with pytest.raises(InvalidRequest, match="float16 is not computed on CPU"):
        PoolingModel(str(folder), convert="embed", dtype="float16")


def test_fifty_calls_give_what_one_gives(tmp_path: Path) -> None:
    """vLLM#37868: something added up over calls. Others come between, and most is known after the first."""
    folder = save(tmp_path / "model", "qwen3", "CausalLM", ends="$A </s>")
    states = states_of(folder, ids_of(folder, TEXTS))
    expected = unit(np.stack([rows[-1] for rows in states]))
    with PoolingModel(str(folder), convert="embed") as model:
        for call in range(50):
            chosen = list(range(len(TEXTS)))[call % 3 :]
            found = model.embed([TEXTS[place] for place in chosen]).embeddings
            assert np.abs(found - expected[chosen]).max() <= VECTORS
    behind = unit(np.stack([rows[max(0, len(rows) - 3)] for rows in states]))
    assert np.abs(behind - expected).max() >= FACTOR * VECTORS, "a row that is two off would be seen"


@pytest.mark.parametrize("step", [64, 8192])
def test_a_text_of_exactly_the_models_length_fits(tmp_path: Path, step: int) -> None:
    """No room is kept for tokens to come, since none will be sampled."""
    folder = save(tmp_path / "model", "qwen3", "CausalLM", ends="$A </s>")
    chance = np.random.default_rng(3)
    full = chance.integers(20, 200, 255).tolist()
    (states,) = states_of(folder, [[*full, 2]])
    with PoolingModel(str(folder), convert="embed", limits=EngineLimits(max_step_tokens=step)) as model:
        assert model.info.abilities.max_len == 256
        output = model.embed([full], truncate=False)
        assert output.num_tokens == 256
        assert not output.truncated.any()
        assert np.abs(output.embeddings - unit(states[-1:])).max() <= VECTORS
        with pytest.raises(InputTooLong, match="257 tokens"):
            model.embed([[*full, 20]], truncate=False)
        cut = model.embed([[*full, 20]])
        assert cut.truncated.all()
        assert cut.num_tokens == 256


@pytest.mark.parametrize("path", NATIVELY)
def test_what_is_kept_has_the_type_of_the_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """A head in float32 stands before a body in bfloat16: cut into steps, it must give what one step gives."""
    monkeypatch.setenv("FOREBAY_NATIVE", path)
    two_layers(tmp_path / "model", "Qwen2ForRewardModel", 1)
    text, scores = sentence(100, 5), []
    for step in (16, 8192):
        limits = EngineLimits(max_step_tokens=step)
        with PoolingModel(str(tmp_path / "model"), dtype="bfloat16", limits=limits) as model:
            scores.append(float(model.classify(text).scores[0, 0]))
    assert scores[0] == pytest.approx(scores[1], rel=0.02)
