"""The libraries under test behind one face: load a folder, embed texts. Both read LENGTH tokens and compute in float32.

It knows how each library is called at its best, and nothing of what is measured.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

LENGTH = 512
"""Tokens a text, special ones included; the model must be able to read as many."""

Vectors = NDArray[np.float32]


class Peer(Protocol):
    """A loaded model. ``batch_size`` is the caller's to choose; None where the library decides for itself."""

    batch_size: int | None

    def embed(self, texts: Sequence[str]) -> Vectors: ...

    def close(self) -> None: ...


class Forebay:
    """``num_tokens`` counts those of the last call."""

    batch_size: int | None = None
    num_tokens = 0

    def __init__(self, folder: str) -> None:
        from forebay import PoolingModel

        self._model = PoolingModel(folder, dtype="float32", device="cpu", max_model_len=LENGTH)

    def embed(self, texts: Sequence[str]) -> Vectors:
        output = self._model.embed(list(texts), show_progress=False)
        self.num_tokens = int(output.num_tokens.sum())
        return output.embeddings

    def close(self) -> None:
        self._model.close()


class SentenceTransformers:
    """It sorts by length itself, and pads each batch to its longest text."""

    batch_size: int | None = 32

    def __init__(self, folder: str) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": torch.float32})
        self._model.max_seq_length = LENGTH

    def embed(self, texts: Sequence[str]) -> Vectors:
        vectors: Vectors = self._model.encode(list(texts), batch_size=self.batch_size, show_progress_bar=False)
        return vectors

    def close(self) -> None:
        pass


FOREBAY, REFERENCE = "Forebay", "sentence-transformers"
PEERS: dict[str, Callable[[str], Peer]] = {FOREBAY: Forebay, REFERENCE: SentenceTransformers}
