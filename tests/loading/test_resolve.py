"""What a checkpoint becomes: the table of architectures, the user's runner and convert, and the default task."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from sentence_transformers import CrossEncoder, SparseEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sparse_encoder.modules import SpladePooling

from forebay import PoolerConfig, PoolingModel
from forebay.checkpoint.pipeline import SpladePoolingStage, TransformerStage
from forebay.core.config import ModelOptions
from forebay.core.errors import ForebayError, InvalidRequest, UnsupportedCheckpoint
from forebay.loading.resolve import (
    ALLOWED_OVERRIDES,
    SUFFIXES,
    check_overrides,
    check_runner,
    resolve_kind,
    trained_for,
)
from tests.loading.test_plan import MEAN, bert, spec_of
from tests.support import pipelines, tiny
from tests.support.heads import head_folder
from tests.support.store import Store

KINDS = {
    "BertModel": "embed",
    "XLMRobertaModel": "embed",
    "T5EncoderModel": "embed",
    "SomeEmbeddingModel": "embed",
    "BertForPreTraining": "embed",
    "ElectraForPreTraining": "embed",
    "GemmaForTextEncoding": "embed",
    "BertForSequenceClassification": "sequence",
    "SomeClassificationModel": "sequence",
    "JinaVLForRanking": "sequence",
    "BertForTokenClassification": "token",
    "Qwen2ForProcessRewardModel": "token",
    "Qwen2ForRewardModel": "sequence",
    "BertForMaskedLM": "masked_lm",
    "Qwen3ForCausalLM": "generate",
    "T5ForConditionalGeneration": "generate",
    "GPT2LMHeadModel": "generate",
    "OldChatModel": "generate",
    "BertForQuestionAnswering": None,
    "BertForNextSentencePrediction": None,
    "BertForMultipleChoice": None,
    "HF_ColBERT": None,
}


@pytest.mark.parametrize("name", KINDS)
def test_the_ending_of_a_name_tells_what_it_was_trained_for(name: str) -> None:
    assert trained_for((name,)) == KINDS[name]
    assert trained_for((name, "BertModel")) == KINDS[name], "the first name counts"


def test_every_suffix_stands_in_the_table_above() -> None:
    assert {next(end for end in SUFFIXES if name.endswith(end)) for name, kind in KINDS.items() if kind} == set(
        SUFFIXES
    )
    assert trained_for(()) is None


def kind_of(name: str | None, *, is_default: bool = True, task: str = "feature-extraction", **options: Any) -> Any:
    config = {"architectures": [] if name is None else [name]}
    stage = TransformerStage(Path("checkpoint"), {**bert().config, **config}, None, False, {}, task)
    spec = spec_of(stage, MEAN, is_default_pipeline=is_default)
    return resolve_kind((stage, MEAN), spec, ModelOptions(**options))


@pytest.mark.parametrize(
    ("name", "options", "kind", "source"),
    [
        ("BertModel", {}, "embed", "config.json: architectures"),
        (None, {}, "embed", "config.json: architectures"),
        ("BertForMaskedLM", {}, "embed", "language model's head"),
        ("BertForSequenceClassification", {}, "sequence", "config.json: architectures"),
        ("BertForTokenClassification", {}, "token", "config.json: architectures"),
        ("BertForSequenceClassification", {"convert": "none"}, "sequence", "config.json: architectures"),
        ("BertForSequenceClassification", {"convert": "classify"}, "sequence", "user: convert"),
        ("BertForTokenClassification", {"convert": "classify"}, "token", "user: convert"),
        ("BertForSequenceClassification", {"convert": "embed"}, "embed", "user: convert"),
        ("BertForQuestionAnswering", {"convert": "embed"}, "embed", "user: convert"),
        ("Qwen3ForCausalLM", {"convert": "embed"}, "embed", "user: convert"),
        ("BertForSequenceClassification", {"is_default": False}, "embed", "modules.json"),
        ("Qwen3ForCausalLM", {"is_default": False}, "embed", "modules.json"),
        ("BertForQuestionAnswering", {"is_default": False}, "embed", "modules.json"),
        ("BertModel", {"is_default": False, "task": "sequence-classification"}, "sequence", "modules.json"),
        ("BertModel", {"is_default": False, "task": "fill-mask"}, "masked_lm", "modules.json"),
        ("BertForSequenceClassification", {"is_default": False, "convert": "classify"}, "sequence", "user: convert"),
    ],
)
def test_the_users_word_then_modules_then_the_name(
    name: str | None, options: dict[str, Any], kind: str, source: str
) -> None:
    found, said = kind_of(name, **options)
    assert found == kind
    assert source in said


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("Qwen3ForCausalLM", {}, ("Qwen3ForCausalLM", "convert 'embed'", "'classify'")),
        ("Qwen3ForCausalLM", {"convert": "none"}, ("Qwen3ForCausalLM", "convert 'embed'")),
        ("T5ForConditionalGeneration", {"runner": "pooling"}, ("generates text", "convert 'embed'")),
        ("BertForQuestionAnswering", {}, ("BertForQuestionAnswering", "convert 'embed'")),
        ("BertForMultipleChoice", {"convert": "none"}, ("BertForMultipleChoice", "convert 'embed'")),
        ("BertModel", {"convert": "classify"}, ("BertModel", "no trained classifier", "'embed'")),
        ("BertForMaskedLM", {"convert": "classify"}, ("BertForMaskedLM", "no trained classifier")),
        ("BertForQuestionAnswering", {"convert": "classify"}, ("BertForQuestionAnswering", "no trained classifier")),
    ],
)
def test_what_is_refused_names_the_way_out(name: str, options: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(UnsupportedCheckpoint) as caught:
        kind_of(name, **options)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("runner", ["generate", "draft", ""])
def test_other_runners(runner: str) -> None:
    with pytest.raises(InvalidRequest, match="never generates") as caught:
        check_runner(ModelOptions(runner=runner))  # type: ignore[arg-type]
    assert caught.value.field == "runner"


@pytest.mark.parametrize("runner", ["auto", "pooling"])
def test_both_names_of_the_one_runner(store: Store, runner: str) -> None:
    engine = store.engine(store.mean_pipeline("bert"), runner=runner)
    (source,) = [decision.source for decision in engine.info.decisions if decision.name == "runner"]
    assert (source == "user") == (runner == "pooling")


HEADS = ("QuestionAnswering", "MultipleChoice")


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", tiny.TRANSFORMERS)
def test_an_encoder_with_another_head(family: str, head: str, tmp_path: Path) -> None:
    folder = tiny.TRANSFORMERS[family](tmp_path / "other")
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    auto = getattr(transformers, f"AutoModelFor{head}")
    model = auto.from_config(transformers.AutoConfig.from_pretrained(folder))
    tiny.randomize(model, 5)
    model.save_pretrained(folder)
    with pytest.raises(UnsupportedCheckpoint, match=f"For{head}.*convert 'embed'"):
        PoolingModel(str(folder))
    expected = pipelines.Reference([pipelines.transformer(folder), pipelines.pooling("mean")]).embed(["the lake"])
    with PoolingModel(str(folder), convert="embed") as model:
        assert np.abs(model.embed("the lake").embeddings - expected).max() <= 1e-5


def test_a_generative_model_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    config = {"model_type": "mamba", "architectures": ["MambaForCausalLM"], "hidden_size": 8}
    (tiny.bert(tmp_path) / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UnsupportedCheckpoint, match="convert 'embed'"):
        PoolingModel(str(tmp_path))
    with pytest.raises(UnsupportedCheckpoint, match="model_type 'mamba'"):
        PoolingModel(str(tmp_path), convert="embed")


def _cross_encoder(store: Store, place: Path) -> Path:
    source = head_folder(store, "bert", "sequence", num_labels=1)
    CrossEncoder(str(source), device="cpu").save_pretrained(str(place))
    return place


def _splade(store: Store, place: Path) -> Path:
    source = head_folder(store, "bert", "masked_lm")
    modules = [Transformer(str(source), transformer_task="fill-mask"), SpladePooling()]
    SparseEncoder(modules=modules, device="cpu").save_pretrained(str(place), create_model_card=False)
    return place


def _plain(kind: Any, family: str = "bert") -> Callable[[Store, Path], Path]:
    return lambda store, place: head_folder(store, family, kind, num_labels=5) if kind else store.backbone(family)


@pytest.mark.parametrize(
    ("make", "tasks", "default"),
    [
        (_plain(None), {"embed", "token_embed"}, "embed"),
        (_plain("sequence"), {"classify"}, "classify"),
        (_plain("token"), {"token_classify"}, "token_classify"),
        (_plain("masked_lm"), {"embed", "token_embed", "sparse"}, "embed"),
        (_cross_encoder, {"classify"}, "classify"),
        (_splade, {"sparse"}, "sparse"),
        (lambda store, place: store.mean_pipeline("bert"), {"embed", "token_embed"}, "embed"),
    ],
)
def test_tasks_and_the_default(
    store: Store, make: Callable[[Store, Path], Path], tasks: set[str], default: str, tmp_path: Path
) -> None:
    with PoolingModel(str(make(store, tmp_path / "made"))) as model:
        abilities = model.info.abilities
        assert set(abilities.tasks) == tasks
        assert abilities.default_task == default
        assert list(model.encode("the lake").outputs) == [default]
        others = {"embed", "classify", "token_embed", "token_classify", "sparse"} - tasks
        for other in others:
            with pytest.raises(InvalidRequest, match=f"does not support the task '{other}'"):
                model.encode("the lake", task=other)
    others_as_default = sorted(others)[0]
    with pytest.raises(InvalidRequest, match=f"task is '{others_as_default}'"):
        PoolingModel(
            str(tmp_path / "made") if (tmp_path / "made").exists() else str(make(store, tmp_path / "again")),
            pooler_config={"task": others_as_default},
        )


@pytest.mark.parametrize("task", ["token_embed", "sparse"])
def test_the_users_default_task(store: Store, task: str) -> None:
    engine = store.engine(head_folder(store, "bert", "masked_lm"), pooler_config=PoolerConfig(task=task))
    assert engine.info.abilities.default_task == task
    assert list(engine.encode("the lake").outputs) == [task]
    assert list(engine.encode("the lake", task="embed").outputs) == ["embed"]


@pytest.mark.parametrize(
    ("kind", "config", "words"),
    [
        ("sequence", {"seq_pooling_type": "CLS+MEAN"}, "a classifier reads one row"),
        ("sequence", {"logit_sigma": 0}, "logit_sigma is 0"),
        ("sequence", {"softmax": False}, "'softmax' was removed.*use_activation"),
        ("sequence", {"normalize": True}, "'normalize' was removed.*use_activation"),
        ("sequence", {"activation": True}, "'activation' was removed.*use_activation"),
        ("sequence", {"pooling": "CLS"}, "unknown pooler config field 'pooling'"),
        ("sequence", {"pooling_type": "CLS", "seq_pooling_type": "CLS"}, "give one of them"),
        ("sequence", {"pooling_type": "ALL", "tok_pooling_type": "ALL"}, "give one of them"),
        ("sequence", {"pooling_type": "FIRST"}, "unknown pooling type 'FIRST'"),
        ("sequence", {"task": "score"}, "the task 'score' was removed"),
        ("sequence", {"task": "encode"}, "the task 'encode' was removed"),
        ("sequence", {"task": "rank"}, "unknown task 'rank'"),
        ("token", {"tok_pooling_type": "STEP"}, "STEP and step_tag_id go together"),
        ("token", {"step_tag_id": 4}, "STEP and step_tag_id go together"),
        ("token", {"tok_pooling_type": "LAST"}, "tok_pooling_type is 'LAST'"),
        ("token", {"returned_token_ids": [0, 5]}, "0 to 4"),
        ("token", {"returned_token_ids": [-1]}, "0 to 4"),
    ],
)
def test_pooler_configs_that_do_not_fit(store: Store, kind: Any, config: dict[str, Any], words: str) -> None:
    with pytest.raises(ForebayError, match=words):
        PoolingModel(str(head_folder(store, "bert", kind, num_labels=5)), pooler_config=config)


def test_a_head_that_is_followed_by_something_else() -> None:
    stage = TransformerStage(Path("checkpoint"), bert().config, None, False, {}, "fill-mask")
    spec = spec_of(stage, SpladePoolingStage("max", "relu", "1_SpladePooling/config.json"))
    assert resolve_kind(spec.routes.stages[""], spec, ModelOptions())[0] == "masked_lm"


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("embed", {"logit_mean": 1.0}),
        ("embed", {"returned_token_ids": [1]}),
        ("sequence", {"dimensions": 8}),
        ("sequence", {"tok_pooling_type": "STEP", "step_tag_id": 3}),
        ("token", {"seq_pooling_type": "MEAN"}),
        ("token", {"enable_chunked_processing": True}),
        ("masked_lm", {"use_activation": False}),
    ],
)
def test_an_override_that_means_nothing_to_the_model_is_refused(kind: str, values: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(values))):
        check_overrides(kind, PoolerConfig.parse(values))  # type: ignore[arg-type]


def test_every_override_means_something_to_some_model() -> None:
    assert set().union(*ALLOWED_OVERRIDES.values()) == set(PoolerConfig.__dataclass_fields__)
    for kind in ALLOWED_OVERRIDES:
        check_overrides(kind, PoolerConfig())
