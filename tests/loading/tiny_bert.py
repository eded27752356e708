"""A BERT of a few numbers, as config.json and tensors by their checkpoint names, and as a folder. No transformers."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.support.text import KINDS

HIDDEN, INNER, POSITIONS = 8, 12, 40
CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": POSITIONS,
    "type_vocab_size": 2,
    "vocab_size": 128,
    "hidden_act": "gelu",
}
_EMBEDDINGS = {"word_embeddings": 128, "position_embeddings": POSITIONS, "token_type_embeddings": 2}
_LINEAR = {
    "attention.self.query": (HIDDEN, HIDDEN),
    "attention.self.key": (HIDDEN, HIDDEN),
    "attention.self.value": (HIDDEN, HIDDEN),
    "attention.output.dense": (HIDDEN, HIDDEN),
    "intermediate.dense": (INNER, HIDDEN),
    "output.dense": (HIDDEN, INNER),
}


def tensors(prefix: str = "", dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """All that the encoder needs, random and the same every time."""
    generator = torch.Generator().manual_seed(11)

    def random(*shape: int) -> Tensor:
        return (torch.randn(*shape, generator=generator) / 2).to(dtype)

    found = {f"embeddings.{name}.weight": random(rows, HIDDEN) for name, rows in _EMBEDDINGS.items()}
    norms = ["embeddings.LayerNorm"]
    for layer in ("encoder.layer.0", "encoder.layer.1"):
        for name, shape in _LINEAR.items():
            found[f"{layer}.{name}.weight"] = random(*shape)
            found[f"{layer}.{name}.bias"] = random(shape[0])
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    for norm in norms:
        found[f"{norm}.weight"], found[f"{norm}.bias"] = 1 + random(HIDDEN), random(HIDDEN)
    return {prefix + name: tensor for name, tensor in found.items()}


def write(
    folder: Path,
    *,
    max_seq_length: int | None = None,
    model_max_length: float | None = None,
    sentence: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """The folder of a checkpoint that is pooled by its mean; ``sentence`` is config_sentence_transformers.json."""
    save_file(tensors(), folder / "model.safetensors")
    KINDS["bert"]().save(str(folder / "tokenizer.json"))
    files: dict[str, Any] = {
        "config.json": {**CONFIG, **config},
        "tokenizer_config.json": {"model_max_length": model_max_length} if model_max_length is not None else {},
    }
    if max_seq_length is not None:
        files["sentence_bert_config.json"] = {"max_seq_length": max_seq_length, "do_lower_case": False}
    if sentence is not None:
        files["config_sentence_transformers.json"] = sentence
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values))
    return folder
