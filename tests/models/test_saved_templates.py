"""Classifiers of pairs whose messages pass a saved chat template, and those whose scores a Dense makes of a pooled
vector: everything that sentence-transformers 6 saves of a CrossEncoder, against that library.
"""

import json
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from forebay import PoolingModel
from forebay.core.errors import InputTooLong, InvalidRequest, LoadError
from forebay.core.params import TextParams
from tests.support import heads, tiny
from tests.support.language_models import edit, save
from tests.support.texts import sentence

SCORES, FACTOR = 1e-5, 100
PAIRS = [
    ("where does the river go", "The river flows over stone."),
    ("a", "mill"),
    ("the mill", " water, cold\n"),
    ("lake", sentence(300, 3)),
]
FLAT = (
    '[CLS]{%- for m in messages if m.role == "system" -%}{{ m.content }} : {%- endfor -%}'
    '{{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }} [SEP] '
    '{{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }} the end[SEP]'
)
STRUCTURED = (
    '[CLS]{%- for m in messages if m.role == "system" -%}{{ m.content[0].text }} : {%- endfor -%}'
    '{{ (messages | selectattr("role", "eq", "query") | first).content[0].text }} [SEP] '
    '{{ (messages | selectattr("role", "eq", "document") | first).content[0].text }} the end[SEP]'
)
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
CHANGED = FLAT.replace("the end", "end of it")


def scores(model: PoolingModel, pairs: Sequence[tuple[str, str]] = PAIRS, **options: Any) -> NDArray[np.float32]:
    return model.score([one for one, _ in pairs], [other for _, other in pairs], **options).scores


def check(folder: Path, pairs: Sequence[tuple[str, str]] = PAIRS, prompt: str | None = "find", **options: Any) -> None:
    """The numbers are the reference's, with a prompt too, and not those of pairs that are joined without a template."""
    reference = CrossEncoder(str(folder), device="cpu")
    expected = reference.predict(list(pairs))
    with PoolingModel(str(folder), **options) as model:
        assert np.abs(scores(model, pairs) - expected).max() <= SCORES
        if prompt is not None:
            told = reference.predict(list(pairs[:3]), prompt=prompt)
            assert np.abs(scores(model, pairs[:3], prompt=prompt) - told).max() <= SCORES
            assert np.abs(told - expected[:3]).max() >= FACTOR * SCORES
    with PoolingModel(str(folder), template="plain") as plain:
        assert np.abs(scores(plain, pairs) - expected).max() >= FACTOR * SCORES


def classifier(folder: Path, family: str = "bert", template: str | None = FLAT, num_labels: int = 1) -> Path:
    heads.with_head(folder, family, "sequence", num_labels=num_labels)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def saved(work: Path, folder: Path) -> Path:
    """What sentence-transformers makes of it."""
    CrossEncoder(str(folder), device="cpu").save_pretrained(str(work / "saved"))
    return work / "saved"


@pytest.mark.parametrize("template", [FLAT, STRUCTURED], ids=["flat", "structured"])
@pytest.mark.parametrize("family", ["bert", "modernbert", "distilbert", "xlm-roberta", "electra"])
def test_encoders_read_their_template(tmp_path: Path, family: str, template: str) -> None:
    plain = classifier(tmp_path / "plain", family, template)
    check(saved(tmp_path, plain))
    check(plain)


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_decoders_without_the_librarys_files_too(tmp_path: Path, family: str) -> None:
    for kind, more in (("SequenceClassification", {"num_labels": 1}), ("CausalLM", {})):
        for name, template in (("flat", FLAT), ("structured", STRUCTURED)):
            folder = save(tmp_path / f"{kind}-{name}", family, kind, chat_template=template, **more)
            if kind == "CausalLM":  # 'plain' does not load there
                reference = CrossEncoder(str(folder), device="cpu").predict(PAIRS)
                with PoolingModel(str(folder)) as model:
                    assert np.abs(scores(model) - reference).max() <= SCORES
            else:
                check(folder)


