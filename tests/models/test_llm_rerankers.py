"""Rerankers made of language models: yes/no answers, templates of known families, LogitScore checkpoints."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder

from forebay import PoolingModel
from forebay.core.errors import InputTooLong, InvalidRequest, LoadError
from tests.support.language_models import edit, ids_of, logits_of, save, tokenizer
from tests.support.texts import sentence

LOGITS, SCORES, FACTOR = 1e-4, 1e-5, 100
PAIRS = [("a river", "the lake"), ("stream?", "Cold, deep water.\n"), ("a", sentence(30, 1)), ("the mill ", " bay ")]
TEMPLATE = """{%- set ns = namespace(task='find it') -%}
{%- for m in messages if m.role == 'system' -%}{%- set ns.task = m.content -%}{%- endfor -%}
<|im_start|>do: {{ ns.task }} q: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
d: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>ok:"""


def difference(one: object, other: object) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


def sigmoid(x: np.ndarray) -> np.ndarray:
    return torch.sigmoid(torch.from_numpy(np.asarray(x))).numpy()


def score(model: PoolingModel, pairs: Sequence[tuple[str, str]] = PAIRS, **options: object) -> np.ndarray:
    return model.score([one for one, _ in pairs], [other for _, other in pairs], **options).scores  # type: ignore[arg-type]


def qwen3(query: str, document: str, instruction: str | None = None) -> str:
    """The authors' own way, by hand."""
    task = instruction or "Given a web search query, retrieve relevant passages that answer the query"
    before = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    after = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    return f"{before}<Instruct>: {task}\n<Query>: {query}\n<Document>: {document}{after}"


def by_hand(folder: Path, texts: Sequence[str], true: str, false: str | None) -> np.ndarray:
    vocabulary = tokenizer()
    rows = [row[-1] for row in logits_of(folder, "CausalLM", ids_of(folder, texts, specials=False))]
    less = [0.0 if false is None else row[vocabulary.token_to_id(false)] for row in rows]
    return np.array([row[vocabulary.token_to_id(true)] for row in rows]) - np.array(less)


@pytest.mark.parametrize("is_tied", [True, False])
def test_qwen3_reranker(tmp_path: Path, is_tied: bool) -> None:
    folder = save(
        tmp_path / "Qwen3-Reranker-0.6B",
        "qwen3",
        "CausalLM",
        ends="$A </s>",
        tie_word_embeddings=is_tied,
        max_position_embeddings=1024,
    )
    edit(folder / "tokenizer_config.json", model_max_length=1024)
    expected = by_hand(folder, [qwen3(*pair) for pair in PAIRS], "yes", "no")
    with PoolingModel(str(folder)) as model:
        assert model.info.abilities.takes_instruction
        assert model.info.abilities.score_type == "cross-encoder"
        assert difference(score(model, use_activation=False), expected) <= LOGITS
        assert difference(score(model), sigmoid(expected)) <= SCORES
        told = by_hand(folder, [qwen3(*pair, "Find mills") for pair in PAIRS], "yes", "no")
        assert difference(score(model, use_activation=False, instruction="Find mills"), told) <= LOGITS
        assert difference(told, expected) >= FACTOR * LOGITS
        head = model.engine._model.pipelines[""].model.head  # type: ignore[attr-defined]
        assert [tuple(parameter.shape) for parameter in head.parameters()] in ([(2, 32)], []), "only the two rows"
        ranked = model.rerank(PAIRS[0][0], [other for _, other in PAIRS])
        assert len(ranked) == len(PAIRS)
    two_way = np.stack([np.zeros_like(expected), expected], 1)
    assert difference(sigmoid(expected), torch.from_numpy(two_way).softmax(-1)[:, 1]) <= SCORES
    mutants = {
        "no template": by_hand(folder, [f"{one}{other}" for one, other in PAIRS], "yes", "no"),
        "answers exchanged": -expected,
        "one row": by_hand(folder, [qwen3(*pair) for pair in PAIRS], "yes", None),
        "no suffix": by_hand(
            folder, [qwen3(*pair).partition("<|im_end|>\n<|im_start|>assistant")[0] for pair in PAIRS], "yes", "no"
        ),
        "end of text behind it": by_hand(folder, [qwen3(*pair) + "</s>" for pair in PAIRS], "yes", "no"),
    }
    for name, wrong in mutants.items():
        assert difference(wrong, expected) >= FACTOR * LOGITS, name
    assert difference(sigmoid(sigmoid(expected)), sigmoid(expected)) >= FACTOR * SCORES, "one activation, not two"


