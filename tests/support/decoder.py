"""A small causal model with random weights, and pipelines around it with every pooling method. It knows no files."""

from collections.abc import Mapping

import torch
from torch import nn

from forebay.core.tasks import Task
from forebay.layers.linear import Linear
from forebay.layers.native import extension
from forebay.layers.program import Program
from forebay.models.base import Encoder
from forebay.models.registry import build_encoder
from forebay.pooling.activations import Calibration, Choice
from forebay.pooling.heads import ClassifyHead, EmbedHead
from forebay.pooling.methods import METHODS, Method, all_rows, last_by_id, step_rows
from forebay.pooling.pooler import (
    ClassifyPooler,
    EmbedPooler,
    Pooler,
    TokenClassifyPooler,
    TokenEmbedPooler,
)
from forebay.pooling.sparse import SpladePooler

HIDDEN, VOCAB, NUM_LAYERS = 32, 60, 3
PADDING, TAG = 0, 7

CONFIG = {
    "model_type": "qwen3",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
WINDOWED = {"model_type": "mistral", "sliding_window": 21}


def decoder(**changes: object) -> Encoder:
    """A decoder whose attention and feed-forward halves both matter to what comes out."""
    model = build_encoder(CONFIG | changes)
    generator = torch.Generator().manual_seed(17)
    for name, parameter in model.named_parameters():
        scale = 1.0 if name.endswith("words.weight") else 2.5 / HIDDEN**0.5
        parameter.data.copy_(scale * torch.randn(parameter.shape, generator=generator))
    for module in model.modules():
        if type(module).__name__ == "RMSNorm":
            for parameter in module.parameters():
                parameter.data.copy_(1 + 0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def natively(model: Encoder) -> Encoder:
    """The same, run by the native kernels; its weights are packed for them."""
    recorder = model.record(extension.kernels()[0])
    for module in model.modules():
        if isinstance(module, Linear):
            module.pack()
    model.program = Program(recorder)
    return model


def linear(width: int, seed: int) -> nn.Linear:
    """A projection of hidden states."""
    layer = nn.Linear(HIDDEN, width)
    generator = torch.Generator().manual_seed(seed)
    for parameter in layer.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / HIDDEN**0.5)
    return layer.requires_grad_(False)


def _classify() -> ClassifyHead:
    return ClassifyHead(linear(3, 4), Choice(torch.sigmoid, "sigmoid", "test"), Calibration())


def poolers() -> Mapping[str, tuple[Task, Pooler]]:
    """Every method of every kind of pooler, by a name."""
    unit = EmbedHead((), is_normalized=True)
    by_id: Method = last_by_id(PADDING)
    found: dict[str, tuple[Task, Pooler]] = {
        name: (Task.EMBED, EmbedPooler([method], unit)) for name, method in METHODS.items()
    }
    found["LAST by id"] = (Task.EMBED, EmbedPooler([by_id], unit))
    found["LAST+MEAN"] = (Task.EMBED, EmbedPooler([METHODS["LAST"], METHODS["MEAN"]], unit))
    found["stages on tokens"] = (Task.EMBED, EmbedPooler([METHODS["MEAN"]], unit, (linear(HIDDEN, 3),)))
    found["classify"] = (Task.CLASSIFY, ClassifyPooler(by_id, _classify()))
    found["ALL"] = (Task.TOKEN_EMBED, TokenEmbedPooler(all_rows, unit))
    found["ALL but the first"] = (Task.TOKEN_EMBED, TokenEmbedPooler(all_rows, unit, (), skips_first=True))
    found["STEP"] = (Task.TOKEN_CLASSIFY, TokenClassifyPooler(step_rows(TAG), _classify()))
    found["SPLADE max"] = (Task.SPARSE, SpladePooler(linear(VOCAB, 5), VOCAB))
    found["SPLADE sum"] = (Task.SPARSE, SpladePooler(linear(VOCAB, 5), VOCAB, "sum"))
    return found
