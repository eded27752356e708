"""The trained heads that stand behind a model: classifiers of sequences and tokens, language models, rows of them.

Architectures differ in what they call a head's tensors and in one activation; each says so in its ``HeadNames``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from forebay.core.errors import UnsupportedCheckpoint
from forebay.layers.activation import IDENTITY, find_activation
from forebay.layers.batch import fill_rows
from forebay.layers.linear import Linear
from forebay.models.base import Encoder, HeadKind, Naming, read


class Head(nn.Module, ABC):
    """Maps rows [n, H] to logits [n, …], each row by itself."""

    @abstractmethod
    def compute(self, rows: Tensor) -> Tensor:
        """The layers, for any number of rows."""

    def forward(self, rows: Tensor) -> Tensor:
        """[n, H] → [n, …]."""
        return self.compute(fill_rows(rows))[: len(rows)]


class SequenceHead(Head):
    """out(activation(dense(x))): logits [n, labels] of pooled rows [n, H]."""

    def __init__(self, hidden_size: int, num_labels: int, activation: str) -> None:
        super().__init__()
        self.dense = Linear(hidden_size, hidden_size, activation=find_activation(activation))
        self.out = Linear(hidden_size, num_labels)

    def compute(self, rows: Tensor) -> Tensor:
        """[n, H] → [n, labels]."""
        logits: Tensor = self.out(self.dense(rows))
        return logits


class RankingHead(SequenceHead):
    """The same with ReLU between, on the last row of a decoder."""

    def __init__(self, hidden_size: int, num_labels: int) -> None:
        super().__init__(hidden_size, num_labels, "relu")


class TokenHead(Head):
    """One linear layer on every token: logits [T, labels]; or on the row that a decoder's classifier reads."""

    def __init__(self, hidden_size: int, num_labels: int, *, has_bias: bool = True) -> None:
        super().__init__()
        self.out = Linear(hidden_size, num_labels, bias=has_bias)

    def compute(self, rows: Tensor) -> Tensor:
        """[T, H] → [T, labels]."""
        logits: Tensor = self.out(rows)
        return logits


class MaskedLMHead(Head):
    """decoder(norm(activation(dense(x)))): logits over the vocabulary; the decoder may be tied to the word table."""

    def __init__(self, encoder: Encoder, activation: str, eps: float) -> None:
        super().__init__()
        size = encoder.embedding_size
        self.dense = Linear(encoder.hidden_size, size, activation=find_activation(activation))
        self.norm = nn.LayerNorm(size, eps=eps)
        self.decoder = Linear(size, encoder.vocab_size, activation=IDENTITY)

    def compute(self, rows: Tensor) -> Tensor:
        """[T, H] → [T, V]. The caller cuts T into slabs: V is large."""
        logits: Tensor = self.decoder(self.norm(self.dense(rows)))
        return logits


class LMRowsHead(Head):
    """Some rows of a language model's head: the logits of as many tokens; ``is_score``: the first less the second."""

    def __init__(self, hidden_size: int, num_rows: int, soft_cap: float | None, *, is_score: bool) -> None:
        super().__init__()
        self.out = Linear(hidden_size, num_rows, bias=False)
        self._soft_cap = soft_cap
        self._is_score = is_score

    def compute(self, rows: Tensor) -> Tensor:
        """[n, H] → [n, tokens], or [n, 1]."""
        logits: Tensor = self.out(rows)
        if self._soft_cap is not None:
            logits = self._soft_cap * (logits / self._soft_cap).tanh()
        return logits[:, :1] - logits[:, 1:] if self._is_score and logits.shape[1] == 2 else logits


def attach_rows(encoder: Encoder, config: Mapping[str, Any], num_rows: int, *, is_score: bool) -> Naming:
    """Give an empty decoder so many rows of its language model's head; return the naming that loads both."""
    names = encoder.heads.get("lm_rows")
    if names is None:
        raise UnsupportedCheckpoint("this architecture has no language model's head that answers could be read from")
    cap = read(config, "final_logit_softcapping", float, 0.0) or None
    encoder.head = LMRowsHead(encoder.hidden_size, num_rows, cap, is_score=is_score)
    return replace(encoder.naming, outside={**encoder.naming.outside, **_in_head(names.modules)})


def attach_head(
    encoder: Encoder, kind: HeadKind, config: Mapping[str, Any], num_labels: int, *, has_bias: bool = True
) -> Naming:
    """Give an empty encoder the head of that kind; return the naming that loads both."""
    names = encoder.heads.get(kind)
    if names is None:
        known = ", ".join(encoder.heads) or "none"
        raise UnsupportedCheckpoint(f"this architecture has no head for '{kind}'; it has: {known}")
    activation = names.activation or read(config, "hidden_act", str, read(config, "activation", str, "gelu"))
    encoder.head = encoder.make_head(kind, num_labels)
    match kind if encoder.head is None else None:
        case "sequence" | "reward":
            encoder.head = SequenceHead(encoder.hidden_size, num_labels, activation)
        case "token" | "score":
            encoder.head = TokenHead(encoder.hidden_size, num_labels, has_bias=has_bias)
        case "masked_lm":
            encoder.head = MaskedLMHead(encoder, activation, read(config, "layer_norm_eps", float, 1e-12))
    outside = {**encoder.naming.outside, **_in_head(names.modules)}
    return replace(encoder.naming, outside=outside, spare=_in_head(names.spare))


def _in_head(modules: Mapping[str, str]) -> dict[str, str]:
    return {theirs: f"head.{own}" for theirs, own in modules.items()}
