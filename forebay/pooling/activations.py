"""How a classifier's logits become scores: which function, chosen from what the checkpoint says, always in float32."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from forebay.core.errors import UnsupportedCheckpoint

Function = Callable[[Tensor], Tensor]


def module_activation(dotted: str) -> Function:
    """Return the function of a ``torch.nn`` class by its dotted name, which the reader has found to lie there."""
    name = dotted.rpartition(".")[2]
    kind = getattr(torch.nn, name, None)
    if not (isinstance(kind, type) and issubclass(kind, torch.nn.Module)):
        raise UnsupportedCheckpoint(f"the activation '{dotted}' is no class of torch.nn")
    try:
        module = kind(dim=-1) if kind in (torch.nn.Softmax, torch.nn.LogSoftmax) else kind()
    except TypeError:  # it is nothing without arguments
        raise UnsupportedCheckpoint(f"the activation '{dotted}' is no function of one tensor") from None
    function: Function = module.eval()
    return function


def identity(logits: Tensor) -> Tensor:
    """Leave logits as they are."""
    return logits


def softmax(logits: Tensor) -> Tensor:
    """Probabilities over the last dimension."""
    return logits.softmax(dim=-1)


@dataclass(frozen=True, slots=True)
class Choice:
    """A classifier's activation: its function, its name for the log and the place that asked for it."""

    function: Function
    name: str
    source: str


_PROBLEM_TYPES: dict[str, tuple[Function, str]] = {
    "regression": (identity, "identity"),
    "single_label_classification": (softmax, "softmax"),
    "multi_label_classification": (torch.sigmoid, "sigmoid"),
}


def choose_activation(problem_type: str | None, dotted: str | None, source: str, num_labels: int) -> Choice:
    """Choose: the function that the author named for sentence-transformers, then problem_type, then sigmoid for one
    label, softmax for more.
    """
    if dotted is not None:
        return Choice(module_activation(dotted), dotted.rpartition(".")[2], source)
    if problem_type is not None:
        function, name = _PROBLEM_TYPES[problem_type]
        return Choice(function, name, "config.json: problem_type")
    if num_labels < 2:
        return Choice(torch.sigmoid, "sigmoid", "default for one label")
    return Choice(softmax, "softmax", "default for several labels")


@dataclass(frozen=True, slots=True)
class Calibration:
    """(logit - mean) / sigma, before the activation."""

    mean: float = 0.0
    sigma: float = 1.0

    def __call__(self, logits: Tensor) -> Tensor:
        """[…, labels] → the same, float32."""
        if self.mean == 0.0 and self.sigma == 1.0:
            return logits.float()
        return (logits.float() - self.mean) / self.sigma