def test_a_template_for_any_role_counts_where_it_is_asked_for(tmp_path: Path) -> None:
    """Chat models hand such a one down to classifiers that never saw it; files that were saved with it ask for it."""
    folder = save(tmp_path / "plain", "qwen3", "SequenceClassification", num_labels=1, chat_template=CHATML)
    check(saved(tmp_path, folder), prompt=None)
    check(folder, prompt=None, template="chat")
    with PoolingModel(str(folder)) as model, PoolingModel(str(folder), template="plain") as plain:
        np.testing.assert_array_equal(scores(model), scores(plain))
    none = save(tmp_path / "none", "qwen3", "SequenceClassification", num_labels=1)
    with pytest.raises(InvalidRequest, match="no chat template with a place for each"):
        PoolingModel(str(none), template="chat")


VARIANTS: dict[str, dict[str, Any]] = {
    "no format": {"modality_config": {"format": None}},
    "the format is told by the template": {"modality_config": {"format": "auto"}},
    "a length in the template's options": {"processing_kwargs": {"chat_template": {"max_length": 24}}},
    "a length in the text's options": {"processing_kwargs": {"text": {"max_length": 24}}},
    "a length for all": {"processing_kwargs": {"common": {"max_length": 24, "truncation": "longest_first"}}},
    "what a generator keeps": {"processing_kwargs": {"text": {"logits_to_keep": 0, "padding": "max_length"}}},
    "another template": {"processing_kwargs": {"chat_template": {"chat_template": CHANGED}}},
    "one by its name": {"processing_kwargs": {"chat_template": {"chat_template": "rerank"}}},
    "documents": {"processing_kwargs": {"chat_template": {"documents": [{"title": "a"}]}}},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_settings_of_a_saved_template(tmp_path: Path, name: str) -> None:
    folder = saved(tmp_path, classifier(tmp_path / "plain"))
    if name == "one by its name":
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "rerank.jinja").write_text(CHANGED)
    path = folder / "sentence_bert_config.json"
    change = dict(VARIANTS[name])
    if "modality_config" in change:
        config = json.loads(path.read_text(encoding="utf-8"))["modality_config"]
        message = {**config["message"], **change["modality_config"]}
        message = {key: value for key, value in message.items() if value is not None}
        change["modality_config"] = {**config, "message": message}
    edit(path, **change)
    short = [(one[:9], other[:200]) for one, other in PAIRS]
    check(folder, short)


@pytest.mark.parametrize("is_named", [False, True])
def test_templates_in_a_list(tmp_path: Path, is_named: bool) -> None:
    folder = saved(tmp_path, classifier(tmp_path / "plain"))
    (folder / "chat_template.jinja").unlink()
    entries = [{"name": "default", "template": FLAT}, {"name": "rerank", "template": CHANGED}]
    edit(folder / "tokenizer_config.json", chat_template=entries)
    if is_named:
        edit(folder / "sentence_bert_config.json", processing_kwargs={"chat_template": {"chat_template": "rerank"}})
    check(folder)


@pytest.mark.parametrize(
    "template",
    [
        FLAT.replace("{%- endfor -%}", "{%- if loop.index > 3 -%}{%- break -%}{%- endif -%}{%- endfor -%}"),
        FLAT.replace("the end", "{% generation %}the end{% endgeneration %}"),
        FLAT.replace("the end", "{% if tools is not none %}tools{% endif %}{% if documents %}d{% endif %}the end"),
        "{{ cls_token }}" + FLAT.removeprefix("[CLS]").removesuffix("[SEP]") + "{{ sep_token }}",
        FLAT.replace("[CLS]", "[CLS]{% if messages[0].role != 'system' %}the task {% endif %}"),
    ],
    ids=["break", "generation", "tools", "special tokens", "a default"],
)
def test_what_templates_may_use(tmp_path: Path, template: str) -> None:
    check(classifier(tmp_path / "plain", template=template))


