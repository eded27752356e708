"""Fills the generated parts of the documentation from the code: what stands between ``generated`` markers.

A page asks for a block by a pair of lines, ``<!-- generated:NAME -->`` and ``<!-- generated:end -->``; BLOCKS below
tells which there are. ``--check`` writes nothing and fails where a page is out of date.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Never

import typer
from typer.main import get_command

import forebay.cli.inputs  # noqa: F401  (its errors belong to the table)
from forebay.api.model import PoolingModel
from forebay.checkpoint.pipeline import STAGES
from forebay.cli.main import app as cli_app
from forebay.core.config import ServerOptions
from forebay.core.errors import ForebayError, LoadError
from forebay.core.tasks import ALLOWED_PARAMS, COMPOSED_TASKS, REMOVED_TASKS, Task
from forebay.layers.activation import ACTIVATIONS
from forebay.loading.plan import _METHOD_OF_MODE as METHOD_OF_MODE
from forebay.loading.resolve import SUFFIXES
from forebay.models.registry import ENCODERS
from forebay.pooling.methods import METHODS
from forebay.server import dialects
from forebay.server.app import create_app
from forebay.server.dialects import DIALECTS
from forebay.server.fields import ArraysBody, ItemsBody
from forebay.server.metrics import Metrics
from forebay.server.schema import Body

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(<!-- generated:(?!end)(\S+) -->\n).*?(<!-- generated:end -->)", re.DOTALL)

HEAD_WORDS = {
    "sequence": "classifier",
    "token": "tagger",
    "masked_lm": "language model",
    "score": "classifier",
    "reward": "reward model",
    "ranking": "reranker with a head of two layers",
    "lm_rows": "reranker by the answers of a language model",
}
KIND_WORDS = {
    "embed": "an embedder",
    "sequence": "a classifier of texts",
    "token": "a classifier of tokens",
    "masked_lm": "an embedder whose language model's head gives sparse vectors too",
    "generate": "refused, unless `convert` says what to make of it",
}


def to_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out a Markdown table."""
    lines = [header, ["---"] * len(header), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def first_line(thing: object) -> str:
    """Return the first sentence of a docstring, in one line."""
    paragraph = " ".join((thing.__doc__ or "").split("\n\n")[0].split())
    return re.sub(r"``([^`]*)``", r"`\1`", paragraph)


def code(*words: str) -> str:
    """Mark words as code."""
    return ", ".join(f"`{word}`" for word in words)


def make_cli() -> str:
    """Every command with its usage, arguments and options."""
    group = get_command(cli_app)
    context = typer.Context(group, info_name="forebay")
    parts = []
    for name in group.list_commands(context):  # type: ignore[attr-defined]
        command = group.get_command(context, name)  # type: ignore[attr-defined]
        inner = typer.Context(command, info_name=name, parent=context)
        usage = " ".join(["forebay", name, *command.collect_usage_pieces(inner)])
        records = [param.get_help_record(inner) for param in command.get_params(inner)]
        rows = [[code(what), meaning] for what, meaning in filter(None, records)]
        parts.append(f"## forebay {name}\n\n{command.help}\n\n```\n{usage}\n```\n\n{to_table(['', 'meaning'], rows)}")
    return "\n".join(parts)


def list_errors(root: type[ForebayError] = ForebayError) -> Iterator[type[ForebayError]]:
    """Yield the package's error classes, each after the one it belongs to."""
    yield root
    for error in root.__subclasses__():
        if error.__module__.startswith("forebay."):
            yield from list_errors(error)


def make_errors() -> str:
    """The error tree as a table."""
    rows = []
    for error in list_errors():
        is_sent = not issubclass(error, LoadError) and not error.__module__.startswith("forebay.cli")
        depth = len(error.__mro__) - len(ForebayError.__mro__)
        rows.append(
            [
                "· " * depth + code(error.__name__),
                code(error.code),
                str(error.status) if is_sent else "–",
                first_line(error),
            ]
        )
    return to_table(["error", "`code`", "HTTP status", "meaning"], rows)


def make_architectures() -> str:
    """The table of encoders, with the trained heads that each can carry."""
    rows = []
    for kind, (module, name) in ENCODERS.items():
        heads = ", ".join(HEAD_WORDS[head] for head in getattr(import_module(module), name).heads)
        rows.append([code(kind), code(name), code(module.replace(".", "/") + ".py"), heads or "–"])
    return to_table(["`model_type` in config.json", "class", "file", "heads"], rows)


def make_kinds() -> str:
    """What a checkpoint without modules.json is taken for, by its architecture's name."""
    return to_table(
        ["architecture ends in", "taken for"], [[code(end), KIND_WORDS[kind]] for end, kind in SUFFIXES.items()]
    )


def make_tasks() -> str:
    """The outputs that can be asked for."""
    rows = []
    for task in Task:
        parts, method = COMPOSED_TASKS.get(task), getattr(PoolingModel, task, None)
        if parts is not None:
            rows.append([code(task), code("encode"), "", " and ".join(parts)])
        elif method is not None:
            rows.append([code(task), code(method.__name__), code(*sorted(ALLOWED_PARAMS[task])), first_line(method)])
    return to_table(["task", "method", "parameters", ""], rows)


def make_methods() -> str:
    """The table of pooling methods by their names in checkpoints."""
    modes = {method: mode for mode, method in METHOD_OF_MODE.items()}
    return to_table(["method", "in a Pooling module"], [[code(name), code(modes[name])] for name in METHODS])


def make_stages() -> str:
    """The modules of checkpoints that are understood."""
    return code(*STAGES) + "\n"


def make_activations() -> str:
    """The activation functions that a config.json may name."""
    return code(*ACTIVATIONS) + "\n"


def make_removed_tasks() -> str:
    """Names that are refused, with what to use."""
    return to_table(["name", "instead"], [[code(name), remedy] for name, remedy in REMOVED_TASKS.items()])


def make_routes() -> str:
    """Every path of the server."""
    asked = {path: dialect.name for dialect in DIALECTS for path in dialect.routes()}
    rows = []
    for route in create_app(ServerOptions(), load=refuse_to_load).routes:
        path: str = route.path  # type: ignore[attr-defined]
        endpoint: object = route.endpoint  # type: ignore[attr-defined]
        method, what = ("POST", f"{asked[path]} dialect") if path in asked else ("GET", first_line(endpoint))
        rows.append([method, code(path), what])
    return to_table(["", "path", ""], rows)


def refuse_to_load(*_: object) -> Never:
    """Stand where a server has its loader; an app that is not started does not call it."""
    raise AssertionError("the documentation needs no model")


def list_bodies() -> Iterator[type[Body]]:
    """Yield the bodies that the dialects declare."""
    for found in iter_modules(dialects.__path__, f"{dialects.__name__}."):
        module = import_module(found.name)
        for thing in vars(module).values():
            if isinstance(thing, type) and issubclass(thing, Body) and thing.__module__ == module.__name__:
                yield thing


def make_bodies() -> str:
    """What each route takes beside the shared fields."""
    shared = {ItemsBody: "those of items", ArraysBody: "those of items and arrays"}
    parts = [
        "Items: " + code(*ItemsBody.model_fields) + ".\n\n",
        "Arrays: " + code(*(name for name in ArraysBody.model_fields if name not in ItemsBody.model_fields)) + ".\n\n",
    ]
    rows = []
    for body in list_bodies():
        base = next((kind for kind in (ArraysBody, ItemsBody) if issubclass(body, kind)), None)
        own = [name for name in body.model_fields if base is None or name not in base.model_fields]
        rows.append([first_line(body), shared[base] if base is not None else "–", code(*own) or "–"])
    return "".join(parts) + to_table(["", "shared fields", "its own"], rows)


def make_metrics() -> str:
    """Every series of our own."""
    families = [family for family in Metrics().registry.collect() if family.name.startswith("forebay_")]
    rows = [
        [code(family.name + "_total" * (family.type == "counter")), family.type, family.documentation]
        for family in families
    ]
    return to_table(["series", "kind", "meaning"], rows)


BLOCKS: dict[str, Callable[[], str]] = {
    "activations": make_activations,
    "architectures": make_architectures,
    "bodies": make_bodies,
    "cli": make_cli,
    "errors": make_errors,
    "kinds": make_kinds,
    "methods": make_methods,
    "metrics": make_metrics,
    "removed-tasks": make_removed_tasks,
    "routes": make_routes,
    "stages": make_stages,
    "tasks": make_tasks,
}


def list_pages() -> list[Path]:
    """Every page that may hold blocks."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def fill(page: str) -> str:
    """Return a page with all its blocks made anew; an unknown block is a KeyError."""
    return BLOCK.sub(lambda match: f"{match[1]}{BLOCKS[match[2]]()}{match[3]}", page)


def main() -> int:
    """Write, or check, every page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page is out of date")
    options = parser.parse_args()
    stale = {path: fresh for path in list_pages() if (fresh := fill(text := path.read_text())) != text}
    for path, fresh in stale.items():
        if options.check:
            print(f"{path.relative_to(ROOT)} is out of date; run scripts/gen_docs.py", file=sys.stderr)
        else:
            path.write_text(fresh)
            print(f"{path.relative_to(ROOT)} was renewed")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
