"""`forebay info`."""

import json

from tests.cli.fake_model import FakeModel


def test_tables_show_facts_and_decisions(cli):
    done = cli("info", "some/model")
    assert done.code == 0
    for expected in ("some/model", "FakeModel", "1,234", "8 dimensions", "256 tokens", "cosine", "query"):
        assert expected in done.out
    assert "MEAN [all]" in done.out
    assert "1_Pooling/config.json" in done.out


def test_json_holds_everything(cli):
    done = cli("info", "--json")
    facts = json.loads(done.out)
    assert facts["abilities"]["tasks"] == ["embed"]
    assert facts["abilities"]["prompts"] == {"query": "q: "}
    assert facts["decisions"] == [{"name": "pooling", "value": "MEAN [all]", "source": "1_Pooling/config.json"}]


def find_value(out, name):
    """What stands beside ``name`` in the first table."""
    (line,) = [line for line in out.splitlines() if line.startswith(f" {name}  ")]
    return line.removeprefix(f" {name}").strip()


def test_tables_show_what_a_model_can(cli):
    shown = cli("info", "language-model").out
    assert find_value(shown, "tasks") == "embed, token_embed, sparse"
    assert find_value(shown, "default task") == "embed"
    assert find_value(shown, "sparse vector") == "over 1,000 tokens"
    assert find_value(shown, "labels") == "none"
    shown = cli("info", "classifier").out
    assert find_value(shown, "default task") == "classify"
    assert (find_value(shown, "vector"), find_value(shown, "sparse vector")) == ("none", "none")
    assert find_value(shown, "labels") == "O, B-river, I-river, lake"


def test_many_labels_are_counted(cli, monkeypatch):
    monkeypatch.setattr("tests.cli.fake_model.LABELS", tuple(f"L{number}" for number in range(1012)))
    assert find_value(cli("info", "tagger").out, "labels") == "L0, L1, L2, L3, L4, L5, L6, L7, L8, L9 and 1,002 more"
    assert len(json.loads(cli("info", "tagger", "--json").out)["abilities"]["labels"]) == 1012


def test_options_reach_the_loader(cli, monkeypatch):
    seen = []
    init = FakeModel.__init__
    monkeypatch.setattr(
        FakeModel, "__init__", lambda self, *a, **options: seen.append(options) or init(self, *a, **options)
    )
    cli("info", "--runner", "pooling", "--convert", "classify", "--io-processor", "lines", "--revision", "v1")
    wanted = {"runner": "pooling", "convert": "classify", "io_processor": "lines", "revision": "v1"}
    assert wanted.items() <= seen[0].items()
