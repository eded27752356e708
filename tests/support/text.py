"""One small tokenizer of each kind, and what the ``tokenizers`` library itself makes of a text."""

from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer

from forebay.text.tokenizer import TextTokenizer
from tests.support import tokenizers as lexicon

_BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

KINDS: dict[str, Callable[[], Tokenizer]] = {
    "bert": lambda: lexicon.wordpiece(_BERT),
    "cased": lambda: lexicon.wordpiece(_BERT, lowercase=False),
    "mpnet": lambda: lexicon.wordpiece(("<pad>", "[UNK]", "<s>", "</s>", "<mask>")),
    "roberta": lexicon.bytelevel_bpe,
    "xlm-roberta": lambda: lexicon.unigram(("<s>", "<pad>", "</s>", "<unk>")),
}


def text_tokenizer(kind: str, max_len: int = 64, **options: Any) -> TextTokenizer:
    """Forebay's side."""
    tokenizer = KINDS[kind]()
    return TextTokenizer(tokenizer, max_len=max_len, vocab_size=tokenizer.get_vocab_size(), **options)


def reference_ids(kind: str, text: str, max_len: int | None = None, side: str = "right") -> list[int]:
    """The library's own ids with special tokens, truncated by the library."""
    tokenizer = KINDS[kind]()
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if max_len is not None:
        tokenizer.enable_truncation(max_len, direction=side)
    ids: list[int] = tokenizer.encode(text).ids
    return ids
