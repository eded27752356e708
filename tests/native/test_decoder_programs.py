"""Recorded decoders and ModernBERT against their own torch form: every form of them, whole, in chunks, however cut."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from forebay.checkpoint.weights import iter_weights
from forebay.engine.pack import pack
from forebay.layers.batch import FlatBatch
from forebay.layers.kv import KVPool
from forebay.layers.program import Program, _pages
from forebay.loading.fill import fill
from forebay.models.base import Encoder
from forebay.models.decoder import Decoder
from forebay.models.registry import build_encoder
from tests.models.decoder_cases import DECODER_CASES, DecoderCase
from tests.native.kinds import ISAS, KINDS, LOW_KINDS
from tests.native.models import make_batch, random_texts, run, states
from tests.native.test_programs import ALLOWED, distance
from tests.support import tiny
from tests.support.engine import CPU, make_sequences
from tests.support.store import Store

native = pytest.importorskip("forebay._native", reason="the native kernels are not built")

TOLERANCE = 1e-5
"""Of a state, as a part of the layer's largest."""

LENS = (1, 2, 3, 7, 8, 9, 10, 16, 17, 17, 31, 33, 64, 120)


def read(folder: Path, kernels: str = "", precision: str = "float32", dtype: torch.dtype = torch.float32) -> Encoder:
    """The checkpoint's model, on torch's path without kernels, where it computes in ``dtype``."""
    with torch.device("meta"):
        model = build_encoder(json.loads((folder / "config.json").read_text()))
    recorder = model.record(kernels, precision) if kernels else None  # type: ignore[arg-type]
    fill(model, model.naming, iter_weights(folder), dtype, torch.device("cpu"))
    if recorder is not None:
        model.program = Program(recorder)
    return model.eval()


def case_of(name: str) -> DecoderCase:
    return next(case for case in DECODER_CASES if case.name == name)


def folder_of(store: Store, case: DecoderCase) -> Path:
    return store.folder(f"decoder-{case.name}", lambda place: tiny.decoder(case.family, place, **case.config))


@pytest.mark.parametrize("case", DECODER_CASES, ids=lambda case: case.name)
def test_every_layers_states_are_the_torch_paths(store: Store, case: DecoderCase) -> None:
    folder = folder_of(store, case)
    plain, fast = read(folder), read(folder, native.kernels()[0])
    batch = make_batch(random_texts(LENS, plain.vocab_size))
    for one, other in zip(states(plain, batch), states(fast, batch), strict=True):
        assert np.abs(one - other).max() <= TOLERANCE * np.abs(one).max()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["qwen3", "gemma2", "bidirectional gemma3", "gpt_neox"])
def test_every_instruction_set(store: Store, name: str, isa: str) -> None:
    folder = folder_of(store, case_of(name))
    batch = make_batch(random_texts(LENS, 100))
    one, other = (run(read(folder, kernels), batch) for kernels in ("", isa))
    assert np.abs(one - other).max() <= TOLERANCE * np.abs(one).max()


def cut_run(model: Encoder, batch: FlatBatch, threads: int, cut: str) -> np.ndarray:  # type: ignore[type-arg]
    """A step with a given cut and number of threads."""
    assert model.program is not None
    out = np.empty((1, len(batch.input_ids), model.hidden_size), np.float32)
    angles = [rotary.table(batch) for rotary in model.program._rotaries]
    model.program._native.run(
        batch.input_ids.numpy(),
        batch.positions.numpy(),
        None,
        batch.cu_seqlens.numpy(),
        None,
        out,
        threads,
        cut,  # type: ignore[arg-type]
        angles=[(table.numpy(), rows.numpy()) for table, rows in angles],
        pages=None if batch.kv is None else _pages(batch.kv),
    )
    return out[0]


@pytest.mark.parametrize(("isa", "precision"), KINDS)
@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gpt_neox", "bidirectional mistral"])
def test_neighbours_threads_and_cuts_change_no_bit(store: Store, name: str, isa: str, precision: str) -> None:
    model = read(folder_of(store, case_of(name)), isa, precision)
    texts = sorted(random_texts(LENS, model.vocab_size, 3), key=len)
    alone = np.concatenate([cut_run(model, make_batch([text]), 1, "groups") for text in texts])
    for threads in (1, 2, 3):
        for cut in ("automatic", "groups", "rows"):
            assert np.array_equal(cut_run(model, make_batch(texts), threads, cut), alone), (threads, cut)


@pytest.mark.parametrize(("isa", "precision"), KINDS)
@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gpt_neox", "gpt2"])
@pytest.mark.parametrize("seed", range(3))
def test_chunks_and_what_others_keep_change_no_bit(
    store: Store, name: str, isa: str, precision: str, seed: int
) -> None:
    """Two begin as a third does and read what it keeps: of one, in the very step in which it comes to be."""
    model, chance = read(folder_of(store, case_of(name)), isa, precision), random.Random(seed)
    assert isinstance(model, Decoder)
    leader, *tails = random_texts((61, 7, 30), model.vocab_size, seed)
    texts = [leader, leader[:36] + tails[0], leader[:20] + tails[1]]
    whole = [cut_run(model, make_batch([text]), 1, "groups") for text in texts]
    pool = KVPool.reserve(model, 60, torch.float32, CPU, block_size=4)
    pool.keys.fill_(float("nan"))
    pool.values.fill_(float("nan"))
    blocks = list(range(1, 60))
    chance.shuffle(blocks)
    sequences = make_sequences(texts)
    for seq, known in zip(sequences, (0, 36, 20), strict=True):
        shared = sequences[0].table[: known // 4]
        seq.begin([*shared, *(blocks.pop() for _ in range(-(-len(seq.ids) // 4) - len(shared)))], known, len(seq.ids))
    cut_at = chance.choice([40, 48, 60])
    sequences[0].end = cut_at
    for step in (sequences[:2], sequences[::2]):
        for seq in step:
            seq.end = max(seq.end, seq.start + 1)
        packed = pack(step, CPU, pool)
        found = cut_run(model, packed.batch, 2, chance.choice(["automatic", "groups", "rows"]))
        ordered = sorted(step, key=lambda seq: (seq.end - seq.start, seq.start))
        for seq, start, length in zip(ordered, packed.cursor.starts, packed.cursor.lens, strict=True):
            expected = whole[sequences.index(seq)][seq.start : seq.end]
            assert np.array_equal(found[start : start + length], expected)
        sequences[0].start, sequences[0].end = cut_at, 61


@pytest.mark.parametrize(("isa", "precision"), LOW_KINDS)
@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gpt_neox", "gpt2"])
def test_low_precision_follows_float32(store: Store, name: str, isa: str, precision: str) -> None:
    """Compared with torch in bfloat16, which also rounds what lies between the products."""
    folder = folder_of(store, case_of(name))
    plain, fast, rounded = read(folder), read(folder, isa, precision), read(folder, dtype=torch.bfloat16)
    batch = make_batch(random_texts(LENS, plain.vocab_size))
    expected = run(plain, batch)
    ours = distance(run(fast, batch), expected)
    with torch.inference_mode():
        theirs = distance(rounded(batch).float().numpy(), expected)
    assert 0 < ours <= theirs * ALLOWED[precision], (ours, theirs)
