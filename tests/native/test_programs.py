"""Recorded architectures against their own torch form, and the same rows bit for bit however a step is cut."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.layers.program import Inputs
from forebay.models.base import Encoder
from tests.native.kinds import ISAS, KINDS, LOW_KINDS
from tests.native.models import encoder_of, load, make_batch, path_of, random_texts, run, states
from tests.support import pipelines
from tests.support.store import Store
from tests.support.texts import MIXED

native = pytest.importorskip("forebay._native", reason="the native kernels are not built")

TOLERANCE = 1e-5
LENS = (1, 2, 3, 5, 6, 7, 12, 12, 13, 16, 17, 31, 33, 48, 60, 64, 64)
ODD = {"hidden_size": 60, "num_attention_heads": 3, "intermediate_size": 100}
CASES: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("bert", {}),
    ("bert", ODD),
    ("bert", {"hidden_size": 72, "num_attention_heads": 9, "intermediate_size": 96, "hidden_act": "silu"}),
    ("bert", {"hidden_act": "relu"}),
    ("bert", {"hidden_act": "gelu_new"}),
    ("distilbert", {}),
    ("mpnet", {}),
    ("roberta", {}),
    ("xlm-roberta", {}),
    ("camembert", {}),
    ("electra", {}),
    ("electra", {"embedding_size": 32}),
    ("albert", {}),
    ("modernbert", {}),
    ("modernbert", {"norm_bias": True, "mlp_bias": True, "attention_bias": True, "hidden_activation": "silu"}),
    ("albert", {"num_hidden_groups": 2, "num_hidden_layers": 4}),
)
ALLOWED = {"bfloat16": 0.8, "int8": 3.0}
Pair = tuple[Encoder, Encoder]
Pairs = Callable[..., Pair]


@pytest.fixture(scope="module")
def pairs(store: Store) -> Pairs:
    """The same checkpoint on the torch path and with these kernels."""
    made: dict[str, Pair] = {}

    def find(family: str, changes: Mapping[str, Any], isa: str = "1", precision: str = "float32") -> Pair:
        folder = store.mean_pipeline(family, **changes)
        key = f"{folder} {isa} {precision}"
        if key not in made:
            one, other = load(folder, "0"), load(folder, isa, precision)
            assert path_of(one).startswith("torch")
            assert path_of(other).startswith("native")
            made[key] = encoder_of(one), encoder_of(other)
        return made[key]

    return find


@pytest.mark.parametrize(("family", "changes"), CASES, ids=lambda value: str(value) if value else "-")
def test_every_layers_states_are_the_torch_paths(pairs: Pairs, family: str, changes: Mapping[str, Any]) -> None:
    plain, fast = pairs(family, changes)
    batch = make_batch(random_texts(LENS, plain.vocab_size), has_types=family in ("bert", "electra", "albert"))
    expected, found = states(plain, batch), states(fast, batch)
    assert len(expected) == len(found) == plain.num_layers + 1
    for one, other in zip(expected, found, strict=True):
        assert np.abs(one - other).max() <= TOLERANCE * max(1, np.abs(one).max())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_every_instruction_set(pairs: Pairs, family: str, isa: str) -> None:
    plain, fast = pairs(family, ODD if family == "bert" else {}, isa)
    batch = make_batch(random_texts(LENS, plain.vocab_size))
    assert np.abs(run(plain, batch) - run(fast, batch)).max() <= TOLERANCE


@pytest.mark.parametrize(("isa", "precision"), LOW_KINDS)
@pytest.mark.parametrize(
    ("family", "changes"), [("bert", {}), ("bert", ODD), ("mpnet", {}), ("albert", {}), ("modernbert", {})]
)
def test_low_precision_follows_float32(
    pairs: Pairs, store: Store, family: str, changes: Mapping[str, Any], isa: str, precision: str
) -> None:
    """Compared with torch in bfloat16, which also rounds what lies between the products."""
    plain, fast = pairs(family, changes, isa, precision)
    rounded = encoder_of(load(store.mean_pipeline(family, **changes), "0", "bfloat16"))
    batch = make_batch(random_texts(LENS, plain.vocab_size))
    expected = run(plain, batch)
    ours = distance(run(fast, batch), expected)
    with torch.inference_mode():
        theirs = distance(rounded(batch).float().numpy(), expected)
    assert 0 < ours <= theirs * ALLOWED[precision], (ours, theirs)


def distance(found: np.ndarray, expected: np.ndarray) -> float:  # type: ignore[type-arg]
    """Root mean square of the difference."""
    return float(np.sqrt(np.square(found - expected).mean()))


def test_weights_are_held_once(pairs: Pairs) -> None:
    """The layout of the native kernels replaces the plain one."""
    _, fast = pairs("bert", {})
    assert all("weight" not in name or "norm" in name or "embeddings" in name for name, _ in fast.named_parameters())


def cut_run(model: Encoder, texts: Sequence[Sequence[int]], threads: int, cut: str) -> np.ndarray:  # type: ignore[type-arg]
    """A step with a given cut and number of threads."""
    batch = make_batch(texts)
    assert model.program is not None
    with torch.inference_mode():
        inputs = Inputs(batch, model.position_ids(batch), model.attention_bias(batch))
        out = np.empty((1, len(batch.input_ids), model.hidden_size), np.float32)
        model.program._native.run(
            batch.input_ids.numpy(),
            inputs.positions.numpy(),
            None,
            batch.cu_seqlens.numpy(),
            None if inputs.bias is None else inputs.bias.numpy(),
            out,
            threads,
            cut,
        )
    return out[0]


@pytest.mark.parametrize(("isa", "precision"), KINDS)
@pytest.mark.parametrize("family", ["bert", "mpnet"])
@given(lens=st.lists(st.integers(1, 64), min_size=1, max_size=30), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_neighbours_threads_and_cuts_change_no_bit(
    pairs: Pairs, family: str, isa: str, precision: str, lens: list[int], seed: int
) -> None:
    _, model = pairs(family, {}, isa, precision)
    texts = sorted(random_texts(lens, model.vocab_size, seed), key=len)
    alone = np.concatenate([cut_run(model, [text], 1, "groups") for text in texts])
    for threads in (1, 2, 3):
        for cut in ("automatic", "groups", "rows"):
            assert np.array_equal(cut_run(model, texts, threads, cut), alone), (threads, cut)


def test_many_tokens_in_one_step(pairs: Pairs) -> None:
    """More groups than threads, and more rows than a block or a group holds."""
    plain, model = pairs("bert", {})
    texts = random_texts([64] * 30 + [1] * 40 + [7] * 20, model.vocab_size)
    batch = make_batch(texts)
    expected = run(plain, batch)
    for cut in ("groups", "rows"):
        assert np.abs(cut_run(model, texts, 2, cut) - expected).max() <= TOLERANCE


def test_steps_of_falling_and_rising_size_share_the_arena(pairs: Pairs) -> None:
    _, model = pairs("bert", {})
    small, large = random_texts([9, 30], model.vocab_size), random_texts([64] * 20, model.vocab_size)
    first = cut_run(model, small, 2, "automatic")
    cut_run(model, large, 2, "automatic")
    assert np.array_equal(cut_run(model, small, 2, "automatic"), first)


@pytest.mark.parametrize(("name", "place"), [("token ids", 0), ("positions", 1)])
def test_rows_outside_a_table_are_refused(pairs: Pairs, name: str, place: int) -> None:
    _, model = pairs("bert", {})
    assert model.program is not None
    for wrong in (-1, 10**6):
        rows = [np.zeros(3, np.int64), np.arange(3)]
        rows[place][1] = wrong
        with pytest.raises(IndexError, match=f"{name} hold {wrong}, but their table has"):
            model.program._native.run(
                *rows, None, np.array([0, 3]), None, np.empty((1, 3, model.hidden_size), np.float32), 1
            )


def test_a_mean_over_layers_reads_the_programs_states(store: Store) -> None:
    """WeightedLayerPooling asks for every layer's states."""
    backbone = store.backbone("bert")
    folder = store.folder(
        "native-weighted",
        lambda place: pipelines.save_pipeline(
            place,
            [
                pipelines.transformer(backbone, config_kwargs={"output_hidden_states": True}),
                pipelines.weighted_layers(2, start=1, weights=(0.2, 1.3)),
                pipelines.pooling("mean"),
            ],
        ),
    )
    expected = store.reference(folder).embed(MIXED)
    engine = store.engine(folder)
    assert any(made.name == "compute path" and made.value.startswith("native") for made in engine.info.decisions)
    assert np.abs(engine.embed(MIXED).embeddings - expected).max() <= TOLERANCE


@pytest.mark.parametrize("precision", [kind for isa, kind in KINDS if isa == native.kernels()[0]])
def test_a_texts_vector_is_the_same_bit_for_bit_among_others(store: Store, precision: str) -> None:
    """From text to vector: alone on the caller's thread, and in steps with others."""
    engine = store.engine(store.mean_pipeline("bert"), dtype=precision)
    together = engine.embed(MIXED).embeddings
    for text, vector in zip(MIXED, together, strict=True):
        assert np.array_equal(engine.embed(text).embeddings[0], vector)
