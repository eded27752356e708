"""What holds of the tree as a whole: file sizes, public names, the version."""

import re
from pathlib import Path

import pytest

import forebay

ROOT = Path(__file__).parents[1]
MAX_LINES = 400
FILES = sorted(path for folder in ("forebay", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py"))


def count_lines(path):
    return len(path.read_text().splitlines())


def test_files_stay_small(capsys):
    sizes = {str(path.relative_to(ROOT)): count_lines(path) for path in FILES}
    with capsys.disabled():  # so that growth is seen
        package = {name: lines for name, lines in sizes.items() if name.startswith("forebay/")}
        print(f"\nforebay: {sum(package.values())} lines in {len(package)} files, the longest {max(package.values())}")
    assert {name: lines for name, lines in sizes.items() if lines > MAX_LINES} == {}


@pytest.mark.parametrize("name", forebay.__all__)
def test_public_names_can_be_imported(name):
    assert getattr(forebay, name) is not None


def test_public_names_are_sorted_and_single():
    assert forebay.__all__ == sorted(set(forebay.__all__))


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        forebay.nonsense  # noqa: B018


def test_the_changelog_begins_with_this_version():
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert versions[0] == forebay.__version__