def test_a_document_before_its_query(tmp_path: Path) -> None:
    """It has no place for a prompt: sentence-transformers drops one without a word."""
    template = (
        '[CLS]{{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }} [SEP] '
        '{{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }} the end[SEP]'
    )
    folder = saved(tmp_path, classifier(tmp_path / "plain", template=template))
    check(folder, PAIRS[:3], prompt=None)
    with PoolingModel(str(folder)) as model:
        for options in ({"prompt": "find"}, {"instruction": "find"}):
            with pytest.raises(InvalidRequest, match="has none") as caught:
                scores(model, **options)
            assert caught.value.field == next(iter(options))


def test_the_checkpoints_own_prompt(tmp_path: Path) -> None:
    folder = saved(tmp_path, classifier(tmp_path / "plain"))
    without = CrossEncoder(str(folder), device="cpu").predict(PAIRS)
    edit(folder / "config_sentence_transformers.json", prompts={"q": "seek", "r": "find"}, default_prompt_name="q")
    check(folder)
    reference = CrossEncoder(str(folder), device="cpu")
    assert np.abs(reference.predict(PAIRS) - without).max() >= FACTOR * SCORES
    with PoolingModel(str(folder)) as model:
        named = scores(model, prompt_name="r")
        assert np.abs(named - reference.predict(PAIRS, prompt_name="r")).max() <= SCORES


UNUSABLE = {
    "a date": FLAT.replace("the end", "{{ strftime_now('%Y') }}"),
    "a query twice": FLAT.replace("the end", '{{ (messages | selectattr("role", "eq", "query") | first).content }}'),
    "no document": '[CLS]{{ (messages | selectattr("role", "eq", "query") | first).content }}',
    "long texts cut": FLAT.replace("| first }} the", "| first | truncate(4000) }} the"),
    "texts changed": FLAT.replace("| first }} the", "| first | upper }} the"),
    "no Jinja": FLAT + "{% if %}",
}


@pytest.mark.parametrize("name", UNUSABLE)
@pytest.mark.parametrize("num_labels", [1, 3])
def test_a_template_that_is_not_followed_fails_the_load(tmp_path: Path, name: str, num_labels: int) -> None:
    """It was read past once, and pairs were joined without it: other numbers, silently."""
    folder = saved(tmp_path, classifier(tmp_path / "plain", num_labels=num_labels))
    (folder / "chat_template.jinja").write_text(UNUSABLE[name])
    with pytest.raises(LoadError, match=r"chat template") as caught:
        PoolingModel(str(folder))
    assert "template" in str(caught.value)
    with PoolingModel(str(folder), template="plain") as model:
        assert len(model.info.abilities.labels) == num_labels


def test_a_template_that_is_missing_fails_the_load(tmp_path: Path) -> None:
    folder = saved(tmp_path, classifier(tmp_path / "plain"))
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(LoadError, match="'plain' to read texts without it"):
        PoolingModel(str(folder))
    own = tmp_path / "own.toml"
    own.write_text('pieces = ["[CLS]{query} [SEP] {document} the end[SEP]"]\n')
    with PoolingModel(str(folder), template=str(own)) as model:
        (folder / "chat_template.jinja").write_text(FLAT)
        expected = CrossEncoder(str(folder), device="cpu").predict(PAIRS[:2])
        assert np.abs(scores(model, PAIRS[:2]) - expected).max() <= SCORES


