"""Models of tiny checkpoints on either path, and flat batches for them. It knows no test."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import numpy as np
import torch

from forebay.core.config import ModelOptions
from forebay.layers.batch import FlatBatch, Run
from forebay.loading.assemble import LoadedModel, load_model
from forebay.models.base import Encoder


@contextmanager
def switched(value: str) -> Iterator[None]:
    """FOREBAY_NATIVE at this value."""
    before = os.environ.get("FOREBAY_NATIVE")
    os.environ["FOREBAY_NATIVE"] = value
    try:
        yield
    finally:
        os.environ.pop("FOREBAY_NATIVE")
        if before is not None:
            os.environ["FOREBAY_NATIVE"] = before


def load(folder: Path | str, switch: str, dtype: str = "float32") -> LoadedModel:
    with switched(switch):
        return load_model(ModelOptions(model=str(folder), device="cpu", dtype=dtype), lambda stage: None)  # type: ignore[arg-type]


def encoder_of(loaded: LoadedModel) -> Encoder:
    model = next(iter(loaded.pipelines.values())).model
    assert isinstance(model, Encoder)
    return model


def path_of(loaded: LoadedModel) -> str:
    return next(f"{made.value} ({made.source})" for made in loaded.info.decisions if made.name == "compute path")


def make_batch(texts: Sequence[Sequence[int]], has_types: bool = False) -> FlatBatch:
    """The batch of these token ids, ordered by length as the engine orders them."""
    ordered = sorted(texts, key=len)
    lens = [len(text) for text in ordered]
    borders = np.concatenate([[0], np.cumsum(lens)]).astype(np.int64)
    ids = np.concatenate([np.asarray(text, np.int64) for text in ordered])
    positions = np.concatenate([np.arange(length) for length in lens])
    runs, first = [], 0
    for length, members in groupby(lens):
        count = len(list(members))
        runs.append(Run(int(borders[first]), count, length))
        first += count
    types = torch.from_numpy(ids % 2) if has_types else None
    return FlatBatch(torch.from_numpy(ids), torch.from_numpy(positions), torch.from_numpy(borders), types, tuple(runs))


def random_texts(lens: Sequence[int], vocab_size: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab_size, length).tolist() for length in lens]


@torch.inference_mode()
def states(model: Encoder, batch: FlatBatch) -> list[np.ndarray]:  # type: ignore[type-arg]
    """The hidden states of all layers."""
    seen: dict[int, np.ndarray] = {}  # type: ignore[type-arg]
    last = model(batch, lambda index, state: seen.update({index: state.numpy().copy()}))
    assert np.array_equal(last.numpy(), seen[max(seen)])
    return [seen[index] for index in range(len(seen))]


@torch.inference_mode()
def run(model: Encoder, batch: FlatBatch) -> np.ndarray:  # type: ignore[type-arg]
    last: np.ndarray = model(batch).numpy()  # type: ignore[type-arg]
    return last
