"""The transformer's folder: file names and fields of all releases, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.checkpoint.transformer_files import FILE_NAMES, TransformerFiles, read_transformer_files
from forebay.core.errors import UnsupportedCheckpoint
from tests.checkpoint.checkpoints import TRANSFORMER, write_json

NAME = "sentence_bert_config.json"


def read(root: Path, fields: Any, name: str = NAME) -> TransformerFiles:
    write_json(root / "config.json", TRANSFORMER)
    write_json(root / name, fields)
    return read_transformer_files(root, root)


@pytest.mark.parametrize("name", FILE_NAMES)
def test_file_names(tmp_path: Path, name: str) -> None:
    files = read(tmp_path, {"max_seq_length": 128, "do_lower_case": True}, name)
    assert (files.max_seq_length, files.do_lower_case) == (128, True)
    assert files.sources == {
        "config": "config.json",
        "max_seq_length": f"{name}: max_seq_length",
        "do_lower_case": name,
    }


def test_without_file(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", TRANSFORMER)
    expected = TransformerFiles(TRANSFORMER, None, False, {"config": "config.json"})
    assert read_transformer_files(tmp_path, tmp_path) == expected


def test_empty_file_gives_way_to_a_legacy_one(tmp_path: Path) -> None:
    write_json(tmp_path / NAME, {})
    assert read(tmp_path, {"max_seq_length": 75}, "sentence_roberta_config.json").max_seq_length == 75


@pytest.mark.parametrize(
    ("fields", "expected", "source"),
    [
        ({"max_seq_length": None}, None, None),
        ({"max_seq_length": 512}, 512, f"{NAME}: max_seq_length"),
        ({"tokenizer_args": {"model_max_length": 64}}, 64, f"{NAME}: tokenizer_args: model_max_length"),
        (
            {"max_seq_length": 512, "processing_kwargs": {"text": {"max_length": 8, "truncation": "longest_first"}}},
            8,
            f"{NAME}: processing_kwargs: text: max_length",
        ),
        (
            {"max_seq_length": 512, "processor_kwargs": {"model_max_length": 64, "padding_side": "left"}},
            64,
            f"{NAME}: processor_kwargs: model_max_length",
        ),
        ({"max_seq_length": 32, "processor_kwargs": {}, "tokenizer_args": None}, 32, f"{NAME}: max_seq_length"),
    ],
)
def test_max_seq_length(tmp_path: Path, fields: dict[str, Any], expected: int | None, source: str | None) -> None:
    files = read(tmp_path, fields)
    assert (files.max_seq_length, files.sources.get("max_seq_length")) == (expected, source)


TEXT = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}


LOGITS = {"text": {"method": "forward", "method_output_name": "logits"}}


@pytest.mark.parametrize(
    ("task", "output", "modalities"),
    [
        ("feature-extraction", "token_embeddings", TEXT),
        ("fill-mask", "token_embeddings", LOGITS),
        ("sequence-classification", "scores", LOGITS),
    ],
)
def test_tasks(tmp_path: Path, task: str, output: str, modalities: dict[str, Any]) -> None:
    saved = {"transformer_task": task, "modality_config": modalities, "module_output_name": output}
    assert read(tmp_path, saved).task == read(tmp_path, {"transformer_task": task}).task == task
    for fields in (modalities, {"max_seq_length": 8}):
        write_json(tmp_path / NAME, {"modality_config": modalities} if fields is modalities else fields)
        assert read_transformer_files(tmp_path, tmp_path, task).task == task
    assert read_transformer_files(write_empty(tmp_path), tmp_path, task).task == task


def write_empty(root: Path) -> Path:
    """Leave nothing but config.json."""
    (root / NAME).unlink()
    return root


@pytest.mark.parametrize(
    "fields",
    [
        {"transformer_task": "feature-extraction", "modality_config": TEXT, "module_output_name": "token_embeddings"},
        {"model_args": {"attn_implementation": "sdpa", "trust_remote_code": True, "device_map": None}},
        {"unpad_inputs": True, "query_length": None, "processing_kwargs": {"text": {"padding": True}}},
        {"processing_kwargs": {"chat_template": {"add_generation_prompt": True}}},
        {"newer_option": None, "newer_flag": False},
    ],
)
def test_fields_that_leave_the_numbers_alone(tmp_path: Path, fields: dict[str, Any]) -> None:
    assert read(tmp_path, fields).config == TRANSFORMER


@pytest.mark.parametrize("name", ["config_args", "config_kwargs"])
def test_config_overrides(tmp_path: Path, name: str) -> None:
    files = read(tmp_path, {name: {"is_causal": False, "trust_remote_code": True}})
    assert files.config == TRANSFORMER | {"is_causal": False}
    assert files.sources["config"] == f"config.json, with is_causal from {NAME}"


@pytest.mark.parametrize("name", ["model_args", "model_kwargs"])
def test_model_overrides(tmp_path: Path, name: str) -> None:
    values = {"torch_dtype": "bfloat16", "hidden_size": 16}
    config = read(tmp_path, {name: values}).config
    assert config == TRANSFORMER | {"torch_dtype": "bfloat16", "dtype": "bfloat16", "hidden_size": 16}
    assert read(tmp_path, {name: {"dtype": "auto"}}).config == TRANSFORMER


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        *(
            ({"transformer_task": task}, f"'transformer_task' is '{task}'; Forebay supports 'feature-extraction', ")
            for task in ("any-to-any", "retrieval")
        ),
        ({"transformer_task": "fill-mask", "modality_config": TEXT}, "'method_output_name' is 'last_hidden_state'"),
        ({"transformer_task": "fill-mask", "module_output_name": "scores"}, "'module_output_name' is 'scores'"),
        (
            {"transformer_task": "sequence-classification", "module_output_name": "token_embeddings"},
            "'module_output_name' is 'token_embeddings'; Forebay supports 'scores' for 'sequence-classification'",
        ),
        (
            {"transformer_task": "sequence-classification", "modality_config": LOGITS | {"message": {}}},
            "message: 'method' is null",
        ),
        ({"transformer_task": 1}, "'transformer_task' is 1, expected a text"),
        ({"module_output_name": "sentence_embedding"}, "'module_output_name' is 'sentence_embedding'"),
        ({"modality_config": TEXT | {"image": {}}}, "'modality_config' has 'text', 'image'"),
        (
            {"transformer_task": "fill-mask", "modality_config": LOGITS | {"message": {}}},
            "'modality_config' has 'text', 'message'",
        ),
        ({"modality_config": TEXT | {"message": TEXT["text"] | {"format": "other"}}}, "'format' is 'other'"),
        (
            {
                "modality_config": TEXT | {"message": TEXT["text"]},
                "processing_kwargs": {"chat_template": {"continue_final_message": True}},
            },
            "'continue_final_message' changes",
        ),
        ({"modality_config": {}}, "'modality_config' has nothing"),
        ({"modality_config": {"text": {"method": "get_text_features"}}}, "'method' is 'get_text_features'"),
        (
            {"modality_config": {"text": {"method": "forward", "method_output_name": ["hidden_states", -2]}}},
            "'method_output_name' is a list",
        ),
        ({"newer_option": "x"}, "'newer_option' is 'x'"),
        ({"model_args": {"default_task": "retrieval"}}, "model_args: 'default_task' is 'retrieval'"),
        ({"model_args": []}, "'model_args' is a list, expected an object"),
        ({"tokenizer_args": {"add_eos_token": 1}}, "tokenizer_args: 'add_eos_token' is 1"),
        ({"processor_kwargs": {"truncation_side": "left"}}, "processor_kwargs: 'truncation_side' is 'left'"),
        ({"processing_kwargs": {"text": {"max_length": 0}}}, "processing_kwargs: text: 'max_length' is 0"),
        ({"processing_kwargs": {"text": {"truncation": "only_second"}}}, "'truncation' is 'only_second'"),
        (
            {"processing_kwargs": {"text": {"max_length": 8}, "common": {"max_length": 9}}},
            "text: 'max_length' contradicts",
        ),
        ({"max_seq_length": 0}, "'max_seq_length' is 0, expected at least 1"),
        ({"max_seq_length": "512"}, "'max_seq_length' is '512', expected a whole number"),
        ({"do_lower_case": "no"}, "'do_lower_case' is 'no', expected true or false"),
    ],
)
def test_not_understood(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=words) as caught:
        read(tmp_path, fields)
    assert str(caught.value).startswith(NAME)
