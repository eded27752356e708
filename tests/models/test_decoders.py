"""Decoders against transformers on the same checkpoint, state by state, and through whole pipelines."""

import json
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer

from forebay.checkpoint.weights import iter_weights
from forebay.layers.batch import FlatBatch, Run
from forebay.loading.fill import fill
from forebay.models.decoder import Decoder
from forebay.models.registry import build_encoder
from tests.models.decoder_cases import DECODER_CASES, TOLERANCE, DecoderCase, Mutant
from tests.support import pipelines, tiny
from tests.support.store import Store
from tests.support.texts import MIXED, sentence

LENGTHS = (1, 3, 8, 9, 10, 16, 17, 31, 33, 64, 120)
"""Around every window, block and length of training."""

NAMES = [case.name for case in DECODER_CASES]
MUTANTS = [pytest.param(case, name, id=f"{case.name}: {name}") for case in DECODER_CASES for name in case.mutants]


def folder_of(store: Store, case: DecoderCase) -> Path:
    return store.folder(f"decoder-{case.name}", lambda place: tiny.decoder(case.family, place, **case.config))


@cache
def load(folder: Path) -> Decoder:
    """Forebay's model of a checkpoint."""
    config = json.loads((folder / "config.json").read_text())
    with torch.device("meta"):
        model = build_encoder(config)
    fill(model, model.naming, iter_weights(folder), torch.float32, torch.device("cpu"))
    assert isinstance(model, Decoder)
    return model


@cache
def texts() -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randint(3, 300, (length,), generator=generator) for length in LENGTHS)


def batch_of(rows: Sequence[Tensor]) -> FlatBatch:
    lens = [len(row) for row in rows]
    starts = np.cumsum([0, *lens])
    return FlatBatch(
        input_ids=torch.cat(list(rows)),
        positions=torch.cat([torch.arange(length) for length in lens]),
        cu_seqlens=torch.from_numpy(starts),
        type_ids=None,
        runs=tuple(Run(int(start), 1, length) for start, length in zip(starts, lens, strict=False)),
    )


