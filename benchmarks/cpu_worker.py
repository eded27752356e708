"""One library in one process of its own environment: it needs nothing of Forebay, and answers orders over pipes.

``python cpu_worker.py LOADER FOLDER`` reads a JSON object a line, ``{"texts": [...], "batch": 32, "save": path}``, and
prints a line for each: the seconds that embedding the texts took. With ``save`` the vectors go to that .npy file.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

LENGTH = 512


def forebay(folder, dtype):
    from forebay import PoolingModel

    model = PoolingModel(folder, dtype=dtype, device="cpu", max_model_len=LENGTH)
    return lambda texts, batch: model.embed(texts, show_progress=False).embeddings


def sentence_transformers(folder, backend, file, dtype):
    """The torch, ONNX and OpenVINO backends. It sorts by length and pads each batch to its longest text."""
    import torch
    from sentence_transformers import SentenceTransformer

    kwargs = {"dtype": getattr(torch, dtype)} if backend == "torch" else {"file_name": file}
    if backend == "openvino":
        folder = f"{folder}-openvino"
        kwargs["ov_config"] = {"INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[dtype]}
    model = SentenceTransformer(folder, device="cpu", backend=backend, model_kwargs=kwargs)
    model.max_seq_length = LENGTH
    return lambda texts, batch: model.encode(texts, batch_size=batch, show_progress_bar=False)


def fastembed(folder, file):
    """It neither sorts nor cuts by itself; the texts are sorted for it."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        model="local",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(url="file:///none"),
        dim=json.loads(Path(folder, "config.json").read_text())["hidden_size"],
        model_file=file,
    )
    model = TextEmbedding("local", specific_model_path=folder)

    def embed(texts, batch):
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        vectors = np.stack(list(model.embed([texts[place] for place in order], batch_size=batch)))
        out = np.empty_like(vectors)
        out[order] = vectors
        return out

    return embed


LOADERS = {
    "forebay float32": lambda folder: forebay(folder, "float32"),
    "forebay bfloat16": lambda folder: forebay(folder, "bfloat16"),
    "forebay int8": lambda folder: forebay(folder, "int8"),
    "torch float32": lambda folder: sentence_transformers(folder, "torch", "", "float32"),
    "torch bfloat16": lambda folder: sentence_transformers(folder, "torch", "", "bfloat16"),
    "onnx float32": lambda folder: sentence_transformers(folder, "onnx", "onnx/model.onnx", "float32"),
    "onnx int8": lambda folder: sentence_transformers(folder, "onnx", "onnx/model_int8.onnx", "float32"),
    "openvino float32": lambda folder: sentence_transformers(
        folder, "openvino", "openvino/openvino_model.xml", "float32"
    ),
    "openvino bfloat16": lambda folder: sentence_transformers(
        folder, "openvino", "openvino/openvino_model.xml", "bfloat16"
    ),
    "fastembed float32": lambda folder: fastembed(folder, "onnx/model.onnx"),
}


def peak_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def main(loader, folder):
    embed = LOADERS[loader](folder)
    embed(["first"], 1)
    print(json.dumps({"ready": True}), flush=True)
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
