"""Checkpoints of usual shapes with random weights, for models that are not at hand. Speed does not depend on weights.

The weights are wide enough that scores differ between texts. Tokenizers: the default model's for BERT's shapes; for the
reranker a byte-level BPE that is trained on the benchmark's own texts; for the embedder one token a word.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from benchmarks.texts import sentences
from forebay.checkpoint.locate import locate

MINILM: dict[str, Any] = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "initializer_range": 0.06,
}
QWEN3: dict[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32_768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "tie_word_embeddings": True,
}
"""Qwen3-Embedding-0.6B and Qwen3-Reranker-0.6B; they have 28 layers."""

QWEN3_LAYERS = 28
DIMENSION = 128
END = "<|endoftext|>"
TURNS = ("<|im_start|>", "<|im_end|>")
FRAME_WORDS = "system user assistant think Instruct Query Document Judge whether meets requirements yes no"


def make_cross_encoder(folder: Path) -> Path:
    """BERT of MiniLM-L6's shape with one label."""
    from transformers import BertForSequenceClassification

    return _save_bert(BertForSequenceClassification, folder, num_labels=1)


def make_colbert(folder: Path) -> Path:
    """BERT of MiniLM-L6's shape with a projection, in the layout of Stanford's ColBERT, which all engines read."""
    from safetensors.torch import load_file, save_file
    from transformers import BertModel

    _save_bert(BertModel, folder)
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors["linear.weight"] = torch.randn(DIMENSION, MINILM["hidden_size"], generator=torch.manual_seed(1)) * 0.05
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
    (folder / "config.json").write_text(json.dumps(config))
    metadata = {
        "query_token_id": "[unused0]",
        "doc_token_id": "[unused1]",
        "dim": DIMENSION,
        "similarity": "cosine",
        "attend_to_mask_tokens": False,
        "query_maxlen": 32,
        "doc_maxlen": 180,
        "mask_punctuation": False,
    }
    (folder / "artifact.metadata").write_text(json.dumps(metadata))
    return folder


def _save_bert(kind: Any, folder: Path, **changes: Any) -> Path:
    from transformers import BertConfig

    torch.manual_seed(0)
    kind(BertConfig(**MINILM, **changes)).save_pretrained(folder)
    source = locate("default").path
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(source / name, folder / name)
    return folder


def make_embedder(folder: Path, num_layers: int, dtype: str) -> Path:
    """Qwen3-Embedding's shape with last-token pooling and normalisation, as sentence-transformers saves it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import Qwen3Config, Qwen3Model

    backbone = folder / "backbone"
    torch.manual_seed(0)
    model = Qwen3Model(Qwen3Config(num_hidden_layers=num_layers, **QWEN3))
    model.to(getattr(torch, dtype)).save_pretrained(backbone)
    _save_word_tokenizer(backbone)
    transformer = Transformer(str(backbone), model_kwargs={"dtype": dtype})
    modules = [transformer, Pooling(QWEN3["hidden_size"], pooling_mode="lasttoken"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / "model"), create_model_card=False)
    shutil.rmtree(backbone)
    return folder / "model"


def _save_word_tokenizer(folder: Path) -> None:
    """One token a word, w0 to w999, and an end token after each text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = {END: 0, **{f"w{index}": index + 1 for index in range(1000)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=END))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    _save_tokenizer_config(folder, END)


def make_reranker(folder: Path, num_layers: int, dtype: str) -> Path:
    """Qwen3-Reranker's shape, a language model; the folder's name tells Forebay its family, and so its template."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    folder = folder / "qwen3-reranker-random"
    torch.manual_seed(0)
    config = Qwen3Config(num_hidden_layers=num_layers, **QWEN3)
    Qwen3ForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder)
    _train_tokenizer(folder)
    return folder


def _train_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=16_000,
        special_tokens=[END, *TURNS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*sentences(), *FRAME_WORDS.split() * 50], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    _save_tokenizer_config(folder, TURNS[1])


def _save_tokenizer_config(folder: Path, end: str) -> None:
    names = {"eos_token": end, "pad_token": END, "unk_token": END}
    config = {"tokenizer_class": "TokenizersBackend", "model_max_length": 32_768, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