def test_the_documents_alone_are_cut(tmp_path: Path) -> None:
    folder = save(tmp_path / "Qwen3-Reranker-tiny", "qwen3", "CausalLM", max_position_embeddings=1024)
    edit(folder / "tokenizer_config.json", model_max_length=1024)
    long = sentence(2000, 3)
    head, _, tail = qwen3("a river", "\0").partition("\0")
    (before, whole, after) = ids_of(folder, [head, head + long, tail], specials=False)
    ids = [*whole[: 600 - len(after)], *after]
    vocabulary = tokenizer()
    (rows,) = logits_of(folder, "CausalLM", [ids])
    expected = rows[-1][vocabulary.token_to_id("yes")] - rows[-1][vocabulary.token_to_id("no")]
    with PoolingModel(str(folder), max_model_len=600) as model:
        output = model.score("a river", long, use_activation=False)
        assert output.truncated.tolist() == [True]
        assert output.num_tokens == 600
        assert difference(output.scores, expected) <= LOGITS
        with pytest.raises(InputTooLong, match="600 tokens"):
            model.score("a river", long, truncate=False)
        limited = model.score("a river", long, max_tokens_per_doc=5)
        assert limited.truncated.all()
        assert limited.num_tokens == len(before) + 5 + len(after)
        huge = model.score("a river", long, max_tokens_per_doc=1 << 63, use_activation=False)
        assert np.array_equal(huge.scores, output.scores)
        both = model.score(long, long)
        assert both.num_tokens == 600
        with pytest.raises(InvalidRequest, match="tokens more than the 600"):
            model.score("a", "b", instruction=long)


def test_mxbai_reads_its_own_template(tmp_path: Path) -> None:
    folder = save(tmp_path / "mxbai-rerank-base-v2", "qwen2", "CausalLM", max_position_embeddings=1024)
    edit(folder / "tokenizer_config.json", model_max_length=1024)

    def text(query: str, document: str, instruction: str = "") -> str:
        return (
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
            f"<|im_start|>user\n{instruction}query: {query}\ndocument: {document}\nYou are a search relevance expert "
            "who evaluates how well documents match search queries. For each query-document pair, carefully analyze "
            "the semantic relationship between them, then provide your binary relevance judgment (0 for not relevant, "
            "1 for relevant).\nRelevance:<|im_end|>\n<|im_start|>assistant\n"
        )

    pairs = [pair for pair in PAIRS if not pair[1].endswith("\n")]
    expected = by_hand(folder, [text(*pair) for pair in pairs], "1", "0")
    told = by_hand(folder, [text(*pair, "instruction: mills\n") for pair in pairs], "1", "0")
    with PoolingModel(str(folder)) as model:
        assert difference(score(model, pairs, use_activation=False), expected) <= LOGITS
        assert difference(score(model, pairs, use_activation=False, instruction="mills"), told) <= LOGITS
    assert difference(told, expected) >= FACTOR * LOGITS


def test_one_row_and_a_soft_cap(tmp_path: Path) -> None:
    """bge-reranker-v2-gemma's answer is one logit; Gemma 2 caps its logits before they are compared."""
    folder = save(tmp_path / "model", "gemma2", "CausalLM", final_logit_softcapping=2.0)
    edit(folder / "tokenizer_config.json", model_max_length=1024)
    prompt = (
        "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing "
        "a prediction of either 'Yes' or 'No'."
    )
    pairs = [pair for pair in PAIRS if not pair[1].endswith("\n")]
    texts = [f"<bos>A: {one}\nB: {other}\n{prompt}" for one, other in pairs]
    expected = by_hand(folder, texts, "Yes", None)
    with PoolingModel(str(folder), template="bge-reranker-v2-gemma") as model:
        assert difference(score(model, pairs, use_activation=False), expected) <= LOGITS
    own = tmp_path / "own.toml"
    own.write_text('pieces = ["{query} ? ", "{document} !"]\ntrue = "yes"\nfalse = "no"\n')
    expected = by_hand(folder, [f"{one} ? " for one, _ in PAIRS], "yes", "no")
    with PoolingModel(str(folder), template=str(own)) as model:
        found = score(model, use_activation=False)
    ids = [
        [*one, *other]
        for one, other in zip(
            ids_of(folder, [f"{one} ? " for one, _ in PAIRS]),
            ids_of(folder, [f"{one} !" for _, one in PAIRS]),
            strict=True,
        )
    ]
    rows = [row[-1] for row in logits_of(folder, "CausalLM", ids)]
    yes, no = (tokenizer().token_to_id(word) for word in ("yes", "no"))
    assert difference(found, [row[yes] - row[no] for row in rows]) <= LOGITS
    assert all(abs(row[yes]) <= 2 for row in rows)


def test_a_shifted_logit(tmp_path: Path) -> None:
    """jina's classifier: the logit less 2.65, then the sigmoid."""
    folder = save(tmp_path / "jina-reranker-m0", "qwen2", "SequenceClassification", num_labels=1)
    texts = [f"**Document**:\n{other}\n**Query**:\n{one}" for one, other in PAIRS]
    ids = [[*row, 100] for row in ids_of(folder, texts)]
    expected = np.array([row[0] for row in logits_of(folder, "SequenceClassification", ids)])
    with PoolingModel(str(folder)) as model:
        assert difference(score(model), sigmoid(expected - 2.65)) <= SCORES
    assert difference(sigmoid(expected), sigmoid(expected - 2.65)) >= FACTOR * SCORES


