"""The documentation holds: generated parts are up to date, examples run, links lead somewhere, no module is missing."""

import contextlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
import typer
from typer.main import get_command

from forebay.cli.main import app, run
from forebay.core.config import SEQUENCE_POOLING, TOKEN_POOLING, EngineLimits, PoolerConfig
from forebay.models.registry import ENCODERS
from scripts.gen_docs import list_bodies
from tests.support.live_server import serving

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)")
PLACE = "http://localhost:8000"
CHECKPOINTS = {
    "classifier": "BertForSequenceClassification",
    "tagger": "BertForTokenClassification",
    "language-model": "BertForMaskedLM",
}
"""The folders that examples name, and the transformers class of each."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def read_fences(language: str) -> list[tuple[str, str]]:
    return [
        (name_of(page), body) for page in PAGES for kind, body in FENCE.findall(page.read_text()) if kind == language
    ]


def read_shell_lines(command: str) -> list[str]:
    lines = [line for _, body in read_fences("sh") for line in body.splitlines()]
    return list(dict.fromkeys(line for line in lines if line.startswith(f"{command} ")))


def as_cases(fences: list[tuple[str, str]]) -> list[object]:
    return [pytest.param(body, id=f"{page}-{number}") for number, (page, body) in enumerate(fences)]


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server with the built-in model, as the examples expect one."""
    from forebay import AsyncEngine, ModelOptions

    engine = AsyncEngine.load(ModelOptions())
    with serving(engine) as where:
        yield where


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny checkpoints of the kinds that the examples name."""
    import transformers

    from tests.support import tiny

    root = tmp_path_factory.mktemp("checkpoints")
    for name, kind in CHECKPOINTS.items():
        folder = tiny.bert(root / name)
        config = transformers.AutoConfig.from_pretrained(folder)
        getattr(transformers, kind)(config).save_pretrained(folder)
    return root


@pytest.fixture
def folder(tmp_path: Path, checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files that the examples name."""
    for name in CHECKPOINTS:
        (tmp_path / name).symlink_to(checkpoints / name)
    (tmp_path / "texts.txt").write_text("a text\nanother\n")
    (tmp_path / "articles.jsonl").write_text('{"id": 7, "body": "a text"}\n{"id": 8, "body": "another"}\n')
    (tmp_path / "table.csv").write_text("id,body\n7,a text\n8,another\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_generated_parts_are_up_to_date():
    done = subprocess.run([sys.executable, ROOT / "scripts" / "gen_docs.py", "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("source", as_cases(read_fences("python")))
def test_python_examples_run(source, url, folder):
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(source.replace(PLACE, url), "<example>", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("line", read_shell_lines("curl"))
def test_curl_examples_are_answered(line, url):
    words = shlex.split(line)[1:]
    address = next(word for word in words if word.startswith("http"))
    options = dict(pairwise(words))
    header, _, value = options.get("-H", "").partition(": ")
    reply = httpx.post(address.replace(PLACE, url), content=options["-d"], headers={header: value} if header else None)
    assert reply.status_code == 200


@pytest.mark.parametrize("line", [line for line in read_shell_lines("forebay") if line.split()[1] != "serve"])
def test_command_lines_run(line, folder):
    words = shlex.split(line)
    with contextlib.redirect_stdout(io.StringIO()):
        assert run(words[1:]) == 0
    if "-o" in words:
        assert (folder / words[words.index("-o") + 1]).stat().st_size > 0


@pytest.mark.parametrize("line", read_shell_lines("forebay serve"))
def test_servers_command_lines_are_understood(line):
    group = get_command(app)
    words = shlex.split(line)[2:]
    command = group.get_command(typer.Context(group), "serve")
    assert command.make_context("serve", [*words]).params["model"] == words[0]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for path, anchor in LINK.findall(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        if anchor:
            assert anchor in {slug(line.lstrip("# ")) for line in target.read_text().splitlines() if line[:1] == "#"}


def test_every_page_can_be_reached_from_the_readme():
    seen, open_pages = set(), [ROOT / "README.md"]
    while open_pages:
        page = open_pages.pop()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            open_pages += [(page.parent / path).resolve() for path, _ in LINK.findall(page.read_text()) if path]
    assert sorted(map(name_of, set(PAGES) - seen)) == []


def test_the_architecture_names_every_module():
    """All but the members of two growing families: architectures and dialects, which generated tables list."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    package = ROOT / "forebay"
    leaves = {module.replace("forebay.", "", 1).replace(".", "/") + ".py" for module, _ in ENCODERS.values()}
    leaves |= {str(path.relative_to(package)) for path in package.glob("server/dialects/*.py")}
    modules = {str(path.relative_to(package)) for path in package.glob("*/**/*.py") if path.name != "__init__.py"}
    named = set(re.findall(r"[\w/]+\.py", text))
    assert {module for module in modules - leaves if not named & {module, Path(module).name}} == set()


def test_the_architecture_names_nothing_that_is_not_there():
    existing = {"/".join(path.relative_to(ROOT).parts[start:]) for path in ROOT.glob("*/**/*.py") for start in range(5)}
    named = set(re.findall(r"[\w/]+\.py", (ROOT / "ARCHITECTURE.md").read_text()))
    assert {name for name in named if "NAME" not in name} - existing == set()


def test_the_http_page_has_every_field():
    text = (ROOT / "docs" / "reference" / "http.md").read_text()
    table = "\n".join(line for line in text.splitlines() if line.startswith("| `"))
    names = dict.fromkeys(name for body in list_bodies() for name in body.model_fields)
    assert [name for name in names if f"`{name}`" not in table] == []


def test_the_batching_page_has_every_limit():
    text = (ROOT / "docs" / "concepts" / "batching.md").read_text()
    defaults = {name: getattr(EngineLimits(), name) for name in EngineLimits.__dataclass_fields__}
    assert [name for name, value in defaults.items() if f"| `{name}` | {value} |" not in text] == []


def test_the_pooling_page_has_every_method_and_every_override():
    text = (ROOT / "docs" / "concepts" / "pooling.md").read_text()
    names = [*SEQUENCE_POOLING, *TOKEN_POOLING, *PoolerConfig.__dataclass_fields__]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_readme_stays_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