def reference(folder: Path, mutant: Mutant | None = None) -> list[Tensor]:
    """transformers' states of each text by itself, after a mutation if there is one."""
    changes = mutant if mutant is not None and not callable(mutant) else {}
    document = json.loads((folder / "config.json").read_text()) | dict(changes)
    config = AutoConfig.for_model(document.pop("model_type"), **document)
    model = AutoModel.from_pretrained(folder, config=config, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        if callable(mutant):
            mutant(model)
        return [model(input_ids=row[None]).last_hidden_state[0] for row in texts()]


def difference(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """The largest difference as a part of the largest state."""
    gaps = max(float((x - y).abs().max()) for x, y in zip(one, other, strict=True))
    return gaps / max(float(x.abs().max()) for x in other)


@torch.no_grad()
def states(folder: Path, rows: Sequence[Tensor]) -> list[Tensor]:
    return list(load(folder)(batch_of(rows)).split([len(row) for row in rows]))


@pytest.mark.parametrize("case", DECODER_CASES, ids=NAMES)
def test_states_are_those_of_transformers(store: Store, case: DecoderCase) -> None:
    folder = folder_of(store, case)
    assert difference(states(folder, texts()), reference(folder)) <= case.tolerance


@pytest.mark.parametrize(("case", "mutant"), MUTANTS)
def test_a_mistake_would_be_seen(store: Store, case: DecoderCase, mutant: str) -> None:
    folder = folder_of(store, case)
    assert difference(reference(folder, case.mutants[mutant]), reference(folder)) >= 100 * case.tolerance


@pytest.mark.parametrize("case", DECODER_CASES, ids=NAMES)
def test_alone_is_as_in_a_batch(store: Store, case: DecoderCase) -> None:
    folder = folder_of(store, case)
    alone = [states(folder, [row])[0] for row in texts()]
    assert difference(states(folder, texts()), alone) <= 2e-6  # products of other sizes add up in another order


@pytest.mark.parametrize("family", sorted(tiny.DECODERS))
def test_layers_are_shown_as_transformers_shows_them(store: Store, family: str) -> None:
    folder = folder_of(store, next(case for case in DECODER_CASES if case.family == family))
    model = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    row, shown = texts()[-1], {}
    with torch.no_grad():
        expected = model(input_ids=row[None], output_hidden_states=True).hidden_states
        load(folder)(batch_of([row]), shown.__setitem__)
    assert list(shown) == list(range(len(expected)))
    assert difference(list(shown.values()), [state[0] for state in expected]) <= TOLERANCE


def _flat(config: dict[str, Any]) -> None:
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = parameters if parameters["rope_type"] != "default" else None


def _typed(config: dict[str, Any]) -> None:
    _flat(config)
    config["rope_scaling"]["type"] = config["rope_scaling"].pop("rope_type")


def _original_outside(config: dict[str, Any]) -> None:
    _flat(config)
    config["original_max_position_embeddings"] = config["rope_scaling"].pop("original_max_position_embeddings")


def _gemma(config: dict[str, Any]) -> None:
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters["full_attention"].pop("rope_theta")
    config["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
    config["rope_scaling"] = parameters["full_attention"]


def _gemma_pattern(config: dict[str, Any]) -> None:
    _gemma(config)
    config["sliding_window_pattern"] = 6
    del config["layer_types"]


def _neox(config: dict[str, Any]) -> None:
    parameters = config.pop("rope_parameters")
    config |= {"rotary_emb_base": parameters["rope_theta"], "rotary_pct": parameters["partial_rotary_factor"]}


def _mrope(config: dict[str, Any]) -> None:
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters["rope_theta"]
    config["rope_scaling"] = {"type": "mrope", "mrope_section": parameters["mrope_section"]}


OLD_SCHEMAS: dict[str, Callable[[dict[str, Any]], None]] = {
    "llama": _flat,
    "linear scaling": _typed,
    "dynamic scaling": _flat,
    "llama3 scaling": _flat,
    "yarn scaling": _flat,
    "longrope scaling": _original_outside,
    "qwen2_vl": _mrope,
    "gemma3": _gemma_pattern,
    "gemma3 with two rotations": _gemma,
    "serial gpt_neox": _neox,
}


@pytest.mark.parametrize("name", OLD_SCHEMAS)
def test_the_older_schema_of_positions_says_the_same(store: Store, tmp_path: Path, name: str) -> None:
    folder = folder_of(store, next(case for case in DECODER_CASES if case.name == name))
    old = Path(shutil.copytree(folder, tmp_path / "old"))
    config = json.loads((old / "config.json").read_text())
    OLD_SCHEMAS[name](config)
    assert "rope_parameters" not in config
    (old / "config.json").write_text(json.dumps(config))
    assert difference(states(old, texts()), states(folder, texts())) == 0.0


def pipeline(store: Store, name: str, *behind: nn.Module) -> Path:
    """The case's checkpoint with these modules behind it."""
    backbone = folder_of(store, next(case for case in DECODER_CASES if case.name == name))
    modules = [pipelines.transformer(backbone), *behind]
    return store.folder(f"pipeline-{name}-{len(behind)}", lambda place: pipelines.save_pipeline(place, modules))


@pytest.mark.parametrize("name", ["qwen3", "llama", "mistral", "gemma2", "gpt2", "gpt_neox", "bidirectional qwen2"])
def test_last_token_and_norm_are_the_reference_librarys(store: Store, name: str) -> None:
    folder = pipeline(store, name, pipelines.pooling("lasttoken"), pipelines.normalize())
    expected = store.reference(folder).embed(MIXED)
    assert np.abs(store.engine(folder).embed(MIXED).embeddings - expected).max() <= TOLERANCE
    means = pipeline(store, name, pipelines.pooling("mean"))
    expected = store.reference(means).embed(MIXED)
    assert np.abs(store.engine(means).embed(MIXED).embeddings - expected).max() <= TOLERANCE * np.abs(expected).max()


def test_embeddinggemmas_pipeline_is_the_reference_librarys(store: Store) -> None:
    dense = [pipelines.dense(32, 96, bias=False, seed=31), pipelines.dense(96, 32, bias=False, seed=32)]
    folder = pipeline(store, "bidirectional gemma3", pipelines.pooling("mean"), *dense, pipelines.normalize())
    expected = store.reference(folder).embed(MIXED)
    assert np.abs(store.engine(folder).embed(MIXED).embeddings - expected).max() <= TOLERANCE
    without = pipeline(store, "bidirectional gemma3", pipelines.pooling("mean"), pipelines.normalize())
    assert np.abs(store.reference(without).embed(MIXED) - expected).max() >= 100 * TOLERANCE


SMOLLM2 = Path.home() / ".cache/forebay-models/SmolLM2-135M"


@pytest.mark.skipif(not SMOLLM2.exists(), reason="SmolLM2 is not in ~/.cache/forebay-models")
def test_smollm2_is_transformers(store: Store) -> None:
    model = AutoModel.from_pretrained(SMOLLM2, dtype=torch.float32)
    rows = [sentence(length, length) for length in (1, 5, 40, 200)]
    engine = store.engine(SMOLLM2, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(SMOLLM2)
    with torch.no_grad():
        last = [model(**tokenizer(row, return_tensors="pt")).last_hidden_state[0, -1] for row in rows]
    states = torch.from_numpy(engine.embed(rows).embeddings)
    expected = nn.functional.normalize(torch.stack(last))
    assert float((nn.functional.normalize(states) - expected).abs().max()) <= TOLERANCE
