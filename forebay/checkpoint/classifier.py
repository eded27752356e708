"""What a checkpoint says of its classifier: the labels, the kind of problem and the activation of the scores.

Knows no tensors; whether a checkpoint is a classifier at all is decided elsewhere.
"""

from collections.abc import Mapping
from typing import Any

from forebay.checkpoint.documents import Document, describe
from forebay.checkpoint.pipeline import ACTIVATION_PATH

PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
# What transformers leaves out of config.json, since it is its default.
DEFAULT_NUM_LABELS = 2


def labels_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a classifier's outputs in order, as transformers finds them at the top of a config.json."""
    document = Document("config.json", config)
    names = document.optional("id2label", dict)
    num_labels = document.size("num_labels", len(names) if names else _default_num_labels(config))
    if names is None or num_labels != len(names):
        return tuple(f"LABEL_{index}" for index in range(num_labels))
    section = document.section("id2label")
    by_id = {_label_id(section, key): _label_name(section, key) for key in names}
    if sorted(by_id) != list(range(num_labels)):
        raise document.refuse("id2label", f"has other ids than 0 to {num_labels - 1}, each once")
    return tuple(by_id[index] for index in range(num_labels))


def _default_num_labels(config: Mapping[str, Any]) -> int:
    """Rankers give one score, whatever transformers' default is."""
    names = config.get("architectures")
    is_ranker = isinstance(names, list) and bool(names) and str(names[0]).endswith("ForRanking")
    return 1 if is_ranker else DEFAULT_NUM_LABELS


def _label_id(section: Document, key: object) -> int:
    try:
        return int(str(key))
    except ValueError:
        raise section.refuse(str(key), "is the name of a label's number, expected a whole number") from None


def _label_name(section: Document, key: str) -> str:
    """Return one label; some checkpoints name them by numbers."""
    value = section.values[key]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise section.refuse(str(key), f"is {describe(value)}, expected a text")
    return str(value)


def problem_type_of(config: Mapping[str, Any]) -> str | None:
    """Return the kind of problem that a config.json names, None where it names none."""
    document = Document("config.json", config)
    value = document.optional("problem_type", str)
    if value is not None and value not in PROBLEM_TYPES:
        raise document.refuse("problem_type", f"is {describe(value)}, expected one of {', '.join(PROBLEM_TYPES)}")
    return value


def find_activation(saved: Document | None, config: Document) -> tuple[str | None, str]:
    """Return the dotted path of the activation that a checkpoint names for its scores, and where it does.

    ``saved`` is the sentence-transformers file, which counts only beside a modules.json; ``config`` is config.json,
    where releases before 5.4 wrote it and those before 4.0 under another name.
    """
    section = config.section("sentence_transformers")
    places = [] if saved is None else [(saved, "activation_fn")]
    if "activation_fn" in section.values:
        places.append((section, "activation_fn"))
    else:
        places.append((config, "sbert_ce_default_activation_function"))
    for document, name in places:
        value = document.optional(name, str)
        if value is not None:
            return _checked(document, name, value), f"{document.label}: {name}"
    return None, ""


def _checked(document: Document, name: str, value: str) -> str:
    if not ACTIVATION_PATH.fullmatch(value):
        raise document.refuse(name, f"is {describe(value)}; Forebay runs classes of torch.nn.modules only")
    return value
