"""A PoolingModel without a model: vectors made of the texts' hashes. Run as a script, it is `forebay` with that model.

Texts that begin with "FAIL" fail alone. FAKE_DELAY is how many seconds each chunk takes.
"""

import hashlib
import os
import sys
import time
import types
from itertools import islice

import numpy as np

from forebay.core.errors import CheckpointNotFound, InputTooLong, ItemFailed
from forebay.core.info import Decision, ModelInfo
from forebay.core.outputs import EmbeddingOutput
from forebay.core.params import Abilities, PoolingParams, TextParams
from forebay.core.request import Reply
from forebay.core.tasks import Task

DIMENSION = 8


def vector(text: str, size: int = DIMENSION) -> np.ndarray:
    digest = hashlib.sha256(text.encode()).digest()
    return (np.frombuffer(digest, dtype=np.uint8)[:size] / 256).astype(np.float32)


class FakeModel:
    def __init__(self, model="default", *, revision=None, dtype="auto", device="auto", limits=None) -> None:
        if model == "absent":
            raise CheckpointNotFound("no checkpoint 'absent'; expected a folder or a hub id")
        abilities = Abilities(
            tasks=(Task.EMBED,),
            default_task=Task.EMBED,
            dimension=DIMENSION,
            default_dimension=DIMENSION,
            max_len=256,
            vocab_size=1000,
            prompts={"query": "q: "},
        )
        decision = Decision("pooling", "MEAN [all]", "1_Pooling/config.json")
        self.info = ModelInfo(
            model, f"/models/{model}", "FakeModel", "float32", "cpu", abilities, {"query": "q: "}, None, "cosine", 1234,
            (decision,),
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def stream(self, items, *, pooling, text, chunk_items=1024):
        source = iter(items)
        read_ahead = []
        while True:
            while len(read_ahead) < 3 and (chunk := list(islice(source, chunk_items))):
                read_ahead.append(chunk)
            if not read_ahead:
                return
            time.sleep(float(os.environ.get("FAKE_DELAY", "0")))
            yield self.answer(read_ahead.pop(0), pooling, text)

    def answer(self, items, pooling, text):
        size = pooling.dimensions or DIMENSION
        lengths = [len(item.split()) for item in items]
        if not text.truncate and max(lengths) > 256:
            index = lengths.index(max(lengths))
            raise InputTooLong(f"input[{index}] has 257 tokens; send a shorter text", field=f"input[{index}]")
        failed = {
            i: ItemFailed(f"item {i}: the forward failed", index=i)
            for i, item in enumerate(items)
            if item[:4] == "FAIL"
        }
        rows = [None if i in failed else vector((text.prompt or "") + item, size) for i, item in enumerate(items)]
        tokens = np.array(lengths, dtype=np.int32)
        return Reply({Task.EMBED: rows}, tokens, np.zeros(len(items), dtype=bool), failed)

    def embed(self, texts):
        reply = self.answer([texts] if isinstance(texts, str) else texts, PoolingParams(), TextParams())
        return EmbeddingOutput(reply.num_tokens, reply.truncated, np.stack(reply.rows))


def as_module() -> types.ModuleType:
    module = types.ModuleType("forebay.api.model")
    module.PoolingModel = FakeModel
    return module


if __name__ == "__main__":
    from forebay.cli import bulk, outputs
    from forebay.cli.main import main

    sys.modules["forebay.api.model"] = as_module()
    bulk.CHUNK_ITEMS = int(os.environ.get("FAKE_CHUNK", "16"))
    for writer in (outputs.NpyWriter, outputs.JsonlWriter, outputs.ParquetWriter):
        writer.sync_seconds = 0.0
    main()
