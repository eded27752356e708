"""Which checkpoints are rerankers made of language models, how they read a pair, and which tokens are their answers.

The order: the user's template, the checkpoint's own chat template, a known family's by the checkpoint's name. Where
nothing says how a reranker reads a pair the load fails, since without its template it would score at random.
"""

from dataclasses import replace

from tokenizers import Tokenizer

from forebay.checkpoint.pipeline import LogitScoreStage, Stage, TransformerStage
from forebay.checkpoint.spec import ModelSpec, architectures_of
from forebay.core.config import ModelOptions
from forebay.core.errors import InvalidRequest, UnsupportedCheckpoint
from forebay.loading.resolve import trained_for
from forebay.models.registry import is_decoder
from forebay.text.chat import read_chat_template, read_pair_template
from forebay.text.families import RerankerFamily, find_reranker, list_families, load_reranker

PLAIN = "plain"
"""The option's word for a pair as the tokenizer itself puts it together."""

_YES, _NO = "yes", "no"


def choose_reranker(stages: tuple[Stage, ...], spec: ModelSpec, options: ModelOptions) -> RerankerFamily | None:
    """Return how a checkpoint reads pairs, None where it is no language model or no reranker."""
    backbone = stages[0]
    if options.template == PLAIN or options.convert == "embed" or not isinstance(backbone, TransformerStage):
        return None
    is_generator = trained_for(architectures_of(backbone.config)) == "generate"
    is_classifier = trained_for(architectures_of(backbone.config)) == "sequence" and is_decoder(backbone.config)
    if options.template is not None:
        if not (is_generator or is_classifier or backbone.task == "text-generation"):
            raise InvalidRequest(
                "template is for rerankers that are language models, and this checkpoint is none; leave it out",
                field="template",
            )
        return _with_answers(load_reranker(options.template), stages)
    found = _from_checkpoint(backbone, spec, options, is_generator=is_generator, is_classifier=is_classifier)
    if found is None and backbone.task == "text-generation":
        raise _unknown("LogitScore follows its backbone, but no chat template has the roles 'query' and 'document'")
    return None if found is None else _with_answers(found, stages)


def _from_checkpoint(
    backbone: TransformerStage, spec: ModelSpec, options: ModelOptions, *, is_generator: bool, is_classifier: bool
) -> RerankerFamily | None:
    if backbone.chat is not None:
        chat = _from_chat_template(backbone)
        if chat is not None:
            return chat
    if not (is_generator or is_classifier) or not (spec.is_default_pipeline or backbone.task != "feature-extraction"):
        return None
    names = _names(backbone, spec, options)
    family = find_reranker(names)
    if family is not None:
        return family
    if is_generator and (chat := _from_chat_template(backbone)) is not None:
        return chat
    if any("rerank" in name.lower() for name in names) or backbone.chat is not None:
        raise _unknown(f"its name ({names[0]}) says that it is a reranker")
    return None


def _from_chat_template(backbone: TransformerStage) -> RerankerFamily | None:
    variables = backbone.chat.variables if backbone.chat is not None else {}
    source = read_chat_template(backbone.folder, variables)
    if source is None:
        return None
    is_structured = backbone.chat is not None and backbone.chat.is_structured
    template = read_pair_template(source, backbone.folder, variables, is_structured=is_structured)
    if template is None:
        return None
    return RerankerFamily("the checkpoint's chat template", template, _YES, _NO, source="chat template")


def _with_answers(family: RerankerFamily, stages: tuple[Stage, ...]) -> RerankerFamily:
    """The checkpoint's own answers where it names them."""
    score = next((stage for stage in stages if isinstance(stage, LogitScoreStage)), None)
    return family if score is None else replace(family, true=score.true_id, false=score.false_id)


def _names(backbone: TransformerStage, spec: ModelSpec, options: ModelOptions) -> list[str]:
    """What a checkpoint is called: by its user, by its folder, by its files."""
    stored = backbone.config.get("_name_or_path")
    given = "/".join(options.model.replace("\\", "/").rstrip("/").split("/")[-2:])
    return [given, spec.path.name, *([stored] if isinstance(stored, str) else [])]


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
