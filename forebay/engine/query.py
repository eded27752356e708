"""The query of a comparison while it stays in the engine: only scores leave.

A Query belongs to the job whose documents are compared with it and goes with it, however the job ends. It knows no
tokens and no requests.
"""

import torch
from torch import Tensor

from forebay.core.request import Matrix


class Query:
    """Token vectors float32 [tokens, d] on the host, brought to the device once."""

    def __init__(self, matrix: Matrix) -> None:
        self.matrix = matrix
        self._on_device: Tensor | None = None

    def on(self, device: torch.device) -> Tensor:
        """The vectors on the device; on the CPU, the host's own."""
        if self._on_device is None:
            self._on_device = torch.from_numpy(self.matrix).to(device)
        return self._on_device