def test_a_converted_classifier_reads_the_template(tmp_path: Path) -> None:
    folder = save(
        tmp_path / "Qwen3-Reranker-seq-cls",
        "qwen3",
        "SequenceClassification",
        num_labels=1,
        max_position_embeddings=1024,
    )
    edit(folder / "tokenizer_config.json", model_max_length=1024)
    ids = ids_of(folder, [qwen3(*pair) for pair in PAIRS])
    expected = np.array([row[0] for row in logits_of(folder, "SequenceClassification", ids)])
    with PoolingModel(str(folder)) as model:
        assert difference(score(model, use_activation=False), expected) <= LOGITS


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_logit_score_checkpoints(tmp_path: Path, family: str) -> None:
    """What sentence-transformers saves, and the same without its own files."""
    plain = save(tmp_path / "plain", family, "CausalLM", chat_template=TEMPLATE)
    reference = CrossEncoder(str(plain))
    reference.save_pretrained(str(tmp_path / "saved"))
    expected = reference.predict(PAIRS)
    raw = reference.predict(PAIRS, activation_fn=torch.nn.Identity())
    told = reference.predict(PAIRS, prompt="mills")
    for folder in (tmp_path / "saved", plain):
        with PoolingModel(str(folder)) as model:
            assert difference(score(model), expected) <= SCORES
            assert difference(score(model, use_activation=False), raw) <= LOGITS
            assert difference(score(model, instruction="mills"), told) <= SCORES
            assert difference(score(model, prompt="mills"), told) <= SCORES
            assert difference(told, expected) >= FACTOR * SCORES
            long = sentence(900, 4)
            assert difference(score(model, [("a", long)]), reference.predict([("a", long)])) <= SCORES


def test_a_logit_score_without_a_false_token(tmp_path: Path) -> None:
    plain = save(tmp_path / "plain", "qwen3", "CausalLM", chat_template=TEMPLATE)
    CrossEncoder(str(plain)).save_pretrained(str(tmp_path / "saved"))
    edit(tmp_path / "saved" / "1_LogitScore" / "config.json", false_token_id=None)
    expected = CrossEncoder(str(tmp_path / "saved")).predict(PAIRS, activation_fn=torch.nn.Identity())
    with PoolingModel(str(tmp_path / "saved")) as model:
        assert difference(score(model, use_activation=False), expected) <= LOGITS


def test_an_unknown_template_is_refused_and_the_remedy_told(tmp_path: Path) -> None:
    folder = save(tmp_path / "some-reranker", "qwen3", "CausalLM")
    with pytest.raises(LoadError, match=r"'template': a \.toml file, or one of qwen3-reranker"):
        PoolingModel(str(folder))
    with pytest.raises(InvalidRequest, match=r"expected the path of a \.toml file"):
        PoolingModel(str(folder), template="nothing")
    (tmp_path / "bad.toml").write_text('pieces = ["{query}"]\n')
    with pytest.raises(InvalidRequest, match=r"has \{document\} 0 times"):
        PoolingModel(str(folder), template=str(tmp_path / "bad.toml"))
    with PoolingModel(str(folder), template="qwen3-reranker") as model:
        assert model.info.abilities.takes_instruction
    classifier = save(tmp_path / "my-reranker", "qwen3", "SequenceClassification", num_labels=1)
    with pytest.raises(LoadError, match="'plain' joins the two"):
        PoolingModel(str(classifier))
    with PoolingModel(str(classifier), template="plain") as model:
        expected = CrossEncoder(str(classifier)).predict([("a river", "lake")])
        assert difference(model.score("a river", "lake").scores, expected) <= SCORES


def test_a_chat_template_that_changes_the_texts_is_refused(tmp_path: Path) -> None:
    shouting = TEMPLATE.replace('map(attribute="content") | first', 'map(attribute="content") | first | upper')
    folder = save(tmp_path / "plain", "qwen3", "CausalLM", chat_template=shouting)
    with pytest.raises(LoadError):
        PoolingModel(str(folder))
    trimming = TEMPLATE.replace('map(attribute="content") | first', 'map(attribute="content") | first | trim')
    folder = save(tmp_path / "trims", "qwen3", "CausalLM", chat_template=trimming)
    with PoolingModel(str(folder)) as model:
        assert difference(score(model), CrossEncoder(str(folder)).predict(PAIRS)) <= SCORES


def test_the_tables_can_be_read() -> None:
    for name in ("rerankers.toml", "prompts.toml"):
        assert tomllib.loads(files("forebay.text.families").joinpath(name).read_text())
