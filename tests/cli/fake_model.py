"""A PoolingModel without a model: rows made of the texts' hashes. Run as a script, it is `forebay` with that model.

The model's name tells its tasks. A token is a word. Texts that begin with "FAIL" fail alone. FAKE_DELAY is how many
seconds each chunk takes.
"""

import hashlib
import os
import re
import sys
import time
import types
from itertools import islice

import numpy as np

from forebay.core.config import ModelOptions, PoolerConfig
from forebay.core.errors import CheckpointNotFound, InputTooLong, InvalidRequest, ItemFailed
from forebay.core.info import Decision, ModelInfo
from forebay.core.outputs import Ranked, RerankOutput, ScoreOutput, rank
from forebay.core.params import Abilities, PoolingParams, TextParams
from forebay.core.request import Reply, SparseVector
from forebay.core.sides import DOCUMENTS, QUERIES
from forebay.core.tasks import Task
from forebay.text.spans import Spans

DIMENSION = 8
VOCABULARY = 1000
TASKS = {
    "default": (Task.EMBED,),
    "language-model": (Task.EMBED, Task.TOKEN_EMBED, Task.SPARSE),
    "classifier": (Task.CLASSIFY,),
    "tagger": (Task.TOKEN_CLASSIFY,),
    "both": (Task.CLASSIFY, Task.TOKEN_CLASSIFY),
}
LABELS = ("O", "B-river", "I-river", "lake")


def vector(text: str, size: int = DIMENSION) -> np.ndarray:
    digest = hashlib.sha256(text.encode()).digest()
    return (np.frombuffer(digest, dtype=np.uint8)[:size] / 256).astype(np.float32)


def sparse(text: str) -> SparseVector:
    """As many entries as words; the id tells the word's place and length."""
    ids = np.array([10 * place + len(word) for place, word in enumerate(text.split())], np.int32)
    return SparseVector(ids, vector(text)[: len(ids)])


def matrix(text: str, size: int = DIMENSION) -> np.ndarray:
    return np.array([vector(word, size) for word in text.split()], np.float32).reshape(-1, size)


def labels(text: str) -> np.ndarray:
    return vector(text, len(LABELS))


ROWS = {
    Task.EMBED: vector,
    Task.TOKEN_EMBED: matrix,
    Task.SPARSE: lambda text, size: sparse(text),
    Task.CLASSIFY: lambda text, size: labels(text),
    Task.TOKEN_CLASSIFY: lambda text, size: matrix(text, len(LABELS)),
}


class FakeModel:
    def __init__(self, model="default", *, limits=None, **options) -> None:
        if model == "absent":
            raise CheckpointNotFound("no checkpoint 'absent'; expected a folder or a hub id")
        self.options = ModelOptions(model, pooler=options.pop("pooler_config", PoolerConfig()), **options)
        self.engine = self
        tasks = TASKS.get(model, (Task.EMBED,))
        dimension = DIMENSION if Task.EMBED in tasks else 0
        abilities = Abilities(
            tasks=tasks,
            default_task=tasks[0],
            dimension=dimension,
            default_dimension=dimension,
            max_len=256,
            vocab_size=VOCABULARY,
            prompts={"query": "q: "},
            labels=() if dimension else LABELS,
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

    def stream(self, items, *, pooling, text=None, chunk_items=1024):
        source = iter(items)
        read_ahead = []
        num_done = 0
        while True:
            while len(read_ahead) < 3 and (chunk := list(islice(source, chunk_items))):
                read_ahead.append(chunk)
            if not read_ahead:
                return
            time.sleep(float(os.environ.get("FAKE_DELAY", "0")))
            chunk = read_ahead.pop(0)
            try:
                yield self.answer(chunk, pooling, text or TextParams())
            except InputTooLong as error:
                raise error.move(num_done) from None
            num_done += len(chunk)

    def answer(self, items, pooling, text):
        size = pooling.dimensions or pooling.truncate_dim or DIMENSION
        (task,) = pooling.outputs
        lengths = [len(item.split()) for item in items]
        if not text.truncate and max(lengths) > 256:
            index = lengths.index(max(lengths))
            raise InputTooLong(f"input[{index}] has 257 tokens; send a shorter text", index=index)
        failed = {
            i: ItemFailed(f"input[{i}]: the forward failed", index=i)
            for i, item in enumerate(items)
            if item[:4] == "FAIL"
        }
        make = ROWS[task]
        rows = [None if i in failed else make((text.prompt or "") + item, size) for i, item in enumerate(items)]
        tokens = np.array(lengths, dtype=np.int32)
        return Reply({task: rows}, tokens, np.zeros(len(items), dtype=bool), failed)

    def encode(self, text):
        return self.answer([text], PoolingParams((self.info.abilities.default_task,)), TextParams())

    def score(self, queries, documents, *, truncate=True, use_activation=None, **options):
        if len(queries) not in (1, len(documents)):
            raise InvalidRequest(f"{len(queries)} queries for {len(documents)} documents")
        queries = [*queries] * len(documents) if len(queries) == 1 else queries
        cut = [len(document.split()) > 256 for document in documents]
        if not truncate and any(cut):
            place = cut.index(True)
            raise InputTooLong(f"input[{place}] has 257 tokens; send a shorter text", index=place).call(
                DOCUMENTS, place
            )
        if not truncate and len(queries[0].split()) > 256:
            raise InputTooLong("input[0] has 257 tokens; send a shorter text", index=0).call(QUERIES, 0)
        scores = [
            len({*query.split()} & {*document.split()}) for query, document in zip(queries, documents, strict=True)
        ]
        sign = -1 if use_activation is False else 1
        return ScoreOutput(np.array(scores, np.float32) * sign, 0, np.array(cut, np.bool_))

    def rerank(self, query, documents, *, top_n=None, **options):
        output = self.score([query], documents, **options)
        order = rank(output.scores, top_n)
        return RerankOutput([Ranked(index, output[index]) for index in order], 0, output.truncated)

    def spans(self, items, text):
        return [word_spans(item) for item in items]

    def token_of(self, token_id):
        return f"token-{token_id}"

    def plugin(self, data):
        return {"processor": self.options.io_processor, "data": data, "vector": vector("plugin")}


def word_spans(text: str) -> Spans:
    places = [match.span() for match in re.finditer(r"\S+", text)]
    flags = np.zeros(len(places), np.bool_)
    return Spans(np.array(places, np.int64).reshape(-1, 2), flags, flags, flags)


def as_module() -> types.ModuleType:
    module = types.ModuleType("forebay.api.model")
    module.PoolingModel = FakeModel
    return module


if __name__ == "__main__":
    from forebay.cli import arrays, outputs, rows
    from forebay.cli.main import main

    sys.modules["forebay.api.model"] = as_module()
    for encoder in (rows.DenseRows, rows.SparseRows, rows.TokenRows, rows.LabelRows, rows.EntityRows):
        encoder.chunk_items = int(os.environ.get("FAKE_CHUNK", "16"))
    for writer in (arrays.NpyWriter, arrays.NpzWriter, outputs.JsonlWriter, outputs.ParquetWriter):
        writer.sync_seconds = 0.0
    main()
