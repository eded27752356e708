"""How a classifier's activation is chosen, and which classes of torch may be one."""

import pytest
import torch

from forebay.core.errors import UnsupportedCheckpoint
from forebay.pooling.activations import Calibration, choose_activation, module_activation

LOGITS = torch.tensor([[-2.0, 0.5, 3.0]])
TANH = "torch.nn.modules.activation.Tanh"


@pytest.mark.parametrize(
    ("problem_type", "dotted", "num_labels", "name", "expected"),
    [
        (None, None, 1, "sigmoid", torch.sigmoid(LOGITS)),
        (None, None, 3, "softmax", LOGITS.softmax(1)),
        (None, TANH, 3, "Tanh", torch.tanh(LOGITS)),
        ("regression", None, 1, "identity", LOGITS),
        ("regression", TANH, 1, "Tanh", torch.tanh(LOGITS)),
        ("single_label_classification", None, 3, "softmax", LOGITS.softmax(1)),
        ("multi_label_classification", None, 3, "sigmoid", torch.sigmoid(LOGITS)),
    ],
)
def test_the_more_precise_word_wins(
    problem_type: str | None, dotted: str | None, num_labels: int, name: str, expected: torch.Tensor
) -> None:
    choice = choose_activation(problem_type, dotted, "file", num_labels)
    assert choice.name == name
    torch.testing.assert_close(choice.function(LOGITS), expected)


@pytest.mark.parametrize("name", ["linear.Identity", "activation.Tanh", "activation.Sigmoid", "activation.GELU"])
def test_functions_of_torch(name: str) -> None:
    expected = getattr(torch.nn, name.partition(".")[2])()(LOGITS)
    torch.testing.assert_close(module_activation(f"torch.nn.modules.{name}")(LOGITS), expected)


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
def test_over_the_labels(name: str) -> None:
    expected = getattr(torch, "softmax" if name == "Softmax" else "log_softmax")(LOGITS[None], dim=-1)
    torch.testing.assert_close(module_activation(f"torch.nn.modules.activation.{name}")(LOGITS[None]), expected)


@pytest.mark.parametrize("name", ["activation.RReLU", "dropout.Dropout"])
def test_what_is_random_in_training_is_not(name: str) -> None:
    function = module_activation(f"torch.nn.modules.{name}")
    assert torch.equal(function(-torch.ones(1000)), function(-torch.ones(1000)))


@pytest.mark.parametrize(
    "dotted",
    [
        "torch.nn.modules.activation.Unheard",
        "torch.nn.modules.activation.MultiheadAttention",  # no function of one tensor
        "torch.nn.modules.linear.Linear",
        "torch.nn.functional",
        "torch.nn.init",
    ],
)
def test_what_is_no_function_is_refused(dotted: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=dotted.rpartition(".")[2]):
        module_activation(dotted)


def test_calibration() -> None:
    torch.testing.assert_close(Calibration(0.5, 2.0)(LOGITS), (LOGITS - 0.5) / 2)
    assert Calibration()(LOGITS.bfloat16()).dtype == torch.float32
    assert torch.equal(Calibration()(LOGITS), LOGITS)
