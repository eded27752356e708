"""Makers of tiny checkpoints on disk: the transformers classes with LARGE random weights and a small tokenizer.

Trained initialisers (0.02) make wrong positions, token types or poolings almost invisible. Here every embedding row,
gain and bias is far from its neighbour, so that a wrong variant differs by much more than a test's tolerance.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import nn
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLTextModel

from tests.support import tokenizers as lexicon

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

HIDDEN = 32
MAX_LEN = 64
"""How many tokens a tiny model reads, special ones included."""

_SIZES = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": MAX_LEN,
    "hidden_dropout_prob": 0.1,
}
_BERT_NAMES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_BERT_SPECIALS = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), _BERT_NAMES, strict=True))
_XLM_SPECIALS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}


def randomize(module: nn.Module, seed: int) -> None:
    """Give every parameter large random values, in place: hidden states stay of order one, mutants do not."""
    generator = torch.Generator().manual_seed(seed)
    kinds = {f"{name}.weight": type(child).__name__ for name, child in module.named_modules()}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            kind = kinds.get(name, "")
            if "LayerNorm" in kind or ("RMSNorm" in kind and not kind.startswith("Gemma")):
                parameter.copy_(1.0 + 0.3 * noise)
            elif "embeddings" in name or "relative_attention_bias" in name:
                parameter.copy_(0.8 * noise)
            else:
                parameter.copy_(0.3 * noise)


def bert(folder: Path, *, seed: int = 1, uncased: bool = True, **changes: Any) -> Path:
    """BERT; its epsilon is far from every default, so that a model that ignores the config is caught."""
    tokenizer = lexicon.wordpiece(_BERT_NAMES, lowercase=uncased)
    config = transformers.BertConfig(
        vocab_size=tokenizer.get_vocab_size(), **{**_SIZES, "type_vocab_size": 2, "layer_norm_eps": 1e-2, **changes}
    )
    _save_model(transformers.BertModel(config, add_pooling_layer=True), folder, seed)
    lexicon.save(
        tokenizer,
        folder,
        max_length=config.max_position_embeddings,
        tokenizer_class="BertTokenizer",
        specials=_BERT_SPECIALS,
        do_lower_case=uncased,
    )
    return folder


def distilbert(folder: Path, *, seed: int = 2, **changes: Any) -> Path:
    """DistilBERT, three layers."""
    tokenizer = lexicon.wordpiece(_BERT_NAMES)
    sizes = {"dim": HIDDEN, "n_layers": 3, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": MAX_LEN}
    config = transformers.DistilBertConfig(vocab_size=tokenizer.get_vocab_size(), **{**sizes, **changes})
    _save_model(transformers.DistilBertModel(config), folder, seed)
    lexicon.save(tokenizer, folder, max_length=MAX_LEN, tokenizer_class="DistilBertTokenizer", specials=_BERT_SPECIALS)
    return folder


def mpnet(folder: Path, *, seed: int = 3, **changes: Any) -> Path:
    """MPNet: pad id 1, positions from 2, a relative attention bias shared by the layers."""
    tokenizer = lexicon.wordpiece(("<pad>", "[UNK]", "<s>", "</s>", "<mask>"))
    sizes = {**_SIZES, "max_position_embeddings": MAX_LEN + 2, "layer_norm_eps": 1e-2}
    config = transformers.MPNetConfig(vocab_size=tokenizer.get_vocab_size(), **{**sizes, **changes})
    _save_model(transformers.MPNetModel(config), folder, seed)
    specials = {**_XLM_SPECIALS, "unk_token": "[UNK]"}
    lexicon.save(tokenizer, folder, max_length=MAX_LEN, tokenizer_class="MPNetTokenizer", specials=specials)
    return folder


def roberta(folder: Path, *, seed: int = 4, **changes: Any) -> Path:
    """RoBERTa with byte-level BPE: positions from pad id + 1, one token type."""
    tokenizer = lexicon.bytelevel_bpe()
    return _save_roberta(transformers.RobertaConfig, transformers.RobertaModel, tokenizer, folder, seed, changes)


def xlm_roberta(folder: Path, *, seed: int = 5, **changes: Any) -> Path:
    """XLM-RoBERTa with unigrams."""
    tokenizer = lexicon.unigram(("<s>", "<pad>", "</s>", "<unk>"))
    return _save_roberta(transformers.XLMRobertaConfig, transformers.XLMRobertaModel, tokenizer, folder, seed, changes)


def camembert(folder: Path, *, seed: int = 6, **changes: Any) -> Path:
    """CamemBERT: RoBERTa's body; its start and end tokens have the ids 5 and 6."""
    first = ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>")
    changes = {"bos_token_id": 5, "eos_token_id": 6, **changes}
    tokenizer = lexicon.unigram(first)
    return _save_roberta(transformers.CamembertConfig, transformers.CamembertModel, tokenizer, folder, seed, changes)


