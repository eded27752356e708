"""Writes the JSON files of small checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OLD = "sentence_transformers.models."
TRANSFORMER = {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 8}


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


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
