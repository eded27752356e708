"""Makers of tiny decoder checkpoints with large random weights, and what transformers makes of their token ids."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import Tokenizer, processors
from torch import nn

from tests.support import tokenizers as lexicon
from tests.support.tiny import randomize

Floats = NDArray[np.float32]

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 256,
}
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
ANSWERS = ("yes", "no", "Yes", "0", "1", "<|im_start|>", "<|im_end|>", "<bos>", "<extra_0>")
CONFIGS: dict[str, Any] = {
    "qwen3": transformers.Qwen3Config,
    "qwen2": transformers.Qwen2Config,
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "gemma": transformers.GemmaConfig,
    "gemma2": transformers.Gemma2Config,
    "gemma3": transformers.Gemma3TextConfig,
    "gpt2": transformers.GPT2Config,
    "gpt_neox": transformers.GPTNeoXConfig,
}


def tokenizer(ends: str = "$A") -> Tokenizer:
    """Byte-level BPE with the markers of chat templates; ``ends`` is the template of a text, such as "$A </s>"."""
    made = lexicon.bytelevel_bpe()
    made.add_special_tokens(list(ANSWERS[5:]))
    made.add_tokens(list(ANSWERS[:5]))
    known = [(name, made.token_to_id(name)) for name in ("<s>", "</s>")]
    made.post_processor = processors.TemplateProcessing(
        single=ends, pair=f"{ends} {ends.replace('$A', '$B')}", special_tokens=known
    )
    return made


def save(
    folder: Path,
    family: str,
    kind: str,
    *,
    ends: str = "$A",
    seed: int = 41,
    tokenizer_config: dict[str, Any] | None = None,
    chat_template: str | None = None,
    **changes: Any,
) -> Path:
    """A checkpoint of transformers' class for this kind ("CausalLM", "SequenceClassification", …)."""
    made = tokenizer(ends)
    own = {"head_dim": 8} if family in ("qwen3", "gemma", "gemma2", "gemma3") else {}
    config = CONFIGS[family](
        vocab_size=made.get_vocab_size(), **{**SIZES, "pad_token_id": 1, "eos_token_id": 2, **own, **changes}
    )
    model = getattr(transformers, f"AutoModelFor{kind}").from_config(config)
    randomize(model, seed)
    center_norms(model)
    model.save_pretrained(folder)
    lexicon.save(
        made, folder, max_length=256, tokenizer_class="TokenizersBackend", specials=SPECIALS, **(tokenizer_config or {})
    )
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template)
    return folder


def center_norms(model: nn.Module) -> None:
    """Gains around one, so that no layer fades."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            for parameter in module.parameters():
                parameter.data.add_(1.0)


def edit(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file; None takes one away."""
    values = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))


@torch.no_grad()
def logits_of(folder: Path, kind: str, ids: Sequence[Sequence[int]]) -> list[Floats]:
    """transformers' logits of each list of token ids alone, in float32."""
    model = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(folder, dtype=torch.float32).eval()
    return [model(input_ids=torch.tensor([list(row)])).logits[0].numpy() for row in ids]


@torch.no_grad()
def states_of(folder: Path, ids: Sequence[Sequence[int]]) -> list[Floats]:
    """transformers' last hidden states of each list of token ids."""
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    return [model(input_ids=torch.tensor([list(row)])).last_hidden_state[0].numpy() for row in ids]


def ids_of(folder: Path, texts: Sequence[str], *, specials: bool = True) -> list[list[int]]:
    """The token ids that the checkpoint's tokenizer.json itself gives, uncut."""
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.no_truncation()
    made.no_padding()
    return [made.encode(text, add_special_tokens=specials).ids for text in texts]
