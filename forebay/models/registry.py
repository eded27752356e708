"""Which class runs which kind of model: ``model_type`` of config.json → (module, class), imported on first use."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from forebay.core.errors import UnsupportedCheckpoint
from forebay.models.base import Encoder

ENCODERS: dict[str, tuple[str, str]] = {
    "albert": ("forebay.models.albert", "Albert"),
    "bert": ("forebay.models.bert", "Bert"),
    "camembert": ("forebay.models.roberta", "Roberta"),
    "distilbert": ("forebay.models.distilbert", "DistilBert"),
    "electra": ("forebay.models.electra", "Electra"),
    "gemma": ("forebay.models.gemma", "Gemma1"),
    "gemma2": ("forebay.models.gemma2", "Gemma2"),
    "gemma3_text": ("forebay.models.gemma3", "Gemma3"),
    "gpt2": ("forebay.models.gpt2", "GPT2"),
    "gpt_neox": ("forebay.models.gpt_neox", "GPTNeoX"),
    "llama": ("forebay.models.llama", "Llama"),
    "llama_bidirec": ("forebay.models.llama", "LlamaBidirectional"),
    "mistral": ("forebay.models.mistral", "Mistral"),
    "modernbert": ("forebay.models.modernbert", "ModernBert"),
    "mpnet": ("forebay.models.mpnet", "MPNet"),
    "qwen2": ("forebay.models.qwen2", "Qwen2"),
    "qwen2_vl": ("forebay.models.qwen2_vl", "Qwen2VL"),
    "qwen2_vl_text": ("forebay.models.qwen2_vl", "Qwen2VL"),
    "qwen3": ("forebay.models.qwen3", "Qwen3"),
    "roberta": ("forebay.models.roberta", "Roberta"),
    "xlm-roberta": ("forebay.models.roberta", "Roberta"),
}


def is_decoder(config: Mapping[str, Any]) -> bool:
    """Tell whether a config.json describes a decoder that Forebay runs."""
    model_type = str(config.get("model_type"))
    if model_type not in ENCODERS:
        return False
    from forebay.models.decoder import Decoder

    module, name = ENCODERS[model_type]
    return issubclass(getattr(import_module(module), name), Decoder)


def build_encoder(config: Mapping[str, Any]) -> Encoder:
    """Return the (empty) encoder that a config.json describes; an unknown kind is refused by name."""
    model_type = str(config.get("model_type"))
    if model_type not in ENCODERS:
        known = ", ".join(sorted(ENCODERS))
        raise UnsupportedCheckpoint(f"config.json: model_type '{model_type}' is not supported; supported: {known}")
    if config.get("quantization_config"):
        raise UnsupportedCheckpoint(
            "config.json: 'quantization_config' is set, but quantized checkpoints are not supported; use the original"
        )
    module, name = ENCODERS[model_type]
    encoder: Encoder = getattr(import_module(module), name)(config)
    if encoder.max_len is not None and encoder.max_len < 1:
        raise UnsupportedCheckpoint(
            "config.json: 'max_position_embeddings' leaves no position after 'pad_token_id'; the two contradict"
        )
    return encoder
