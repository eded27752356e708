"""What ``benchmarks.cpu`` needs of a model: a folder with all formats, tokens and operations; the machine's peak."""

import json
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from forebay.checkpoint.locate import locate

LENGTH = 512

EXPORT = {
    "onnx": """
import sys
from pathlib import Path
from sentence_transformers import SentenceTransformer
from onnxruntime.quantization import QuantType, quantize_dynamic
folder = Path(sys.argv[1])
model = SentenceTransformer(str(folder), device="cpu", backend="onnx", model_kwargs={"export": True})
model.save_pretrained(sys.argv[2])
made = next(Path(sys.argv[2]).rglob("*.onnx"))
(folder / "onnx").mkdir(exist_ok=True)
(folder / "onnx/model.onnx").write_bytes(made.read_bytes())
quantize_dynamic(made, folder / "onnx/model_int8.onnx", weight_type=QuantType.QInt8, per_channel=True)
""",
    "openvino": """
import sys
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu", backend="openvino", model_kwargs={"export": True})
model.save_pretrained(sys.argv[2])
""",
}
"""What is run in an environment to add its format to a checkpoint's folder."""


@dataclass(frozen=True)
class Prepared:
    """A checkpoint that all libraries can load."""

    folder: Path
    config: Mapping[str, Any]
    tokenizer: Tokenizer

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Tokens that are read of the texts, special ones included."""
        return sum(min(LENGTH, len(encoding.ids)) for encoding in self.tokenizer.encode_batch_fast(list(texts)))


def prepare_model(name: str, pythons: Mapping[str, Path], envs: Path) -> Prepared:
    """Copy the checkpoint (``bert-base``: a random one of that shape) and add the formats of the environments."""
    folder = envs / "models" / name
    if not (folder / "config.json").exists():
        shutil.copytree(locate("default").path, folder, dirs_exist_ok=True)
        if name == "bert-base":
            _make_random(folder)
    for environment, script in EXPORT.items():
        target = envs / "models" / f"{name}-{environment}"
        if environment in pythons and not target.exists():
            subprocess.run([str(pythons[environment]), "-c", script, str(folder), str(target)], check=True)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return Prepared(folder, json.loads((folder / "config.json").read_text()), tokenizer)


def _make_random(folder: Path) -> None:
    from transformers import BertConfig, BertModel

    old = json.loads((folder / "config.json").read_text())
    torch.manual_seed(0)
    model = BertModel(BertConfig(vocab_size=old["vocab_size"]), add_pooling_layer=False)
    model.save_pretrained(folder)
    pooling = folder / "1_Pooling" / "config.json"
    values = json.loads(pooling.read_text()) | {"word_embedding_dimension": model.config.hidden_size}
    pooling.write_text(json.dumps(values))


def matmul_flops_a_token(config: Mapping[str, Any]) -> int:
    """Operations of the linear layers a token: two for each of their weights."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    return int(2 * config["num_hidden_layers"] * (4 * hidden * hidden + 2 * hidden * inner))


def gemm_flops(seconds: float = 2.0) -> dict[str, float]:
    """The best rate of torch's own matrix products of this machine, by precision, in operations a second."""
    peak = {}
    for dtype in (torch.float32, torch.bfloat16):
        a, b = torch.randn(1024, 3072).to(dtype), torch.randn(3072, 3072).to(dtype)
        best, until = float("inf"), time.perf_counter() + seconds
        while time.perf_counter() < until:
            started = time.perf_counter()
            a @ b
            best = min(best, time.perf_counter() - started)
        peak[str(dtype).removeprefix("torch.")] = 2 * 1024 * 3072 * 3072 / best
    return peak