def electra(folder: Path, *, seed: int = 9, tokenizer_class: str = "ElectraTokenizer", **changes: Any) -> Path:
    """ELECTRA; its word table is narrower than its layers, as in the small models."""
    tokenizer = lexicon.wordpiece(_BERT_NAMES)
    sizes = {**_SIZES, "embedding_size": 20, "type_vocab_size": 2, "layer_norm_eps": 1e-2}
    config = transformers.ElectraConfig(vocab_size=tokenizer.get_vocab_size(), **{**sizes, **changes})
    _save_model(transformers.ElectraModel(config), folder, seed)
    lexicon.save(tokenizer, folder, max_length=MAX_LEN, tokenizer_class=tokenizer_class, specials=_BERT_SPECIALS)
    return folder


def albert(folder: Path, *, seed: int = 10, **changes: Any) -> Path:
    """ALBERT: three passes through one set of weights, unless ``changes`` ask for more groups."""
    tokenizer = lexicon.albert()
    sizes = {**_SIZES, "embedding_size": 20, "num_hidden_layers": 3, "type_vocab_size": 2, "layer_norm_eps": 1e-2}
    config = transformers.AlbertConfig(vocab_size=tokenizer.get_vocab_size(), **{**sizes, **changes})
    _save_model(transformers.AlbertModel(config), folder, seed)
    specials = {**_XLM_SPECIALS, **dict.fromkeys(("bos_token", "cls_token"), "[CLS]")}
    specials |= dict.fromkeys(("eos_token", "sep_token"), "[SEP]")
    lexicon.save(tokenizer, folder, max_length=MAX_LEN, tokenizer_class="AlbertTokenizer", specials=specials)
    return folder


def decoder(family: str, folder: Path, *, seed: int = 11, **changes: Any) -> Path:
    """A language model without its head; texts end with a token that its tokenizer's template appends."""
    tokenizer = lexicon.decoder_bpe()
    config_class, model_class, sizes = DECODERS[family]
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    config = config_class(vocab_size=tokenizer.get_vocab_size(), **{**sizes, **ids, **changes})
    _save_model(model_class(config), folder, seed)
    lexicon.save(tokenizer, folder, max_length=MAX_LEN, tokenizer_class="TokenizersBackend", specials=_XLM_SPECIALS)
    return folder


_LLAMA_SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-2,
}
_GEMMA_SIZES = {**_LLAMA_SIZES, "head_dim": 12, "query_pre_attn_scalar": 20, "sliding_window": 9}
_NEOX_SIZES = {
    name: value for name, value in _LLAMA_SIZES.items() if name not in ("num_key_value_heads", "rms_norm_eps")
}

