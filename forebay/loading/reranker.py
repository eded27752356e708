"""Which checkpoints are rerankers made of language models, how they read a pair, and which tokens are their answers.

The order: the user's template, the checkpoint's own chat template, a known family's: by the checkpoint's config, by
what its chat template says, by the names in its files, and at last by its own name. Where nothing says how a reranker
reads a pair the load fails, since without its template it would score at random. Classifiers of pairs that are no
language models have the first two.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokenizers import Tokenizer

from forebay.checkpoint.card import Card, read_card
from forebay.checkpoint.classifier import labels_of
from forebay.checkpoint.pipeline import LogitScoreStage, Stage, TransformerStage
from forebay.checkpoint.spec import ModelSpec, architectures_of
from forebay.core.config import ModelOptions
from forebay.core.errors import InvalidRequest, UnsupportedCheckpoint
from forebay.loading.resolve import makes_scores, trained_for
from forebay.models.registry import is_decoder
from forebay.text.chat import is_structured, names_roles, read_chat_template, read_pair_template
from forebay.text.families import RerankerFamily, find_reranker, list_families, load_reranker

PLAIN, CHAT = "plain", "chat"
"""The option's words for a pair as the tokenizer itself puts it together, and for the checkpoint's chat template."""

_YES, _NO = "yes", "no"


def choose_reranker(stages: tuple[Stage, ...], spec: ModelSpec, options: ModelOptions) -> RerankerFamily | None:
    """Return how a checkpoint reads pairs, None where it is no language model or no reranker."""
    backbone = stages[0]
    if options.template == PLAIN or options.convert == "embed" or not isinstance(backbone, TransformerStage):
        return None
    trained = trained_for(architectures_of(backbone.config))
    is_generator = trained == "generate" or bool(named_answers(backbone.config))
    is_classifier = trained == "sequence" and is_decoder(backbone.config)
    reads_pairs = trained == "sequence" or backbone.task != "feature-extraction" or makes_scores(stages)
    if options.template is not None:
        if not (is_generator or reads_pairs):
            raise InvalidRequest(
                "template is for rerankers that are language models and for classifiers of pairs, and this checkpoint "
                "is none; leave it out",
                field="template",
            )
        return _with_answers(_wanted(options.template, backbone), stages)
    has_roles = is_generator or _may_have_roles(backbone, spec, reads_pairs=reads_pairs)
    found = _from_chat_template(backbone) if has_roles else None
    may_be_one = is_generator or (is_classifier and len(labels_of(backbone.config)) == 1)
    if found is None and may_be_one and (spec.is_default_pipeline or backbone.task != "feature-extraction"):
        found = _from_files(backbone, spec, options, is_generator=is_generator)
    if found is None and backbone.task == "text-generation":
        raise _unknown("LogitScore follows its backbone, but no chat template has the roles 'query' and 'document'")
    if found is None and backbone.chat is not None:
        raise _unread(reads_pairs=reads_pairs)
    return None if found is None else _with_answers(found, stages)


def _wanted(template: str, backbone: TransformerStage) -> RerankerFamily:
    if template != CHAT:
        return load_reranker(template)
    found = _from_chat_template(backbone)
    if found is None:
        raise InvalidRequest(
            f"template is '{CHAT}', but this checkpoint has no chat template with a place for each of the roles "
            "'query' and 'document'; give a .toml file, or leave it out",
            field="template",
        )
    return found


def _may_have_roles(backbone: TransformerStage, spec: ModelSpec, *, reads_pairs: bool) -> bool:
    """Whether a classifier of pairs reads them by its chat template: the files say so, or the template alone does."""
    if backbone.chat is not None or not spec.is_default_pipeline or not reads_pairs:
        return backbone.chat is not None and reads_pairs
    source = read_chat_template(backbone.folder, {})
    return source is not None and len(labels_of(backbone.config)) == 1 and names_roles(source)


def _unread(*, reads_pairs: bool) -> UnsupportedCheckpoint:
    """Why a chat template that the files ask for is not used."""
    reason = "has no place for each of the roles 'query' and 'document', once, or is not there"
    if not reads_pairs:
        reason = "would have to render single texts, which Forebay does not do"
    return UnsupportedCheckpoint(
        "sentence_bert_config.json: 'modality_config' has 'message', so texts pass the checkpoint's chat template, but "
        f"it {reason}. Give the option 'template': a .toml file for pairs, or '{PLAIN}' to read texts without it"
    )


def _from_files(
    backbone: TransformerStage, spec: ModelSpec, options: ModelOptions, *, is_generator: bool
) -> RerankerFamily | None:
    """The family that the checkpoint's files or its names tell; where they tell only that it is one, the load fails."""
    variables = backbone.chat.variables if backbone.chat is not None else {}
    card = read_card(backbone.folder)
    names = _names(backbone, spec, options, card)
    family = find_reranker(backbone.config, read_chat_template(backbone.folder, variables), names)
    if family is not None:
        return family
    if backbone.chat is not None:
        raise _unknown("its sentence-transformers files ask for a chat template with the roles 'query' and 'document'")
    if not is_generator and _is_read_plainly(backbone):
        return None
    if named_answers(backbone.config):
        raise _unknown("config.json: classifier_from_token")
    if card.task == "text-ranking":
        raise _unknown("README.md: pipeline_tag text-ranking")
    for source, name in names:
        if "rerank" in name.lower():
            raise _unknown(f"{source}, {name}")
    return None


