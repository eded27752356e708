"""Which prompt stands before a text: the request's own, a named one of the checkpoint, or its default."""

from collections.abc import Mapping
from dataclasses import dataclass

from forebay.core.params import TextParams

# The names under which checkpoints store the prompt of each side, in the order in which they are tried.
INPUT_TYPE_PROMPTS: dict[str, tuple[str, ...]] = {
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}


@dataclass(frozen=True, slots=True)
class Prompts:
    """The checkpoint's prompts, without empty placeholders."""

    texts: Mapping[str, str]
    default_name: str | None = None

    def choose(self, params: TextParams) -> str:
        """Return the text that is put before each item of a request ("" for none)."""
        if params.prompt is not None:
            return params.prompt
        if params.prompt_name is not None:
            return self.texts[params.prompt_name]
        if params.input_type is not None:
            names = INPUT_TYPE_PROMPTS.get(params.input_type, (params.input_type,))
            found = next((self.texts[name] for name in names if name in self.texts), None)
            if found is not None:
                return found
        return self.texts[self.default_name] if self.default_name is not None else ""
