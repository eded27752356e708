"""Which path runs, and that a load says why."""

from pathlib import Path

import numpy as np
import pytest

from forebay.core.errors import InvalidRequest
from forebay.layers import native
from tests.native.models import encoder_of, load, make_batch, path_of, random_texts, run
from tests.support.store import Store


@pytest.fixture
def folder(store: Store) -> Path:
    return store.mean_pipeline("bert")


@pytest.mark.skipif(native.extension is None, reason="the native kernels are not built")
def test_the_best_kernels_are_chosen_by_default(folder: Path) -> None:
    best = native.extension.kernels()[0]
    if best == "plain":
        pytest.skip("this processor lacks AVX2")
    loaded = load(folder, "")
    assert path_of(loaded) == f"native {best} (best of this processor)"
    assert encoder_of(loaded).program is not None


@pytest.mark.skipif(native.extension is None, reason="the native kernels are not built")
@pytest.mark.parametrize(
    ("switch", "dtype", "said"),
    [
        ("0", "float32", "torch (FOREBAY_NATIVE=0)"),
        ("plain", "float32", "native plain (FOREBAY_NATIVE=plain)"),
        ("mmx", "float32", "torch (no kernels for FOREBAY_NATIVE=mmx)"),
        ("avx2", "bfloat16", "torch (the kernels of FOREBAY_NATIVE=avx2 have no bfloat16)"),
    ],
)
def test_what_is_said(folder: Path, switch: str, dtype: str, said: str) -> None:
    loaded = load(folder, switch, dtype)
    assert path_of(loaded) == said
    assert (encoder_of(loaded).program is not None) == said.startswith("native")


@pytest.mark.skipif(native.extension is None, reason="the native kernels are not built")
@pytest.mark.parametrize(("dtype", "needed"), [("bfloat16", "AVX-512 BF16"), ("int8", "AVX-512 VNNI")])
def test_low_precision_runs_where_the_processor_has_it(folder: Path, dtype: str, needed: str) -> None:
    best = native.extension.kernels()[0]
    if native.extension.has_precision(best, dtype):
        loaded = load(folder, "", dtype)
        assert path_of(loaded) == f"native {best} (best of this processor)"
        assert loaded.info.dtype == dtype
    elif dtype == "bfloat16":
        assert path_of(load(folder, "", dtype)) == f"torch (the processor lacks {needed})"
    else:
        with pytest.raises(InvalidRequest, match=f"can't run here: the processor lacks {needed}; use bfloat16"):
            load(folder, "", dtype)


def test_int8_without_native_kernels_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="can't run here: FOREBAY_NATIVE=0; use bfloat16 or float32"):
        load(folder, "0", "int8")


@pytest.mark.skipif(native.extension is None, reason="the native kernels are not built")
def test_an_activation_without_native_form_leaves_the_model_to_torch(store: Store) -> None:
    loaded = load(store.mean_pipeline("bert", hidden_act="quick_gelu"), "1")
    assert path_of(loaded).startswith("torch (an activation function without a native form")


def test_without_the_extension_torch_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_it = encoder_of(load(folder, ""))
    monkeypatch.setattr(native, "extension", None)
    without = load(folder, "")
    assert path_of(without) == "torch (the package was installed without its native kernels)"
    batch = make_batch(random_texts((3, 9, 20), with_it.vocab_size))
    assert np.abs(run(encoder_of(without), batch) - run(with_it, batch)).max() <= 1e-5
