"""Decoders through each engine, for ``benchmarks.decoders`` and ``benchmarks.llm_reranker``: loaders of a worker.

Each makes the best use of its engine that its users would: transformers gets texts sorted by length in padded batches,
keeps no keys and values, and computes only the logits that are wanted.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Operations = Mapping[str, Callable[..., Any]]
Floats = NDArray[np.float32]

SYSTEM = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
"""What the authors of Qwen3-Reranker put around a pair, for the engine that knows no templates."""


def forebay(folder: str, dtype: str) -> Operations:
    from forebay import PoolingModel

    model = PoolingModel(folder, dtype=dtype, device="cpu")  # type: ignore[arg-type]

    def embed(texts: Sequence[str]) -> Floats:
        return model.embed(texts, show_progress=False).embeddings

    return {"embed": embed, "reserved": lambda: _reserved(model)}


def forebay_reranker(folder: str, dtype: str, *, caches_prefix: bool) -> Operations:
    from forebay import EngineLimits, PoolingModel

    limits = EngineLimits(enable_prefix_caching=caches_prefix)
    model = PoolingModel(folder, dtype=dtype, device="cpu", limits=limits)  # type: ignore[arg-type]

    def score(query: str, documents: Sequence[str], instruction: str) -> Floats:
        return model.score(query, documents, instruction=instruction, use_activation=False, show_progress=False).scores

    return {"score": score, "reserved": lambda: _reserved(model)}


def _reserved(model: Any) -> str:
    """What the engine says of its keys and values."""
    return next((str(made.value) for made in model.info.decisions if made.name == "keys and values"), "nothing")


def _by_length(num: int, lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Places of texts in batches of alike lengths, the longest first."""
    order = sorted(range(num), key=lambda place: -lengths[place])
    return [order[start : start + batch_size] for start in range(0, num, batch_size)]


def transformers(folder: str, dtype: str) -> Operations:
    """AutoModel, right padding, the last token's state, normalised."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="right")
    model = AutoModel.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    @torch.inference_mode()
    def embed(texts: Sequence[str], batch_size: int) -> Floats:
        rows: list[Floats] = [np.empty(0, np.float32)] * len(texts)
        ids = tokenizer(list(texts))["input_ids"]
        for batch in _by_length(len(texts), [len(row) for row in ids], batch_size):
            inputs = tokenizer.pad({"input_ids": [ids[place] for place in batch]}, return_tensors="pt")
            states = model(**inputs, use_cache=False).last_hidden_state
            last = states[torch.arange(len(batch)), inputs["attention_mask"].sum(1) - 1]
            vectors = torch.nn.functional.normalize(last, dim=-1).float().numpy()
            for place, vector in zip(batch, vectors, strict=True):
                rows[place] = vector
        return np.stack(rows)

    return {"embed": embed}


def transformers_reranker(folder: str, dtype: str) -> Operations:
    """The loop of Qwen3-Reranker's authors: left padding, the last position's logits of "yes" and "no"."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    yes, no = (tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no"))

    @torch.inference_mode()
    def score(query: str, documents: Sequence[str], instruction: str, batch_size: int) -> Floats:
        pair = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: "
        ids = tokenizer([f"{SYSTEM}{pair}{document}{SUFFIX}" for document in documents])["input_ids"]
        scores = np.empty(len(documents), np.float32)
        for batch in _by_length(len(documents), [len(row) for row in ids], batch_size):
            inputs = tokenizer.pad({"input_ids": [ids[place] for place in batch]}, return_tensors="pt")
            logits = model(**inputs, use_cache=False, logits_to_keep=1).logits[:, -1].float()
            scores[batch] = (logits[:, yes] - logits[:, no]).numpy()
        return scores

    return {"score": score}


def sentence_transformers(folder: str, dtype: str) -> Operations:
    """It sorts by length itself."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": dtype})

    def embed(texts: Sequence[str], batch_size: int) -> Floats:
        return np.asarray(model.encode(list(texts), batch_size=batch_size, show_progress_bar=False), np.float32)

    return {"embed": embed}
