"""The tokens at a text's ends: put there once, wherever the checkpoint says so, and not cut off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import transformers

from forebay import PoolingModel
from forebay.core.params import TextParams
from tests.support.language_models import edit, ids_of, save, states_of
from tests.support.texts import sentence

VECTORS = 1e-5
BOS, EOS = 0, 2
WRITTEN = {BOS: "<s>", EOS: "</s>"}


def encode(model: PoolingModel, text: str, **params: object) -> list[int]:
    tokenizer = next(iter(model.engine._model.texts.values()))
    (ids,) = tokenizer.encode([text], TextParams(**params), "").ids  # type: ignore[arg-type]
    return ids.tolist()  # type: ignore[no-any-return]


FLAGS = {"add_eos_token": True, "add_bos_token": True}
FILES: dict[str, tuple[str, dict[str, object], list[int], list[int]]] = {
    "post-processor": ("$A </s>", {}, [], [EOS]),
    "add_eos_token": ("$A", {"add_eos_token": True}, [], [EOS]),
    "both": ("$A </s>", {"add_eos_token": True}, [], [EOS]),
    "e5-mistral": ("<s> $A", {"add_eos_token": True, "add_bos_token": True}, [BOS], [EOS]),
    "only the flags": ("$A", {"add_eos_token": True, "add_bos_token": True}, [BOS], [EOS]),
    "one token for both": ("</s> $A", {**FLAGS, "bos_token": "</s>"}, [EOS], [EOS]),
    "none": ("$A", {"add_eos_token": False}, [], []),
}


@pytest.mark.parametrize("name", FILES)
def test_ends_stand_once(tmp_path: Path, name: str) -> None:
    ends, config, before, after = FILES[name]
    folder = save(tmp_path / "model", "mistral", "CausalLM", ends=ends, tokenizer_config=config)
    (body,) = ids_of(folder, ["a river"], specials=False)
    with PoolingModel(str(folder), convert="embed") as model:
        assert encode(model, "a river") == [*before, *body, *after]
        assert encode(model, "".join(WRITTEN[id_] for id_ in before) + "a river</s>") == [*before, *body, EOS]
        assert encode(model, "") == [*before, *after]
        cut = encode(model, sentence(300, 1), max_tokens=9)
        assert len(cut) == 9
        assert cut[: len(before)] == before
        assert cut[9 - len(after) :] == after
        (states,) = states_of(folder, [[*before, *body, *after]])
        vector = model.embed("a river").embeddings[0]
        assert np.abs(vector - states[-1] / np.linalg.norm(states[-1])).max() <= VECTORS
        if after:
            assert np.abs(vector - states[-2] / np.linalg.norm(states[-2])).max() >= 100 * VECTORS


def test_both_flags_give_what_transformers_5_makes_of_them(tmp_path: Path) -> None:
    config = {"add_eos_token": True, "add_bos_token": True}
    folder = save(tmp_path / "model", "mistral", "CausalLM", tokenizer_config=config)
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    reference.add_bos_token = reference.add_eos_token = True
    expected = reference("a river")["input_ids"]
    with PoolingModel(str(folder), convert="embed") as model:
        assert encode(model, "a river") == expected
        said = [decision.value for decision in model.info.decisions if decision.name == "special tokens"]
    assert said == ["<s> before every text", "</s> behind every text"]


def test_sentence_transformers_settings_ask_for_an_end(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "mistral", "CausalLM")
    settings = '{"max_seq_length": 64, "processor_kwargs": {"add_eos_token": true}}'
    (folder / "sentence_bert_config.json").write_text(settings)
    with PoolingModel(str(folder), convert="embed") as model:
        assert encode(model, "a river")[-1] == EOS


def test_the_end_may_be_the_padding_token(tmp_path: Path) -> None:
    """Qwen3-Embedding's template ends texts with its padding token; it is pooled all the same."""
    folder = save(tmp_path / "model", "qwen3", "CausalLM", ends="$A </s>", pad_token_id=EOS)
    edit(folder / "tokenizer_config.json", pad_token="</s>")
    (states,) = states_of(folder, ids_of(folder, ["a river"]))
    with PoolingModel(str(folder), convert="embed") as model:
        vector = model.embed("a river").embeddings[0]
    assert np.abs(vector - states[-1] / np.linalg.norm(states[-1])).max() <= VECTORS


def test_a_familys_prompts_are_turned_on_by_name(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "qwen3", "CausalLM", ends="$A </s>")
    task = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
    with PoolingModel(str(folder), convert="embed") as model:
        expected = model.embed("mills", prompt=task).embeddings
        assert model.info.prompts == {}
    with PoolingModel(str(folder), convert="embed", prompts="qwen3-embedding") as model:
        assert model.info.prompts == {"query": task}
        assert np.array_equal(model.embed("mills", input_type="query").embeddings, expected)
        assert not np.array_equal(model.embed("mills").embeddings, expected), "never unasked"
        assert not np.array_equal(model.embed("mills", input_type="document").embeddings, expected)
    with pytest.raises(Exception, match="known families: bge-en, e5"):
        PoolingModel(str(folder), convert="embed", prompts="e6")


def test_three_who_ask_for_an_end_get_one(tmp_path: Path) -> None:
    """The template, the tokenizer's flag and sentence-transformers' settings, all at once."""
    folder = save(tmp_path / "model", "mistral", "CausalLM", ends="$A </s>", tokenizer_config={"add_eos_token": True})
    settings = '{"max_seq_length": 64, "processor_kwargs": {"add_eos_token": true}}'
    (folder / "sentence_bert_config.json").write_text(settings)
    (body,) = ids_of(folder, ["a river"], specials=False)
    with PoolingModel(str(folder), convert="embed") as model:
        assert encode(model, "a river") == encode(model, "a river</s>") == [*body, EOS]
