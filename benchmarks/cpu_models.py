"""What ``benchmarks.cpu`` needs of a model: a folder with all formats, tokens, operations; the machine's peak."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer

from benchmarks.cpu_libraries import say
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

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens that are read of each text, special ones included."""
        return [min(LENGTH, len(encoding.ids)) for encoding in self.tokenizer.encode_batch_fast(list(texts))]


def prepare_model(name: str, pythons: Mapping[str, Path], envs: Path) -> Prepared:
    """Copy the checkpoint (``bert-base``: a random one of that shape) and add the formats of the environments."""
    folder = envs / "models" / name
    if not (folder / "config.json").exists():
        shutil.copytree(locate("default").path, folder, dirs_exist_ok=True)
        if name == "bert-base":
            _make_random(folder)
    lengths = folder / "sentence_bert_config.json"  # infinity and vLLM read no more of a text than it says
    lengths.write_text(json.dumps(json.loads(lengths.read_text()) | {"max_seq_length": LENGTH}))
    for environment, script in EXPORT.items():
        target = envs / "models" / f"{name}-{environment}"
        if environment in pythons and not target.exists():
            say(f"exporting {name} for {environment}")
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


class Operations(NamedTuple):
    """What a model has to compute for some texts: products with weights, and those of attention."""

    linear: int
    attention: int

    def least_seconds(self, peak: Mapping[str, float], precision: str) -> float:
        """The time at the processor's peak; attention of an int8 model is counted in bfloat16."""
        return self.linear / peak[precision] + self.attention / peak["bfloat16" if precision == "int8" else precision]


def count_operations(config: Mapping[str, Any], lengths: Sequence[int]) -> Operations:
    """Count two for each weight a token, and for each pair of a text's tokens two in scores and two in their sums."""
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    linear = 2 * layers * (4 * hidden * hidden + 2 * hidden * inner) * sum(lengths)
    return Operations(linear, 4 * layers * hidden * sum(length * length for length in lengths))


class Machine(NamedTuple):
    """The greatest rates that the machine showed: of matrix products by precision, in operations a second, with the
    name of whose products they were, and of reading memory, in bytes a second.
    """

    peak: dict[str, tuple[float, str]]
    memory: float

    def or_better(self, other: "Machine") -> "Machine":
        """The greater of each."""
        peak = {precision: max(rate, other.peak[precision]) for precision, rate in self.peak.items()}
        return Machine(peak, max(self.memory, other.memory))


def measure_machine(python: Path) -> Machine:
    """Let a process of its own find them."""
    script = str(Path(__file__).parent / "cpu_peak.py")
    done = subprocess.run([str(python), script], stdout=subprocess.PIPE, text=True, check=True, cwd="/")
    found = json.loads(done.stdout.splitlines()[-1])
    return Machine({precision: (rate, by) for precision, (rate, by) in found["peak"].items()}, found["memory"])
