"""Which kernel compares token vectors: a stand-in for the package proves who is called, with what, and when not."""

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from forebay.core.errors import InvalidRequest
from forebay.layers.batch import FlatBatch
from forebay.pooling import fused
from forebay.pooling.fused import PACKAGE, SWITCH, choose_sums
from forebay.pooling.maxsim import max_sim
from forebay.pooling.pooler import NO_MATCH, Pipeline
from forebay.pooling.results import Matrices

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
LENS = np.array([3, 0, 5, 1], np.int64)


class Kernel:
    """What the package's maxsim_varlen does, by its documented arguments; it keeps what it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, query: Tensor, documents: Tensor, *rest: Any) -> Tensor:
        query_ends, ends, most_query, most = rest
        self.calls.append((query.shape, documents.shape, most_query, most))
        assert query_ends.tolist() == [0, len(query)]
        assert ends.dtype == query_ends.dtype == torch.int32
        scores = torch.zeros(1, len(ends) - 1)
        for place, (start, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
            if end > start:  # a document without rows has 0 there
                scores[0, place] = (query @ documents[start:end].T).amax(1).sum()
        return scores


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    module = ModuleType(PACKAGE)
    module.maxsim_varlen = Kernel()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, PACKAGE, module)
    monkeypatch.delenv(SWITCH, raising=False)
    return module.maxsim_varlen  # type: ignore[attr-defined, no-any-return]


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    monkeypatch.delenv(SWITCH, raising=False)


def random(rows: int, size: int, seed: int) -> Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("wish", ["", "auto", "fused", "FUSED"])
@pytest.mark.parametrize("is_mean", [False, True])
def test_the_package_is_used_where_it_is(
    kernel: Kernel, wish: str, is_mean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, wish)
    choice = choose_sums(CUDA)
    assert PACKAGE in choice.name
    assert "half precision" in choice.name
    query, documents = random(4, 16, 1), random(9, 16, 2)
    pipelines = [
        Pipeline(_no_model, {}, is_mean_score=is_mean, sums=sums)  # type: ignore[arg-type]
        for sums in (choice.sums, max_sim)
    ]
    found, expected = (one.score(query, Matrices(documents, LENS)) for one in pipelines)
    assert kernel.calls == [((4, 16), (9, 16), 4, 5)]
    torch.testing.assert_close(found, expected)
    assert found[1] == NO_MATCH / (4 if is_mean else 1)
    assert (found[[0, 2, 3]] > -1e3).all()


def _no_model(batch: FlatBatch, on_layer: Any = None) -> Tensor:
    raise AssertionError("nothing is computed")


@pytest.mark.parametrize("size", [12, 264])
def test_what_does_not_fit_its_tiles_is_computed_plainly(kernel: Kernel, size: int) -> None:
    query, documents = random(4, size, 1), random(9, size, 2)
    found = choose_sums(CUDA).sums(query, documents, LENS)
    torch.testing.assert_close(found, max_sim(query, documents, LENS))
    assert not kernel.calls


def test_nothing_is_nothing_to_it(kernel: Kernel) -> None:
    empty = choose_sums(CUDA).sums(random(4, 16, 1), torch.zeros(0, 16), np.zeros(2, np.int64))
    assert len(empty) == 2
    assert not kernel.calls


def test_it_can_be_switched_off(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "plain")
    assert choose_sums(CUDA) == (max_sim, "plain", f"{SWITCH}=plain")


def test_other_devices_have_the_plain_form(kernel: Kernel) -> None:
    assert choose_sums(CPU) == (max_sim, "plain", "on cpu")


@pytest.mark.usefixtures("no_package")
def test_without_the_package() -> None:
    assert choose_sums(CUDA) == (max_sim, "plain", f"the package {PACKAGE} is not installed")


def test_a_package_that_breaks_at_import_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> ModuleType:
        raise RuntimeError("no driver")

    monkeypatch.setattr(fused, "import_module", fail)
    monkeypatch.delenv(SWITCH, raising=False)
    assert choose_sums(CUDA).why == f"the package {PACKAGE} can't be used (RuntimeError)"


@pytest.mark.usefixtures("no_package")
@pytest.mark.parametrize(
    ("device", "why"), [(CUDA, "is not installed"), (CPU, "on cpu")], ids=["no package", "no device"]
)
def test_what_is_asked_for_and_absent_fails(device: torch.device, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "fused")
    with pytest.raises(InvalidRequest, match=f"{why}.*pip install") as caught:
        choose_sums(device)
    assert caught.value.field == SWITCH


@pytest.mark.usefixtures("no_package")
def test_an_unknown_wish_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "flash")
    with pytest.raises(InvalidRequest, match="expected auto, plain or fused"):
        choose_sums(CUDA)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_real_kernel_is_near_the_plain_form() -> None:
    pytest.importorskip(PACKAGE, reason="the package is not installed")
    query, documents = (torch.nn.functional.normalize(random(rows, 128, rows)).cuda() for rows in (32, 900))
    lens = np.array([300, 0, 599, 1], np.int64)
    found, expected = choose_sums(CUDA).sums(query, documents, lens), max_sim(query, documents, lens)
    torch.testing.assert_close(found[[0, 2, 3]], expected[[0, 2, 3]], atol=2e-2, rtol=1e-3)
