"""Runtimes called as directly as they allow: own tokens, batches sorted by length, mean pooling in NumPy.

What a user would get from them at best, without a library around them. Each loader returns a function of texts and a
batch size; it runs in the runtime's own environment, where nothing of Forebay is.
"""

from pathlib import Path

import numpy as np

LENGTH = 512


def in_order(embed):
    """Sort the texts by length for a library that does not, and put the vectors back into order."""

    def embed_sorted(texts, batch):
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        vectors = embed([texts[place] for place in order], batch)
        out = np.empty_like(vectors)
        out[order] = vectors
        return out

    return embed_sorted


def read_tokenizer(folder):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokenizer.no_padding()
    tokenizer.enable_truncation(LENGTH)
    return tokenizer


def make_batches(tokenizer, texts, size):
    """Places, padded ids and mask of each batch, the texts sorted by their tokens."""
    ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]
    order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
    for start in range(0, len(order), size):
        places = order[start : start + size]
        padded = np.zeros((len(places), len(ids[places[-1]])), np.int64)
        mask = np.zeros_like(padded)
        for row, place in enumerate(places):
            padded[row, : len(ids[place])] = ids[place]
            mask[row, : len(ids[place])] = 1
        yield places, padded, mask


def pool(states, mask):
    sums = np.matmul(mask[:, None].astype(np.float32), states)[:, 0]
    return sums / np.linalg.norm(sums, axis=1, keepdims=True)


def feeds(names, ids, mask):
    every = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    return {name: every[name] for name in names}


def onnxruntime(folder, precision):
    import onnxruntime

    tokenizer = read_tokenizer(folder)
    file = f"{folder}/onnx/{'model_int8' if precision == 'int8' else 'model'}.onnx"
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names, output = [given.name for given in session.get_inputs()], session.get_outputs()[0].name

    def embed(texts, batch):
        vectors = [None] * len(texts)
        for places, ids, mask in make_batches(tokenizer, texts, batch):
            made = pool(session.run([output], feeds(names, ids, mask))[0], mask)
            for place, vector in zip(places, made, strict=True):
                vectors[place] = vector
        return np.stack(vectors)

    return embed


def openvino(folder, precision):
    """Many texts go through as many streams as there are processors, the faster way; one text takes all of them."""
    import os

    from openvino import AsyncInferQueue, Core

    tokenizer, core = read_tokenizer(folder), Core()
    file = f"{folder}-openvino/openvino/openvino_model.xml"
    config = {"INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[precision]}
    processors = len(os.sched_getaffinity(0))
    threads = {"INFERENCE_NUM_THREADS": str(processors)}
    many = core.compile_model(file, "CPU", config | threads | {"NUM_STREAMS": str(processors)})
    names, queue, single = [given.get_any_name() for given in many.inputs], AsyncInferQueue(many), []

    def embed(texts, batch):
        if len(texts) == 1:
            return embed_one(texts)
        vectors = [None] * len(texts)

        def take(request, about):
            places, mask = about
            for place, vector in zip(places, pool(request.get_output_tensor(0).data, mask), strict=True):
                vectors[place] = vector

        queue.set_callback(take)
        for places, ids, mask in make_batches(tokenizer, texts, batch):
            queue.start_async(feeds(names, ids, mask), (places, mask))
        queue.wait_all()
        return np.stack(vectors)

    def embed_one(texts):
        if not single:  # made at its first use: the throughput's memory shall not hold both
            model = core.compile_model(file, "CPU", config | {"PERFORMANCE_HINT": "LATENCY"})
            single.append(model.create_infer_request())
        ((_, ids, mask),) = make_batches(tokenizer, texts, 1)
        single[0].infer(feeds(names, ids, mask), share_inputs=True)
        return pool(single[0].get_output_tensor(0).data, mask)

    return embed


def ctranslate2(folder, precision):
    """It drops the padding itself."""
    import ctranslate2
    import torch
    from ctranslate2.converters import TransformersConverter

    tokenizer, made = read_tokenizer(folder), f"{folder}-ctranslate2"
    if not Path(made, "model.bin").exists():
        TransformersConverter(folder).convert(made, force=True)
    kind = {"float32": "float32", "int8": "int8_float32"}[precision]
    encoder = ctranslate2.Encoder(made, device="cpu", compute_type=kind, intra_threads=torch.get_num_threads())

    def embed(texts, batch):
        vectors = [None] * len(texts)
        for places, ids, mask in make_batches(tokenizer, texts, batch):
            rows = [row[:length].tolist() for row, length in zip(ids, mask.sum(1), strict=True)]
            states = np.array(encoder.forward_batch(rows).last_hidden_state)
            for place, vector in zip(places, pool(states, mask), strict=True):
                vectors[place] = vector
        return np.stack(vectors)

    return embed
