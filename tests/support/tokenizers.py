"""Makers of small tokenizers with the special tokens and templates of real architectures.

Each returns a ``tokenizers.Tokenizer`` over the same little lexicon; none knows a model. ``save`` writes the two
files that a checkpoint carries.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

_LEXICON = """the a of to and in water river lake mill stream flows over stone wheel gate deep cold clear slow fast
dam pool bay fish boat query passage search document under night day hello world"""
WORDS = tuple(_LEXICON.split())
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,:!?-'"


def wordpiece(specials: tuple[str, str, str, str, str], *, lowercase: bool = True) -> Tokenizer:
    """BERT's kind: ``specials`` are the names of pad, unknown, start, end and mask, in the order of their ids.

    Words of the lexicon are whole pieces, other words fall into letters, foreign signs into the unknown token.
    """
    pad, unknown, start, end, mask = specials
    names = [pad, unknown, start, end, mask] if pad == "[PAD]" else [start, pad, end, unknown, mask]
    pieces = [*names, *WORDS, *[c for c in LETTERS if c not in WORDS], *[f"##{c}" for c in LETTERS]]
    pieces += ["##ing", "##s", "##ed"] if "##s" not in pieces else ["##ing", "##ed"]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    middle = f"{end} $B:1 {end}:1" if pad == "[PAD]" else f"{end} {end} $B {end}"
    _finish(tokenizer, specials, f"{start} $A {end}", f"{start} $A {middle}", vocabulary)
    return tokenizer


def bytelevel_bpe() -> Tokenizer:
    """RoBERTa's kind: byte-level BPE, ``<s> A </s>`` and ``<s> A </s></s> B </s>``."""
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=319,
        special_tokens=specials,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_LEXICON] * 4, trainer)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return tokenizer


def decoder_bpe() -> Tokenizer:
    """The kind of today's decoders: byte-level BPE that appends one end token, ``A </s>``."""
    tokenizer = bytelevel_bpe()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return tokenizer


def unigram(first: tuple[str, ...], start: str = "<s>", end: str = "</s>") -> Tokenizer:
    """XLM-RoBERTa's and CamemBERT's kind: sentencepiece-like unigrams; ``first`` are the pieces of the first ids."""
    pieces = [(name, 0.0) for name in first]
    pieces += [(f"▁{word}", -4.0) for word in WORDS if len(word) > 1]
    pieces += [(f"▁{letter}", -8.0) for letter in LETTERS] + [(letter, -9.0) for letter in LETTERS]
    pieces += [("▁", -7.0), ("ing", -5.0), ("é", -9.0), ("<mask>", 0.0)]
    vocabulary = {piece: index for index, (piece, _) in enumerate(pieces)}
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=vocabulary["<unk>"], byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    metaspace = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    specials = ("<pad>", "<unk>", start, end, "<mask>")
    _finish(tokenizer, specials, f"{start} $A {end}", f"{start} $A {end} {end} $B {end}", vocabulary)
    return tokenizer


def albert() -> Tokenizer:
    """ALBERT's kind: unigrams of lower-cased text without accents, framed as BERT frames."""
    tokenizer = unigram(("<pad>", "<unk>", "[CLS]", "[SEP]"), "[CLS]", "[SEP]")
    quotes = [normalizers.Replace(quote, '"') for quote in ("``", "''")]
    letters = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    tokenizer.normalizer = normalizers.Sequence([*quotes, *letters])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def save(
    tokenizer: Tokenizer, folder: Path, *, max_length: int, tokenizer_class: str, specials: dict[str, str], **more: Any
) -> None:
    """Write tokenizer.json and tokenizer_config.json.

    The file also keeps a truncation and a padding rule, as many published ones do: both are leftovers of training
    and must not have an effect.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pad = specials["pad_token"]
    tokenizer.enable_truncation(9)
    tokenizer.enable_padding(length=12, pad_id=tokenizer.token_to_id(pad), pad_token=pad)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": tokenizer_class, "model_max_length": max_length, **specials, **more}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))


def _finish(
    tokenizer: Tokenizer, specials: tuple[str, ...], single: str, pair: str, vocabulary: dict[str, int]
) -> None:
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in specials])
    known = [(name, vocabulary[name]) for name in specials]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=known)
