"""Tokens a second of a decoder embedder: Forebay and sentence-transformers on one random checkpoint, at equal dtype.

The checkpoint has the shape of Qwen3-Embedding-0.6B and random weights; it is built at the first run. Speed does not
depend on what the weights are. Usage: ``python -m benchmarks.decoders [--layers N] [--texts N] [--dtype float32]``.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from forebay import PoolingModel

VOCABULARY = 151_936
SHAPE = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32_768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "tie_word_embeddings": True,
}
LAYERS = 28
LENGTHS = (16, 64, 128, 256, 512)


def build(folder: Path, num_layers: int, dtype: str) -> Path:
    """Save a checkpoint with last-token pooling and normalisation, as sentence-transformers does."""
    config = transformers.Qwen3Config(vocab_size=VOCABULARY, num_hidden_layers=num_layers, **SHAPE)
    torch.manual_seed(0)
    transformers.Qwen3Model(config).to(getattr(torch, dtype)).save_pretrained(folder / "backbone")
    _save_tokenizer(folder / "backbone")
    backbone = Transformer(str(folder / "backbone"), model_kwargs={"dtype": dtype})
    modules = [backbone, Pooling(config.hidden_size, pooling_mode="lasttoken"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / "model"), create_model_card=False)
    return folder / "model"


def _save_tokenizer(folder: Path) -> None:
    """One token a word, and an end token."""
    words = {"<|endoftext|>": 0, **{f"w{index}": index + 1 for index in range(1000)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<|endoftext|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = dict.fromkeys(("eos_token", "pad_token", "unk_token"), "<|endoftext|>")
    config = {"tokenizer_class": "TokenizersBackend", "model_max_length": 32_768, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def make_texts(count: int) -> list[str]:
    """Texts of mixed lengths, the same in every run."""
    source = random.Random(1)
    lengths = [LENGTHS[index % len(LENGTHS)] for index in range(count)]
    return [" ".join(f"w{source.randrange(1000)}" for _ in range(length - 1)) for length in lengths]


def measure(embed: Callable[[Sequence[str]], object], texts: Sequence[str], repeats: int) -> float:
    """Tokens a second, the best of ``repeats`` after one call to warm up."""
    num_tokens = sum(text.count(" ") + 2 for text in texts)
    embed(texts[: len(LENGTHS)])
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        embed(texts)
        times.append(time.perf_counter() - start)
    return num_tokens / min(times)


def main() -> None:
    """Print one line a library and the largest difference of their vectors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--texts", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    options = parser.parse_args()
    texts = make_texts(options.texts)
    with tempfile.TemporaryDirectory() as place:
        folder = build(Path(place), options.layers, options.dtype)
        theirs = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": options.dtype})
        with PoolingModel(str(folder), dtype=options.dtype) as ours:
            for name, embed in (("forebay", ours.embed), ("sentence-transformers", theirs.encode)):
                print(f"{name}: {measure(embed, texts, options.repeats):.0f} tokens/s", flush=True)
            vectors = np.asarray(ours.embed(texts).embeddings, dtype=np.float32)
            print(f"largest difference: {np.abs(vectors - theirs.encode(texts)).max():.1e}")


if __name__ == "__main__":
    main()
