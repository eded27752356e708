"""A checkpoint's tokenizer files: what they say of cutting, and what is wrong with them."""

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.core.errors import CheckpointNotFound, LoadError, UnsupportedCheckpoint
from forebay.text.files import load_tokenizer
from tests.support.text import KINDS


def folder(path: Path, kind: str = "roberta", **config: Any) -> Path:
    KINDS[kind]().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("said", "expected"), [(512, 512), (512.0, 512), (1e30, None), (None, None), (0, None), (-1, None), ("512", None)]
)
def test_the_limit(tmp_path: Path, said: Any, expected: int | None) -> None:
    assert load_tokenizer(folder(tmp_path, model_max_length=said)).max_len == expected


def test_no_configuration_at_all(tmp_path: Path) -> None:
    (folder(tmp_path) / "tokenizer_config.json").unlink()
    files = load_tokenizer(tmp_path)
    assert (files.max_len, files.side, files.source) == (None, "right", "tokenizer.json")


def test_the_side(tmp_path: Path) -> None:
    assert load_tokenizer(folder(tmp_path, truncation_side="left")).side == "left"
    with pytest.raises(UnsupportedCheckpoint, match="truncation_side"):
        load_tokenizer(folder(tmp_path, truncation_side="middle"))


@pytest.mark.parametrize("content", ["{", "[]", "5", '"text"', "\udcff"], ids=ascii)
def test_a_broken_configuration(tmp_path: Path, content: str) -> None:
    (folder(tmp_path) / "tokenizer_config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UnsupportedCheckpoint, match=r"tokenizer_config\.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "{}", '{"model": {"type": "Unheard"}}'])
def test_a_broken_tokenizer(tmp_path: Path, content: str) -> None:
    (folder(tmp_path) / "tokenizer.json").write_text(content)
    with pytest.raises(UnsupportedCheckpoint, match=r"tokenizer\.json can't be read"):
        load_tokenizer(tmp_path)


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound, match=r"tokenizer\.json.*vocab\.txt"):
        load_tokenizer(tmp_path)


def test_a_slow_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"not a model")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "XLMRobertaTokenizer"}))
    with pytest.raises(LoadError, match=r"sentencepiece\.bpe\.model"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("lowers", [True, False])
@pytest.mark.parametrize("name", ["BertTokenizer", "BertTokenizerFast", "MPNetTokenizer"])
def test_letter_case_of_bert_is_the_configurations_word(tmp_path: Path, name: str, lowers: bool) -> None:
    kind = "cased" if lowers else "bert"  # tokenizer.json says the contrary
    tokenizer = load_tokenizer(folder(tmp_path, kind, tokenizer_class=name, do_lower_case=lowers)).tokenizer
    assert (tokenizer.encode("RIVER").ids == tokenizer.encode("river").ids) == lowers


def test_letter_case_of_others_is_the_tokenizers_own(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder(tmp_path, tokenizer_class="RobertaTokenizer", do_lower_case=True)).tokenizer
    assert tokenizer.encode("RIVER").ids == KINDS["roberta"]().encode("RIVER").ids
