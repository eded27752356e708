"""Recorded decoders and ModernBERT against their own torch form: every form of them, whole, in chunks, however cut."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from forebay.checkpoint.weights import iter_weights
from forebay.layers.program import Program
from forebay.loading.fill import fill
from forebay.models.base import Encoder
from forebay.models.registry import build_encoder
from tests.models.decoder_cases import DECODER_CASES, DecoderCase
from tests.native.models import make_batch, random_texts, run, states
from tests.support import tiny
from tests.support.store import Store

native = pytest.importorskip("forebay._native", reason="the native kernels are not built")

TOLERANCE = 1e-5
"""Of a state, as a part of the layer's largest."""

LENS = (1, 2, 3, 7, 8, 9, 10, 16, 17, 17, 31, 33, 64, 120)


def read(folder: Path, kernels: str = "", precision: str = "float32") -> Encoder:
    """The checkpoint's model, on torch's path without kernels."""
    with torch.device("meta"):
        model = build_encoder(json.loads((folder / "config.json").read_text()))
    recorder = model.record(kernels, precision) if kernels else None  # type: ignore[arg-type]
    fill(model, model.naming, iter_weights(folder), torch.float32, torch.device("cpu"))
    if recorder is not None:
        model.program = Program(recorder)
    return model.eval()


def folder_of(store: Store, case: DecoderCase) -> Path:
    return store.folder(f"decoder-{case.name}", lambda place: tiny.decoder(case.family, place, **case.config))


@pytest.mark.parametrize("case", DECODER_CASES, ids=lambda case: case.name)
def test_every_layers_states_are_the_torch_paths(store: Store, case: DecoderCase) -> None:
    folder = folder_of(store, case)
    plain, fast = read(folder), read(folder, native.kernels()[0])
    batch = make_batch(random_texts(LENS, plain.vocab_size))
    for one, other in zip(states(plain, batch), states(fast, batch), strict=True):
        assert np.abs(one - other).max() <= TOLERANCE * np.abs(one).max()


@pytest.mark.parametrize("isa", native.kernels())
@pytest.mark.parametrize("name", ["qwen3", "gemma2", "bidirectional gemma3", "gpt_neox"])
def test_every_instruction_set(store: Store, name: str, isa: str) -> None:
    folder = folder_of(store, next(case for case in DECODER_CASES if case.name == name))
    batch = make_batch(random_texts(LENS, 100))
    one, other = (run(read(folder, kernels), batch) for kernels in ("", isa))
    assert np.abs(one - other).max() <= TOLERANCE * np.abs(one).max()
