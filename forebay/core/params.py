"""What a request may ask of a task, checked once against what the model can do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from forebay.core.errors import InvalidRequest
from forebay.core.tasks import Task


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a loaded model can do; the border checks requests against it.

    ``dimension`` is the vectors' full size, ``default_dimension`` what a request gets that does not ask for
    ``dimensions``. ``max_len`` counts tokens, special ones included. ``matryoshka`` lists the sizes that
    ``dimensions`` may take where the checkpoint names them; where it does not, any up to ``dimension`` may be asked.
    """

    tasks: tuple[Task, ...]
    dimension: int
    default_dimension: int
    max_len: int
    vocab_size: int
    matryoshka: tuple[int, ...] | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    routes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TextParams:
    """How texts become tokens.

    ``prompt`` is text put before each item; ``prompt_name`` picks one of the checkpoint's prompts; ``input_type``
    (``query``, ``document``) picks the prompt and, in asymmetric models, the route that the checkpoint
    has for that side. None of them: the checkpoint's default prompt. ``max_tokens`` lowers the model's limit.
    """

    prompt: str | None = None
    prompt_name: str | None = None
    input_type: str | None = None
    truncate: bool = True
    truncation_side: Literal["left", "right"] | None = None
    max_tokens: int | None = None
    add_special_tokens: bool = True

    def check(self, abilities: Abilities) -> None:
        """Raise InvalidRequest where a field does not fit the model."""
        if self.prompt is not None and self.prompt_name is not None:
            raise InvalidRequest("'prompt' and 'prompt_name' exclude each other; send one", field="prompt_name")
        if self.prompt_name is not None and self.prompt_name not in abilities.prompts:
            known = ", ".join(f"'{name}'" for name in abilities.prompts) or "none"
            raise InvalidRequest(
                f"unknown prompt '{self.prompt_name}'; this model has: {known}. Use 'prompt' to give the text itself",
                field="prompt_name",
            )
        if self.max_tokens is not None and not 1 <= self.max_tokens <= abilities.max_len:
            raise InvalidRequest(
                f"max_tokens is {self.max_tokens}, but this model reads 1 to {abilities.max_len} tokens",
                field="max_tokens",
            )


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """What is to be made of the hidden states.

    ``dimensions`` slices the vector and then normalises it again where the vector is normalised at all;
    ``use_activation`` overrides that normalisation: True for unit length, False for the raw vector, None for
    what the checkpoint says.
    """

    task: Task = Task.EMBED
    dimensions: int | None = None
    use_activation: bool | None = None

    def check(self, abilities: Abilities) -> None:
        """Raise InvalidRequest where a field does not fit the task or the model."""
        if self.task not in abilities.tasks:
            known = ", ".join(f"'{task}'" for task in abilities.tasks)
            raise InvalidRequest(f"this model does not support the task '{self.task}'; it has {known}", field="task")
        size, full = self.dimensions, abilities.dimension
        if size is None or size == full:
            return
        if not 1 <= size <= full:
            raise InvalidRequest(
                f"dimensions is {size}, but this model's vectors have {full}; ask for 1 to {full}", field="dimensions"
            )
        if abilities.matryoshka is not None and size not in abilities.matryoshka:
            known = ", ".join(str(known_size) for known_size in abilities.matryoshka)
            raise InvalidRequest(
                f"dimensions is {size}, but this model was trained for {known} and {full}", field="dimensions"
            )
