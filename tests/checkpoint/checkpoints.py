"""Writes the JSON files of small checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from forebay.checkpoint.pipeline import read_pipeline

OLD = "sentence_transformers.models."
TRANSFORMER = {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 8}


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def make_tokenizer() -> Any:
    """Return a tokenizer of eight words for a transformers class."""
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    vocabulary = {word: index for index, word in enumerate([*names.values(), "a", "b", "c"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=16, **names)


def write_checkpoint(root: Path, modules: Sequence[tuple[str, str, Any]], **config: Any) -> Path:
    """Write modules.json and a config for each (folder, class path, config); None leaves the config out."""
    entries = [
        {"idx": index, "name": str(index), "path": path, "type": class_path}
        for index, (path, class_path, _) in enumerate(modules)
    ]
    write_json(root / "modules.json", entries)
    write_json(root / "config.json", TRANSFORMER | config)
    for path, _, content in modules:
        if content is not None:
            write_json(root / path / "config.json", content)
    return root


def read_module(root: Path, class_path: str, config: Any, *, path: str = "1_Module") -> Any:
    """Write a transformer followed by one module, and return that module's stage."""
    write_checkpoint(root, [("", OLD + "Transformer", None), (path, class_path, config)])
    return read_pipeline(root)[1]
