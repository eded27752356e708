"""Every tensor of the files and every parameter of the model is accounted for, or the load fails and names it."""

import pytest
import torch
from torch import Tensor

from forebay.core.errors import WeightsMismatch
from forebay.layers.linear import Linear, can_pack
from forebay.loading.fill import fill
from forebay.models.base import Encoder
from forebay.models.registry import build_encoder
from tests.loading.tiny_bert import CONFIG, HIDDEN, tensors
from tests.support.engine import CPU, flat_batch

QUERY = "encoder.layer.0.attention.self.query.weight"


def empty() -> Encoder:
    with torch.device("meta"):
        return build_encoder(CONFIG)


def load(weights: dict[str, Tensor], dtype: torch.dtype = torch.float32) -> Encoder:
    model = empty()
    fill(model, model.naming, weights.items(), dtype, CPU)
    return model.eval()


def states(model: Encoder) -> Tensor:
    with torch.inference_mode():
        return model(flat_batch([1, 3, 3, 7])).float()


def failure(weights: dict[str, Tensor]) -> str:
    with pytest.raises(WeightsMismatch) as caught:
        load(weights)
    return caught.value.message


def test_the_number_of_parameters() -> None:
    model, weights = empty(), tensors()
    assert fill(model, model.naming, weights.items(), torch.float32, CPU) == sum(map(torch.numel, weights.values()))


def test_no_parameter_is_left_empty() -> None:
    model = load(tensors())
    assert not any(parameter.is_meta for parameter in model.parameters())
    linears = [module for module in model.modules() if isinstance(module, Linear)]
    assert len(linears) == 8
    if can_pack(torch.empty(2, 2)):
        assert all(linear.weight is None for linear in linears)


def test_any_order_and_either_prefix_give_one_model() -> None:
    expected = states(load(tensors()))
    assert torch.equal(states(load(dict(reversed(tensors().items())))), expected)
    assert torch.equal(states(load(tensors(prefix="bert."))), expected)


def test_parts_of_a_merged_layer_are_not_exchanged() -> None:
    expected, weights = states(load(tensors())), tensors()
    key = QUERY.replace("query", "key")
    weights[QUERY], weights[key] = weights[key], weights[QUERY]
    assert (states(load(weights)) - expected).abs().max() > 0.01


def test_the_weights_are_copied() -> None:
    """A streamed tensor may be a view of a mapped file that is gone afterwards."""
    weights = tensors()
    model, expected = load(weights), states(load(tensors()))
    for tensor in weights.values():
        tensor.zero_()
    assert torch.equal(states(model), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_take_the_wanted_dtype(dtype: torch.dtype) -> None:
    model = load(tensors(dtype=torch.float16), dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    torch.testing.assert_close(states(model), states(load(tensors())), rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    "name",
    [
        "embeddings.word_embeddings.weight",
        "embeddings.LayerNorm.bias",
        QUERY,
        "encoder.layer.1.attention.self.value.bias",
        "encoder.layer.1.output.dense.weight",
    ],
)
def test_a_missing_tensor_is_named(name: str) -> None:
    weights = tensors()
    del weights[name]
    message = failure(weights)
    assert "lack" in message
    kind = {"embeddings.word_embeddings.weight": "words", "embeddings.LayerNorm.bias": "norm"}.get(name, "layers.")
    assert kind in message


@pytest.mark.parametrize(
    "name",
    [
        "encoder.layer.2.output.dense.weight",
        "encoder.layer.0.attention.self.rotary.weight",
        "encoder.layer.0.output.dense.scale",
        "encoder.layer.x.output.dense.weight",
        "embeddings.word_embeddings.weight_scale",
        "embeddings.extra.weight",
        "unheard",
    ],
)
def test_a_tensor_that_is_not_known_is_named(name: str) -> None:
    message = failure({**tensors(), name: torch.zeros(2)})
    assert name in message
    assert "does not know" in message


def test_what_is_of_no_use_is_passed_over() -> None:
    unused = {"pooler.dense.weight": torch.zeros(2), "embeddings.position_ids": torch.arange(40)}
    assert torch.equal(states(load({**tensors(), **unused})), states(load(tensors())))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (QUERY, (HIDDEN, HIDDEN + 1)),
        (QUERY, (HIDDEN + 1, HIDDEN)),
        (QUERY, (HIDDEN * HIDDEN,)),
        ("embeddings.word_embeddings.weight", (127, HIDDEN)),
        ("embeddings.LayerNorm.bias", (HIDDEN, 1)),
        ("embeddings.LayerNorm.bias", ()),
    ],
)
def test_a_wrong_shape_is_named_with_both_shapes(name: str, shape: tuple[int, ...]) -> None:
    message = failure({**tensors(), name: torch.zeros(shape)})
    assert name in message
    assert str(list(shape)) in message
    assert str(list(tensors()[name].shape)) in message


def test_many_names_are_counted() -> None:
    message = failure({**tensors(), **{f"unheard.{place}": torch.zeros(1) for place in range(20)}})
    assert "unheard.0" in message
    assert "15 more" in message


def test_large_weights_are_finite_though_their_sum_is_not():
    weights = tensors()
    weights[QUERY] = torch.full_like(weights[QUERY], 3e38)
    load(weights)


def test_infinities_that_cancel_out_are_seen():
    weights = tensors()
    weights[QUERY][0, 0], weights[QUERY][0, 1] = float("inf"), float("-inf")
    with pytest.raises(WeightsMismatch, match="NaN or infinite"):
        load(weights)