def _is_read_plainly(backbone: TransformerStage) -> bool:
    """A classifier of pairs that sentence-transformers saved, without a word of a template: as its tokenizer joins."""
    return backbone.task == "sequence-classification" or isinstance(backbone.config.get("sentence_transformers"), dict)


def named_answers(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the tokens that a config names as its answers, the true one last; vLLM reads them from there too."""
    tokens = config.get("classifier_from_token")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens) or len(tokens) not in (1, 2):
        return ()
    return tuple(tokens)


def _from_chat_template(backbone: TransformerStage) -> RerankerFamily | None:
    variables = backbone.chat.variables if backbone.chat is not None else {}
    source = read_chat_template(backbone.folder, variables)
    if source is None:
        return None
    form = backbone.chat.is_structured if backbone.chat is not None else None
    if form is None:
        form = is_structured(source, backbone.config.get("model_type"))
    template = read_pair_template(source, backbone.folder, variables, is_structured=form)
    if template is None:
        return None
    return RerankerFamily("the checkpoint's chat template", template, _YES, _NO, source="chat template")


def _with_answers(family: RerankerFamily, stages: tuple[Stage, ...]) -> RerankerFamily:
    """The checkpoint's own answers where it names them."""
    score = next((stage for stage in stages if isinstance(stage, LogitScoreStage)), None)
    if score is not None:
        return replace(family, true=score.true_id, false=score.false_id)
    backbone = stages[0]
    answers = named_answers(backbone.config) if isinstance(backbone, TransformerStage) else ()
    if family.true is None and answers:
        return replace(family, true=answers[-1], false=answers[0] if len(answers) == 2 else None)
    return family


def _names(backbone: TransformerStage, spec: ModelSpec, options: ModelOptions, card: Card) -> list[tuple[str, str]]:
    """What a checkpoint is called: by its files, then by its folder and its user."""
    given = "/".join(options.model.replace("\\", "/").rstrip("/").split("/")[-2:])
    stored = backbone.config.get("_name_or_path")
    found = [
        ("config.json: _name_or_path", stored),
        ("README.md: base_model", card.base),
        ("README.md: title", card.title),
    ]
    named = [(source, name) for source, name in found if isinstance(name, str)]
    return [*named, ("the checkpoint's name", given), ("the folder's name", spec.path.name)]


def _unknown(reason: str) -> UnsupportedCheckpoint:
    known = ", ".join(list_families()[0])
    return UnsupportedCheckpoint(
        f"this language model is a reranker ({reason}), but how it reads a pair is not known, and with a wrong "
        f"template its scores mean nothing. Give the option 'template': a .toml file, or one of {known}; '{PLAIN}' "
        "joins the two texts of a classifier as the tokenizer does; convert 'embed' makes an embedder of it"
    )


def answer_ids(family: RerankerFamily, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids of the answers: of the true one, and of the false one where there is one."""
    if family.true is None:
        raise InvalidRequest(
            f"the template {family.name} names no answer ('true'), so it fits classifiers only", field="template"
        )
    answers = [family.true, *([] if family.false is None else [family.false])]
    return tuple(token_id(tokenizer, answer) for answer in answers)


def token_id(tokenizer: Tokenizer, token: str | int) -> int:
    """Return the id of one token, by its name in the vocabulary or as what its text alone is."""
    if isinstance(token, int):
        return token
    found = tokenizer.token_to_id(token)
    if found is not None:
        return found
    ids: list[int] = tokenizer.encode(token, add_special_tokens=False).ids
    if len(ids) != 1:
        raise UnsupportedCheckpoint(
            f"the answer '{token}' is no single token of this checkpoint's tokenizer; give a template of its own"
        )
    return ids[0]
