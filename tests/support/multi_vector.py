"""Makers of tiny late-interaction checkpoints in the three formats, and what sentence-transformers makes of them.

The backbone's vocabulary has the markers of the real ones, which fall into pieces where they are put in as text.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from torch import nn

from tests.support import tiny

DIM = 24
MARKERS = {"9": "[unused0]", "8": "[unused1]"}
TEXTS = (
    "the river flows over stone",
    "Fish, in cold water! (deep)",
    "",
    "a",
    "lake " * 9,
    "mill stream. " * 30,
)


def backbone(folder: Path, make: Any = tiny.bert, **changes: Any) -> Path:
    """A tiny encoder whose vocabulary has markers in the place of two digits."""
    make(folder, **changes)
    path = folder / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    for digit, marker in MARKERS.items():
        text = text.replace(f'"{digit}":', f'"{marker}":')
    path.write_text(text, encoding="utf-8")
    return folder


def stanford(folder: Path, *, metadata: dict[str, Any] | None = None, seed: int = 5) -> Path:
    """Stanford's: the projection among the encoder's tensors, and artifact.metadata (None: no such file)."""
    backbone(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["architectures"] = ["HF_ColBERT"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = load_file(folder / "model.safetensors")
    tensors = {f"bert.{name.removeprefix('bert.')}": tensor for name, tensor in tensors.items()}
    tensors["linear.weight"] = _random(DIM, tiny.HIDDEN, seed)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if metadata is not None:
        (folder / "artifact.metadata").write_text(json.dumps(metadata), encoding="utf-8")
    return folder


def pylate(folder: Path, *, sizes: Sequence[int] = (DIM,), seed: int = 6, **settings: Any) -> Path:
    """PyLate's: modules.json with its own layers (a chain of ``sizes``), everything else in one file."""
    backbone(folder)
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    width = tiny.HIDDEN
    for index, size in enumerate(sizes, 1):
        own = folder / f"{index}_Dense"
        own.mkdir()
        config = {
            "in_features": width,
            "out_features": size,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
        (own / "config.json").write_text(json.dumps(config), encoding="utf-8")
        save_file({"linear.weight": _random(size, width, seed + index)}, own / "model.safetensors")
        modules.append({"idx": index, "name": str(index), "path": own.name, "type": "pylate.models.Dense.Dense"})
        width = size
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 31, "do_lower_case": False}), encoding="utf-8"
    )
    saved = {
        "model_type": "ColBERT",
        "__version__": {"sentence_transformers": "5.3.0"},
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "MaxSim",
        "query_prefix": "[unused0]",
        "document_prefix": "[unused1]",
        "query_length": 12,
        "document_length": 20,
        "attend_to_expansion_tokens": False,
        "skiplist_words": list(".,!?"),
        "do_query_expansion": True,
        **settings,
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(saved), encoding="utf-8")
    return folder


def multi_vector_encoder(
    folder: Path,
    work: Path,
    *,
    mask: MultiVectorMask | None = None,
    prompts: dict[str, str] | None = None,
    **settings: Any,
) -> Path:
    """What sentence-transformers 6 itself saves; ``settings`` are the Transformer's."""
    backbone(work)
    dense = Dense(tiny.HIDDEN, DIM, bias=True, activation_function=nn.Identity(), module_input_name="token_embeddings")
    tiny.randomize(dense, 7)
    modules = [
        Transformer(str(work), **settings),
        dense,
        *([mask] if mask is not None else []),
        Normalize(module_input_name="token_embeddings"),
    ]
    MultiVectorEncoder(modules=modules, prompts=prompts or {}, device="cpu").save(str(folder))
    shutil.rmtree(work)
    return folder


class Reference:
    """sentence-transformers' MultiVectorEncoder on a folder."""

    def __init__(self, folder: Path) -> None:
        self.model = MultiVectorEncoder(str(folder), device="cpu")

    def embed(self, texts: Sequence[str], side: str) -> list[NDArray[np.float32]]:
        """One matrix a text."""
        encode = self.model.encode_query if side == "query" else self.model.encode_document
        return [np.asarray(rows) for rows in encode(list(texts), convert_to_numpy=True)]


def _random(rows: int, columns: int, seed: int) -> torch.Tensor:
    return 0.3 * torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