DECODERS: dict[str, tuple[type, type, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, transformers.LlamaModel, _LLAMA_SIZES),
    "mistral": (transformers.MistralConfig, transformers.MistralModel, {**_LLAMA_SIZES, "sliding_window": 9}),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2Model, _LLAMA_SIZES),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3Model, {**_LLAMA_SIZES, "head_dim": 16}),
    "qwen2_vl": (
        transformers.Qwen2VLTextConfig,
        Qwen2VLTextModel,
        {
            **_LLAMA_SIZES,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 2]},
        },
    ),
    "gemma": (transformers.GemmaConfig, transformers.GemmaModel, {**_LLAMA_SIZES, "head_dim": 12}),
    "gemma2": (transformers.Gemma2Config, transformers.Gemma2Model, {**_GEMMA_SIZES, "attn_logit_softcapping": 2.0}),
    "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3TextModel, {**_GEMMA_SIZES, "num_hidden_layers": 7}),
    "gpt2": (
        transformers.GPT2Config,
        transformers.GPT2Model,
        {"n_embd": HIDDEN, "n_layer": 3, "n_head": 4, "n_positions": 128, "layer_norm_epsilon": 1e-2},
    ),
    "gpt_neox": (
        transformers.GPTNeoXConfig,
        transformers.GPTNeoXModel,
        {**_NEOX_SIZES, "num_attention_heads": 2, "layer_norm_eps": 1e-2},
    ),
}
"""Config, model and sizes of each decoder; epsilons and windows are far from every default."""


def modernbert(folder: Path, *, seed: int = 11, **changes: Any) -> Path:
    """ModernBERT: four layers, a window of three tokens to either side in two of them, two bases of positions."""
    tokenizer = lexicon.wordpiece(_BERT_NAMES)
    config = transformers.ModernBertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        **{
            **{name: value for name, value in _SIZES.items() if name != "hidden_dropout_prob"},
            "num_hidden_layers": 4,
            "local_attention": 6,
            "norm_eps": 1e-2,
            **dict.fromkeys(("bos_token_id", "cls_token_id"), 2),
            **dict.fromkeys(("eos_token_id", "sep_token_id"), 3),
            "pad_token_id": 0,
            **changes,
        },
    )
    _save_model(transformers.ModernBertModel(config), folder, seed)
    lexicon.save(
        tokenizer,
        folder,
        max_length=MAX_LEN,
        tokenizer_class="TokenizersBackend",
        specials=_BERT_SPECIALS,
        model_input_names=["input_ids", "attention_mask"],
    )
    return folder


def static(folder: Path, *, seed: int = 7) -> Path:
    """Static embeddings as sentence-transformers saves them: one row a token, no modules.json of its own."""
    tokenizer = lexicon.wordpiece(_BERT_NAMES)
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(tokenizer.get_vocab_size(), HIDDEN, generator=generator)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"embedding.weight": weight}, folder / "model.safetensors")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def model2vec(folder: Path, *, seed: int = 8) -> Path:
    """Static embeddings as model2vec saves them: fewer rows than tokens, a mapping and a weight per token."""
    tokenizer = lexicon.wordpiece(_BERT_NAMES)
    generator = torch.Generator().manual_seed(seed)
    size = tokenizer.get_vocab_size()
    tensors = {
        "embeddings": torch.randn(size // 3, HIDDEN, generator=generator),
        "mapping": torch.randint(0, size // 3, (size,), generator=generator),
        "weights": 0.2 + 2 * torch.rand(size, generator=generator, dtype=torch.float64),
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def _save_roberta(
    config_class: type, model_class: type, tokenizer: Any, folder: Path, seed: int, changes: Mapping[str, Any]
) -> Path:
    sizes = {**_SIZES, "max_position_embeddings": MAX_LEN + 2, "type_vocab_size": 1, "layer_norm_eps": 1e-2}
    config = config_class(vocab_size=tokenizer.get_vocab_size(), **{**sizes, "pad_token_id": 1, **changes})
    _save_model(model_class(config, add_pooling_layer=False), folder, seed)
    name = config_class.__name__.replace("Config", "Tokenizer")
    lexicon.save(tokenizer, folder, max_length=MAX_LEN, tokenizer_class=name, specials=_XLM_SPECIALS)
    return folder


def _save_model(model: Any, folder: Path, seed: int) -> None:
    randomize(model, seed)
    model.save_pretrained(folder)


TRANSFORMERS: dict[str, Callable[..., Path]] = {
    "bert": bert,
    "distilbert": distilbert,
    "mpnet": mpnet,
    "roberta": roberta,
    "xlm-roberta": xlm_roberta,
    "camembert": camembert,
    "electra": electra,
    "albert": albert,
    "modernbert": modernbert,
}
"""Maker of each architecture's plain transformers checkpoint, by the name of its family."""