def test_an_embedder_that_renders_its_texts_fails_the_load(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    backbone = tiny.bert(tmp_path / "backbone")
    (backbone / "chat_template.jinja").write_text(CHATML)
    SentenceTransformer(modules=[Transformer(str(backbone)), Pooling(tiny.HIDDEN)]).save_pretrained(
        str(tmp_path / "saved")
    )
    with pytest.raises(LoadError, match="single texts"):
        PoolingModel(str(tmp_path / "saved"))
    for options in ({"template": "plain"}, {"convert": "embed"}):
        with PoolingModel(str(tmp_path / "saved"), **options) as model:  # type: ignore[arg-type]
            assert model.embed("a river").embeddings.shape == (1, tiny.HIDDEN)


def scorer(work: Path, *, template: str | None, mode: str, num_labels: int = 1, hidden: int | None = None) -> Path:
    """A CrossEncoder of an encoder, its pooling and dense layers; the last makes scores."""
    backbone = tiny.bert(work / "backbone")
    transformers.AutoTokenizer.from_pretrained(backbone).save_pretrained(backbone)
    if template is not None:
        (backbone / "chat_template.jinja").write_text(template)
    modules: list[Any] = [Transformer(str(backbone)), Pooling(tiny.HIDDEN, pooling_mode=mode)]
    if hidden is not None:
        modules.append(Dense(tiny.HIDDEN, hidden, activation_function=torch.nn.GELU()))
    last = Dense(
        hidden or tiny.HIDDEN, num_labels, activation_function=torch.nn.Identity(), module_output_name="scores"
    )
    modules.append(last)
    for seed, module in enumerate(modules[2:]):
        tiny.randomize(module, seed)
    CrossEncoder(modules=modules, device="cpu").save_pretrained(str(work / "saved"))
    return work / "saved"


@pytest.mark.parametrize("hidden", [None, 20])
@pytest.mark.parametrize("mode", ["cls", "mean"])
@pytest.mark.parametrize("template", [None, FLAT])
def test_scores_of_a_dense(tmp_path: Path, template: str | None, mode: str, hidden: int | None) -> None:
    folder = scorer(tmp_path, template=template, mode=mode, hidden=hidden)
    if template is not None:
        check(folder)
        return
    reference = CrossEncoder(str(folder), device="cpu")
    with PoolingModel(str(folder)) as model:
        assert model.info.abilities.score_type == "cross-encoder"
        assert model.info.abilities.labels == ("score",)
        assert np.abs(scores(model) - reference.predict(PAIRS)).max() <= SCORES
        raw = reference.predict(PAIRS, activation_fn=torch.nn.Identity())
        assert np.abs(scores(model, use_activation=False) - raw).max() <= 10 * SCORES
        told = reference.predict(PAIRS, prompt="seek ")
        assert np.abs(scores(model, prompt="seek ") - told).max() <= SCORES
        assert np.abs(told - reference.predict(PAIRS)).max() >= FACTOR * SCORES
    other = scorer(tmp_path / "other", template=None, mode="mean" if mode == "cls" else "cls", hidden=hidden)
    wrong = CrossEncoder(str(other), device="cpu").predict(PAIRS)
    assert np.abs(wrong - reference.predict(PAIRS)).max() >= FACTOR * SCORES, "the pooling is seen"


def test_several_scores_of_a_dense(tmp_path: Path) -> None:
    folder = scorer(tmp_path, template=None, mode="cls", num_labels=3)
    with PoolingModel(str(folder)) as model:
        assert model.info.abilities.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
        with pytest.raises(InvalidRequest, match="3 labels"):
            model.score("a", "b")
        assert model.classify("a").scores.shape == (1, 3)


def test_a_dense_that_scores_stands_at_the_end(tmp_path: Path) -> None:
    folder = scorer(tmp_path, template=None, mode="cls")
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    norm = {**modules[-1], "idx": 9, "path": "9_Normalize"}
    norm["type"] = "sentence_transformers.base.modules.normalize.Normalize"
    (folder / "modules.json").write_text(json.dumps([*modules, norm]))
    with pytest.raises(LoadError, match="by a Dense at the very end"):
        PoolingModel(str(folder))
    (folder / "modules.json").write_text(json.dumps(modules))
    edit(folder / "1_Pooling" / "config.json", include_prompt=False)
    with pytest.raises(LoadError, match="include_prompt"):
        PoolingModel(str(folder))


@pytest.mark.parametrize("template", [None, FLAT])
def test_the_text_that_is_too_long_is_named(tmp_path: Path, template: str | None) -> None:
    """Where the query alone does not fit, the document is not to blame."""
    long = sentence(300, 5)
    with PoolingModel(str(classifier(tmp_path / "plain", template=template))) as model:
        for call, field in (
            (lambda: model.rerank(long, ["a", "b"], truncate=False), "query"),
            (lambda: model.rerank("a", ["b", long], truncate=False), "documents[1]"),
            (lambda: model.rerank(long, ["a", long], truncate=False), "query"),
            (lambda: model.score(["a", long], ["a", "b"], truncate=False), "queries[1]"),
            (lambda: model.score([long, "a"], [long, "b"], truncate=False), "documents[0]"),
            (lambda: model.rerank("a b c", ["d"], truncate=False, max_tokens_per_query=1), "query"),
            (lambda: model.rerank("a", ["d e f"], truncate=False, max_tokens_per_doc=1), "documents[0]"),
        ):
            with pytest.raises(InputTooLong) as caught:
                call()
            assert caught.value.field == field
            assert str(caught.value).startswith(f"{field}: ")


@pytest.mark.parametrize("overlap", [0, 5])
@pytest.mark.parametrize("how", ["max", "mean"])
@pytest.mark.parametrize("kind", ["encoder", "language model"])
def test_long_documents_by_windows(tmp_path: Path, kind: str, how: str, overlap: int) -> None:
    """Each window is a pair of its own, with the whole query and the whole template around it."""
    if kind == "encoder":
        folder = classifier(tmp_path / "plain")
    else:
        folder = save(tmp_path / "plain", "qwen3", "CausalLM", chat_template=FLAT, max_position_embeddings=64)
    config = {"enable_chunked_processing": True, "chunk_scores": how, "chunk_overlap": overlap}
    long, query = sentence(180, 5), "a river"
    with PoolingModel(str(folder), pooler_config=config) as model:
        text = model.engine._model.texts[""]
        short = text.encode_pairs([query], ["a"], TextParams(), "").ids[0]
        windows = text.encode_pairs([query], [long], TextParams(), "").ids
        assert len(windows) > 3
        assert max(map(len, windows)) == text.max_len
        before = int(np.argmax(windows[0][: len(short)] != short))
        behind = len(short) - before - 1
        for row in windows:
            assert row[:before].tolist() == short[:before].tolist()
            assert row[len(row) - behind :].tolist() == short[before + 1 :].tolist()
        bodies = [row[before : len(row) - behind] for row in windows]
        assert all(np.array_equal(one[len(one) - overlap :], other[:overlap]) for one, other in pairwise(bodies))
        read = np.concatenate([bodies[0], *(body[overlap:] for body in bodies[1:])])
        assert text.decode(read.tolist(), skips_specials=False).strip() == long
        given = [row.tolist() for row in windows]
        each = model.classify(given, add_special_tokens=False, use_activation=False).scores[:, 0]
        lens = np.array([len(row) for row in windows])
        wanted, other = each.max(), float(lens @ each / lens.sum())
        if how == "mean":
            wanted, other = other, wanted
        output = model.score(query, [long, "a"], use_activation=False)
        assert abs(output[0] - wanted) <= 10 * SCORES
        assert abs(other - wanted) >= FACTOR * SCORES
        assert output.truncated.tolist() == [False, False]
        assert output.num_tokens == lens.sum() + len(short)
    with PoolingModel(str(folder), pooler_config=config | {"max_embed_len": 80}) as model:
        assert model.score(query, [long, "a"]).truncated.tolist() == [True, False]
        assert model.score(long, ["a"]).truncated.tolist() == [True]
        with pytest.raises(InputTooLong, match="the 80 tokens") as caught:
            model.score(query, ["a", long], truncate=False)
        assert caught.value.field == "documents[1]"


def test_copies_of_a_checkpoint_do_not_share(tmp_path: Path) -> None:
    """A mutant: the template of one folder is not that of another."""
    one = saved(tmp_path, classifier(tmp_path / "plain"))
    other = Path(shutil.copytree(one, tmp_path / "other"))
    (other / "chat_template.jinja").write_text(CHANGED)
    with PoolingModel(str(one)) as first, PoolingModel(str(other)) as second:
        assert np.abs(scores(first) - scores(second)).max() >= FACTOR * SCORES
