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
        ("plain", "bfloat16", "torch (the kernels of FOREBAY_NATIVE=plain have no bfloat16)"),
    ],
)
def test_what_is_said(folder: Path, switch: str, dtype: str, said: str) -> None:
    loaded = load(folder, switch, dtype)
    assert path_of(loaded) == said
    assert (encoder_of(loaded).program is not None) == said.startswith("native")


@pytest.mark.skipif(native.extension is None, reason="the native kernels are not built")
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_low_precision_runs_wherever_float32_does(folder: Path, dtype: str) -> None:
    best = native.extension.kernels()[0]
    if best == "plain":
        pytest.skip("this processor lacks AVX2")
    loaded = load(folder, "", dtype)
    form = native.extension.form_of(best, dtype)
    assert path_of(loaded) == f"native {best}, {dtype} by {form} (best of this processor)"
    assert loaded.info.dtype == dtype


@pytest.mark.skipif(native.extension is None, reason="the native kernels are not built")
@pytest.mark.parametrize(
    ("dtype", "form"), [("bfloat16", "bfloat16 by float32 products"), ("int8", "int8 by 16-bit products")]
)
def test_basic_kernels_are_chosen_by_their_name(folder: Path, dtype: str, form: str) -> None:
    names = {name.removesuffix("-basic"): name for name in native.extension.kernels() if name != "plain"}
    if not names:
        pytest.skip("this processor lacks AVX2")
    for name in names.values():  # the basic one, where there are two
        loaded = load(folder, name, dtype)
        assert path_of(loaded) == f"native {name}, {form} (FOREBAY_NATIVE={name})"
        assert encoder_of(loaded).program is not None


def test_without_avx2_int8_is_refused_and_the_rest_left_to_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Extension:
        """That of a processor of long ago."""

        @staticmethod
        def kernels() -> list[str]:
            return ["plain"]

    monkeypatch.setattr(native, "extension", Extension)
    for dtype in ("float32", "bfloat16"):
        assert path_of(load(folder, "", dtype)) == "torch (the processor lacks AVX2 or FMA)"
    with pytest.raises(
        InvalidRequest, match=r"can't run here: the processor lacks AVX2 or FMA; use bfloat16 or float32$"
    ):
        load(folder, "", "int8")


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
