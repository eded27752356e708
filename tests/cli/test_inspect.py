"""`forebay info`."""

import json


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
