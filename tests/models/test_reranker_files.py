"""Rerankers by what their files hold: Gemma's one row, Qwen2-VL's ranker, NVIDIA's Llamas, and what tells a family."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from forebay import PoolingModel
from forebay.core.errors import InvalidRequest, LoadError
from forebay.text.families import find_reranker
from tests.models.test_llm_rerankers import (
    FACTOR,
    LOGITS,
    PAIRS,
    SCORES,
    TEMPLATE,
    by_hand,
    difference,
    qwen3,
    score,
    sigmoid,
)
from tests.support import tokenizers as lexicon
from tests.support.language_models import SIZES, SPECIALS, center_norms, edit, ids_of, logits_of, save, tokenizer
from tests.support.texts import sentence
from tests.support.tiny import randomize

PROMPT = (
    "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a "
    "prediction of either 'Yes' or 'No'."
)
CLEAN = [pair for pair in PAIRS if not pair[1].endswith("\n")]


def said(model: PoolingModel) -> dict[str, tuple[str, str]]:
    return {decision.name: (decision.value, decision.source) for decision in model.info.decisions}


def gemma(place: Path, **changes: object) -> Path:
    folder = save(place, "gemma", "CausalLM", **changes)  # type: ignore[arg-type]
    edit(folder / "tokenizer_config.json", model_max_length=1024)
    return folder


@pytest.mark.parametrize("told_by", ["_name_or_path", "classifier_from_token", "card", "title", "folder"])
def test_bge_reranker_v2_gemma(tmp_path: Path, told_by: str) -> None:
    folder = gemma(tmp_path / ("bge-reranker-v2-gemma" if told_by == "folder" else "model"))
    if told_by == "_name_or_path":
        edit(folder / "config.json", _name_or_path="BAAI/bge-reranker-v2-gemma")
    if told_by == "classifier_from_token":
        edit(folder / "config.json", classifier_from_token=["Yes"], architectures=["GemmaForSequenceClassification"])
    if told_by == "card":
        (folder / "README.md").write_text("---\nbase_model:\n- BAAI/bge-reranker-v2-gemma\n---\n# A model\n")
    if told_by == "title":
        (folder / "README.md").write_text("---\nlicense: x\n---\n<p>\n\n# bge-reranker-v2-gemma\n# Other things\n")
    expected = by_hand(folder, [f"<bos>A: {one}\nB: {other}\n{PROMPT}" for one, other in CLEAN], "Yes", None)
    with PoolingModel(str(folder)) as model:
        assert difference(score(model, CLEAN, use_activation=False), expected) <= LOGITS
        assert difference(score(model, CLEAN), sigmoid(expected)) <= SCORES
        assert said(model)["template"][0] == "bge-reranker-v2-gemma"
    assert difference(by_hand(folder, [f"{a}{b}" for a, b in CLEAN], "Yes", None), expected) >= FACTOR * LOGITS
    assert difference(by_hand(folder, [f"A: {a}\nB: {b}\n{PROMPT}" for a, b in CLEAN], "Yes", None), expected) >= (
        FACTOR * LOGITS
    ), "<bos> stands before it"


def jina(folder: Path) -> nn.Module:
    made = tokenizer()
    sizes = {**SIZES, "vocab_size": made.get_vocab_size(), "bos_token_id": 0, "eos_token_id": 2}
    config = transformers.Qwen2VLConfig(
        text_config={
            **sizes,
            "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e6},
        },
        vision_config={"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 4},
        image_token_id=made.token_to_id("<extra_0>"),
    )
    model = transformers.Qwen2VLForConditionalGeneration(config)
    model.score = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    randomize(model, 43)
    center_norms(model)
    model.save_pretrained(folder)
    tensors = {name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if "score" not in name}
    tensors |= {f"score.{name}": tensor.clone() for name, tensor in model.score.state_dict().items()}
    tensors.pop("lm_head.weight", None)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    edit(folder / "config.json", architectures=["JinaVLForRanking"])
    lexicon.save(made, folder, max_length=256, tokenizer_class="TokenizersBackend", specials=SPECIALS)
    return model.eval()


def _as_newer_versions_name_them(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    for old, new in (("model.", "model.language_model."), ("visual.", "model.visual.")):
        for name in [name for name in tensors if name.startswith(old) and not name.startswith(new)]:
            if not (old == "model." and name.startswith("model.visual.")):
                tensors[name.replace(old, new, 1)] = tensors.pop(name)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("layout", ["older", "newer"])
def test_jina_reranker_m0(tmp_path: Path, layout: str) -> None:
    """Known by its architecture; the last state behind token 100, two layers, less 2.65; the vision tower left out."""
    folder = tmp_path / "model"
    reference = jina(folder)
    if layout == "newer":
        _as_newer_versions_name_them(folder)

    def logits(rows: list[list[int]], layer: int = -1) -> np.ndarray:
        with torch.no_grad():
            states = [
                reference(input_ids=torch.tensor([row]), output_hidden_states=True).hidden_states[layer] for row in rows
            ]
            return np.array([float(reference.score(state[0, -1])) for state in states])

    texts = [f"**Document**:\n{other}\n**Query**:\n{one}" for one, other in PAIRS]
    ids = ids_of(folder, texts)
    expected = logits([[*row, 100] for row in ids])
    with PoolingModel(str(folder)) as model:
        assert difference(score(model), sigmoid(expected - 2.65)) <= SCORES
        assert difference(score(model, use_activation=False), expected - 2.65) <= LOGITS
        found = said(model)
        assert found["template"] == ("jina-reranker-m0", "config.json: architectures")
        assert found["vision"][0].startswith("not loaded: ")
        assert not found["vision"][0].startswith("not loaded: 0 ")
        with pytest.raises(InvalidRequest, match=r"documents\[1] holds a token that stands for an image"):
            score(model, [("a", "b"), ("a", "see <extra_0>")])
        with pytest.raises(InvalidRequest, match="single text"):
            model.classify("a river")
        long = score(model, [("a river", sentence(900, 4))])
        assert long.shape == (1,)
    assert difference(sigmoid(logits(ids) - 2.65), sigmoid(expected - 2.65)) >= FACTOR * SCORES, "without its token"
    assert difference(sigmoid(expected), sigmoid(expected - 2.65)) >= FACTOR * SCORES, "not shifted"
    assert difference(logits([[*row, 100] for row in ids], -2), expected) >= FACTOR * LOGITS, "without the last layer"


def bidirectional(place: Path, kind: str, **changes: object) -> Path:
    folder = save(place, "llama", kind, **changes)  # type: ignore[arg-type]
    suffix = "" if kind == "Model" else "ForSequenceClassification"
    name = f"LlamaBidirectional{suffix or 'Model'}"
    edit(folder / "config.json", model_type="llama_bidirec", architectures=[name], pooling="avg", temperature=2.0)
    return folder


def full_states(folder: Path, ids: list[list[int]], *, is_causal: bool = False) -> list[torch.Tensor]:
    """transformers' Llama with a mask that hides nothing, given explicitly."""
    config = transformers.LlamaConfig.from_pretrained(folder)
    model = transformers.LlamaModel.from_pretrained(folder, config=config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        return [
            model(
                input_ids=torch.tensor([row]),
                attention_mask=None if is_causal else torch.zeros(1, 1, len(row), len(row)),
            ).last_hidden_state[0]
            for row in ids
        ]


def as_llama(folder: Path, place: Path) -> Path:
    import shutil

    copy = Path(shutil.copytree(folder, place))
    edit(copy / "config.json", model_type="llama", architectures=["LlamaModel"], pooling=None, temperature=None)
    return copy


TEXTS = ["a river", sentence(40, 1), "the"]


def test_nvidias_bidirectional_embedder(tmp_path: Path) -> None:
    folder = bidirectional(tmp_path / "model", "Model" if hasattr(transformers, "AutoModelForModel") else "CausalLM")
    edit(folder / "config.json", architectures=["LlamaBidirectionalModel"])
    plain = as_llama(folder, tmp_path / "plain")
    ids = ids_of(folder, TEXTS)
    states = full_states(plain, ids)
    with PoolingModel(str(folder)) as model:
        found = model.embed(TEXTS).embeddings
        assert said(model)["pooling"] == ("MEAN", "config.json: pooling")
    expected = np.stack([rows.mean(0).numpy() for rows in states])
    assert difference(found, expected) <= 1e-5 * np.abs(expected).max()
    causal = np.stack([rows.mean(0).numpy() for rows in full_states(plain, ids, is_causal=True)])
    assert difference(causal, expected) >= FACTOR * 1e-5 * np.abs(expected).max()
    edit(folder / "config.json", pooling="last")
    with PoolingModel(str(folder)) as model:
        assert difference(model.embed(TEXTS).embeddings, np.stack([rows[-1].numpy() for rows in states])) <= LOGITS
    edit(folder / "config.json", pooling="cls_last")
    with pytest.raises(LoadError, match="knows avg, cls, last"):
        PoolingModel(str(folder))


def test_nvidias_bidirectional_reranker(tmp_path: Path) -> None:
    """Known by its architecture; the mean of all states, one layer, divided by the temperature."""
    folder = bidirectional(tmp_path / "model", "SequenceClassification", num_labels=1)
    states = full_states(
        as_llama(folder, tmp_path / "plain"),
        ids_of(folder, [f"<|begin_of_text|>question:{one} \n \n passage:{other}" for one, other in PAIRS]),
    )
    weight = load_file(folder / "model.safetensors")["score.weight"]
    expected = np.array([float(weight @ rows.mean(0)) / 2 for rows in states])
    with PoolingModel(str(folder)) as model:
        assert difference(score(model, use_activation=False), expected) <= LOGITS
        assert said(model)["template"] == ("nemotron-rerank", "config.json: architectures")
    assert difference([float(weight @ rows[-1]) / 2 for rows in states], expected) >= FACTOR * LOGITS
    assert difference(2 * expected, expected) >= FACTOR * LOGITS


def test_gemma2_sees_both_sides_where_its_config_says_so(tmp_path: Path) -> None:
    """Against transformers' Gemma 2 with explicit masks, and with its fused path, which obeys the flag by itself."""
    folder = save(tmp_path / "model", "gemma2", "CausalLM", sliding_window=9, use_bidirectional_attention=True)
    edit(folder / "config.json", architectures=["Gemma2Model"])
    short, long = "a river", sentence(30, 1)
    ids = ids_of(folder, [short, long])
    eager = transformers.Gemma2Model.from_pretrained(folder, attn_implementation="eager").float().eval()
    with torch.no_grad():
        states = []
        for row in ids:
            distance = torch.arange(len(row))[:, None] - torch.arange(len(row))
            hidden = torch.where(distance.abs() > 9, float("-inf"), 0.0)[None, None]
            masks = {"full_attention": torch.zeros_like(hidden), "sliding_attention": hidden}
            states.append(eager(input_ids=torch.tensor([row]), attention_mask=masks).last_hidden_state[0].mean(0))
        causal = [eager(input_ids=torch.tensor([row])).last_hidden_state[0].mean(0) for row in ids]
    expected = torch.stack(states).numpy()
    with PoolingModel(str(folder)) as model:
        found = model.embed([short, long]).embeddings
    assert difference(found, expected) <= 1e-5 * np.abs(expected).max()
    assert difference(torch.stack(causal), expected) >= FACTOR * 1e-5 * np.abs(expected).max()


def test_what_tells_a_family() -> None:
    def tell(config: dict[str, object], chat: str | None = None, *names: tuple[str, str]) -> tuple[str, str] | None:
        found = find_reranker(config, chat, names)
        return None if found is None else (found.name, found.source)

    assert tell({"is_original_qwen3_reranker": True}) == ("qwen3-reranker", "config.json: is_original_qwen3_reranker")
    tokens = {"model_type": "qwen2", "classifier_from_token": ["0", "1"]}
    assert tell(tokens) == ("mxbai-rerank-v2", "config.json: model_type, classifier_from_token")
    assert tell({"model_type": "qwen3", "classifier_from_token": ["0", "1"]}) is None
    assert tell({}, f"x {qwen3('a', 'b')}") == ("qwen3-reranker", "the text of the chat template")
    assert tell({}, None, ("its name", "my-Qwen3-Reranker")) == ("qwen3-reranker", "its name")
    config = {"architectures": ["JinaVLForRanking"]}
    assert tell(config, qwen3("a", "b"), ("its name", "mxbai-rerank-base-v2")) == (
        "jina-reranker-m0",
        "config.json: architectures",
    ), "files before names"


def test_the_checkpoints_own_template_goes_before_the_family(tmp_path: Path) -> None:
    folder = save(tmp_path / "Qwen3-Reranker", "qwen3", "CausalLM", chat_template=TEMPLATE)
    with PoolingModel(str(folder)) as model:
        assert said(model)["template"][1] == "chat template"


@pytest.mark.parametrize(
    ("changes", "card", "cause"),
    [
        ({"classifier_from_token": ["a", "b"]}, "", "classifier_from_token"),
        ({}, "---\npipeline_tag: text-ranking\n---\n", "pipeline_tag text-ranking"),
        ({"_name_or_path": "me/some-reranker"}, "", "_name_or_path, me/some-reranker"),
        ({}, "# Some Reranker\n", "README.md: title, Some Reranker"),
    ],
)
def test_one_that_is_not_known_is_refused(tmp_path: Path, changes: dict[str, object], card: str, cause: str) -> None:
    folder = save(tmp_path / "model", "qwen3", "CausalLM")
    edit(folder / "config.json", **changes)
    (folder / "README.md").write_text(card)
    with pytest.raises(LoadError, match=cause) as caught:
        PoolingModel(str(folder))
    assert "Give the option 'template'" in str(caught.value)


def test_answers_of_the_config_complete_a_template(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "qwen3", "CausalLM")
    edit(folder / "config.json", classifier_from_token=["no", "yes"], architectures=["Qwen3ForSequenceClassification"])
    (tmp_path / "own.toml").write_text('pieces = ["{query} ? {document} !"]\n')
    expected = by_hand(folder, [f"{one} ? {other} !" for one, other in PAIRS], "yes", "no")
    with PoolingModel(str(folder), template=str(tmp_path / "own.toml")) as model:
        assert difference(score(model, use_activation=False), expected) <= LOGITS


def test_a_classifier_of_many_labels_is_no_reranker(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "qwen3", "SequenceClassification", num_labels=3)
    edit(folder / "config.json", _name_or_path="Qwen/Qwen3-Reranker-0.6B")
    with PoolingModel(str(folder)) as model:
        assert model.classify("a river").scores.shape == (1, 3)


def test_single_texts_are_refused_unless_they_are_whole_templates(tmp_path: Path) -> None:
    folder = save(tmp_path / "Qwen3-Reranker", "qwen3", "CausalLM", max_position_embeddings=1024)
    edit(folder / "tokenizer_config.json", model_max_length=1024)
    text = qwen3(*PAIRS[0])
    expected = by_hand(folder, [text], "yes", "no")
    with PoolingModel(str(folder)) as model:
        with pytest.raises(InvalidRequest, match=r"input\[0\] is a single text.*use score or rerank"):
            model.classify("a river")
        for item in (text, ids_of(folder, [text], specials=False)[0]):
            found = model.classify(item, use_activation=False, add_special_tokens=False).scores
            assert difference(found[0], expected) <= LOGITS


@pytest.mark.parametrize("side", ["left", "right"])
def test_saved_padding_and_its_side_change_nothing(tmp_path: Path, side: str) -> None:
    """Nothing is padded here; what a tokenizer saved for padding and cutting must not matter."""
    plain = save(tmp_path / "plain", "qwen3", "SequenceClassification", ends="$A </s>", num_labels=2, pad_token_id=2)
    texts = ["a river", sentence(60, 2), "the"]
    expected = np.stack(logits_of(plain, "SequenceClassification", ids_of(plain, texts)))
    folder = save(tmp_path / side, "qwen3", "SequenceClassification", ends="$A </s>", num_labels=2, pad_token_id=2)
    edit(folder / "tokenizer_config.json", padding_side=side)
    file = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json")).backend_tokenizer
    file.enable_padding(direction=side, pad_id=1, pad_token="<pad>", length=80)
    file.enable_truncation(7)
    file.save(str(folder / "tokenizer.json"))
    with PoolingModel(str(folder)) as model:
        assert difference(model.classify(texts, use_activation=False).scores, expected) <= LOGITS
    with PoolingModel(str(folder), convert="embed") as model, PoolingModel(str(plain), convert="embed") as other:
        assert np.array_equal(model.embed(texts).embeddings, other.embed(texts).embeddings)
