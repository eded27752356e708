"""`forebay serve` passes every option on."""

import sys
import types
from dataclasses import fields

import pytest

from forebay.core.config import EngineLimits, ModelOptions, PoolerConfig, ServerOptions


@pytest.fixture
def served(monkeypatch):
    calls = []

    def serve(model, limits, options):
        calls.append((model, limits, options))
        return 3

    module = types.ModuleType("forebay.server.app")
    module.serve = serve
    monkeypatch.setitem(sys.modules, "forebay.server.app", module)
    import forebay.server

    monkeypatch.setattr(forebay.server, "app", module, raising=False)
    return calls


def test_defaults_are_those_of_the_configuration(cli, served):
    assert cli("serve").code == 3
    assert served == [(ModelOptions(), EngineLimits(), ServerOptions())]


def test_every_option_reaches_its_field(cli, served, monkeypatch):
    monkeypatch.setenv("FOREBAY_API_KEY", "secret")
    cli(
        "serve", "some/model", "--host", "0.0.0.0", "--port", 0, "--served-name", "a", "--served-name", "b",
        "--dtype", "bfloat16", "--device", "cuda:1", "--max-model-len", 100, "--revision", "v1", "--cache-dir", "/c",
        "--runner", "pooling", "--convert", "embed", "--io-processor", "lines",
        "--prompts", "e5", "--template", "plain",
        "--pooler-config", '{"pooling_type": "CLS", "use_activation": false, "dimensions": 4}',
        "--max-step-tokens", 7, "--max-queued-tokens", 8, "--max-passes", 9, "--max-lane-wait", 0.5,
        "--max-items", 10, "--max-body-mb", 2, "--max-bodies-mb", 3, "--request-timeout", 11,
        "--drain-seconds", 12, "--bulk-items", 13,
        "--no-enable-chunked-prefill", "--no-enable-prefix-caching", "--prefix-cache-tokens", 14, "--block-size", 15,
    )  # fmt: skip
    model, limits, options = served[0]
    pooler = PoolerConfig(pooling_type="CLS", use_activation=False, dimensions=4)
    assert model == ModelOptions(
        "some/model", "v1", "bfloat16", "cuda:1", 100, pooler, "/c", "pooling", "embed", "lines", "e5", "plain"
    )
    assert limits == EngineLimits(7, 8, 9, 0.5, False, False, 14, 15)
    assert options == ServerOptions("0.0.0.0", 0, ("a", "b"), "secret", 2 << 20, 3 << 20, 10, 13, 11.0, 12.0)


def test_no_field_was_forgotten(cli, served):
    """The test above names them all: a new field must come with its option."""
    assert [len(fields(kind)) for kind in (ModelOptions, EngineLimits, ServerOptions)] == [12, 8, 10]
