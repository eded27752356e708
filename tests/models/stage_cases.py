"""One row a kind of pipeline: its modules, and the modules of a mistake that must be seen.

Rows say what is built and compared; the tests beside them say how.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from tests.support import pipelines as p
from tests.support.tiny import HIDDEN

Maker = Callable[[Path], Sequence[nn.Module]]


@dataclass(frozen=True)
class StageCase:
    """``schemas`` are those that can say it; ``options`` go to both libraries' embed, ``changes`` to the config."""

    name: str
    modules: Maker
    mistake: Maker
    schemas: tuple[p.Schema, ...] = ("old", "new")
    options: dict[str, Any] = field(default_factory=dict)
    family: str = "bert"
    changes: dict[str, Any] = field(default_factory=dict)


def _pooled(*modes: str, **more: Any) -> Maker:
    return lambda backbone: [p.transformer(backbone), p.pooling(*modes, **more)]


def _mean_and(*makers: Callable[[], nn.Module]) -> Maker:
    return lambda backbone: [p.transformer(backbone), p.pooling("mean"), *(make() for make in makers)]


def _tanh(size_in: int = HIDDEN, size_out: int = 48, **more: Any) -> Callable[[], nn.Module]:
    return lambda: p.dense(size_in, size_out, activation=nn.Tanh(), **more)


def _activated(activation: nn.Module) -> Maker:
    return _mean_and(lambda: p.dense(HIDDEN, 24, activation=activation))


def _layers(start: int, *weights: float, num_layers: int = 3) -> Maker:
    return lambda backbone: [
        p.transformer(backbone, config_kwargs={"output_hidden_states": True}),
        p.weighted_layers(num_layers, start=start, weights=weights),
        p.pooling("mean"),
    ]


WITH_PROMPT = {"prompt": "search query: "}
NEW_ONLY: tuple[p.Schema, ...] = ("new",)

MODES: tuple[StageCase, ...] = (
    StageCase("mean", _pooled("mean"), _pooled("cls")),
    StageCase("cls", _pooled("cls"), _pooled("mean")),
    StageCase("cls, not last", _pooled("cls"), _pooled("lasttoken")),
    StageCase("max", _pooled("max"), _pooled("mean")),
    StageCase("mean_sqrt_len_tokens", _pooled("mean_sqrt_len_tokens"), _pooled("mean")),
    StageCase("weightedmean", _pooled("weightedmean"), _pooled("mean")),
    StageCase("lasttoken", _pooled("lasttoken"), _pooled("cls")),
    StageCase("lasttoken of RoBERTa", _pooled("lasttoken"), _pooled("mean"), family="roberta"),
    StageCase("cls of MPNet", _pooled("cls"), _pooled("mean"), family="mpnet"),
    StageCase("cls and mean", _pooled("cls", "mean"), _pooled("mean", "cls")),
    StageCase("max, mean and last", _pooled("max", "mean", "lasttoken"), _pooled("mean", "max", "lasttoken")),
    StageCase("mean before cls", _pooled("mean", "cls"), _pooled("cls", "mean"), NEW_ONLY),
    StageCase(
        "all six modes",
        _pooled("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"),
        _pooled("cls", "max", "mean", "weightedmean", "mean_sqrt_len_tokens", "lasttoken"),
    ),
)

PROMPTED: tuple[StageCase, ...] = tuple(
    StageCase(
        f"{mode} of {family} without the prompt",
        _pooled(mode, include_prompt=False),
        _pooled(mode),
        options=WITH_PROMPT,
        family=family,
    )
    for mode, family in (
        ("mean", "bert"),
        ("mean", "roberta"),
        ("mean", "xlm-roberta"),
        ("cls", "bert"),
        ("max", "bert"),
        ("mean_sqrt_len_tokens", "bert"),
        ("weightedmean", "bert"),
    )
)

CHAINS: tuple[StageCase, ...] = (
    StageCase("dense with tanh", _mean_and(_tanh()), _mean_and(_tanh(seed=33))),
    StageCase("dense with tanh, not identity", _mean_and(_tanh()), _mean_and(lambda: p.dense(HIDDEN, 48))),
    StageCase("dense with identity", _mean_and(lambda: p.dense(HIDDEN, 48)), _mean_and(_tanh())),
    StageCase("dense with GELU", _activated(nn.GELU()), _activated(nn.ReLU())),
    StageCase("dense with ReLU", _activated(nn.ReLU()), _activated(nn.Identity())),
    StageCase(
        "dense without bias",
        _mean_and(lambda: p.dense(HIDDEN, 48, bias=False)),
        _mean_and(lambda: p.dense(HIDDEN, 48, bias=True)),
    ),
    StageCase(
        "a chain of two",
        _mean_and(lambda: p.dense(HIDDEN, 56, seed=31), lambda: p.dense(56, HIDDEN, seed=32), p.normalize),
        _mean_and(p.normalize),
    ),
    StageCase(
        "a chain with tanh between",
        _mean_and(_tanh(HIDDEN, 56), lambda: p.dense(56, HIDDEN, seed=32), p.normalize),
        _mean_and(lambda: p.dense(HIDDEN, 56), lambda: p.dense(56, HIDDEN, seed=32), p.normalize),
    ),
    StageCase(
        "dense behind normalize",
        _mean_and(p.normalize, _tanh()),
        _mean_and(_tanh(), p.normalize),
    ),
    StageCase("dense, then normalize", _mean_and(_tanh(), p.normalize), _mean_and(p.normalize, _tanh())),
    StageCase(
        "residual of the same size",
        _mean_and(_tanh(HIDDEN, HIDDEN, use_residual=True)),
        _mean_and(_tanh(HIDDEN, HIDDEN)),
        NEW_ONLY,
    ),
    StageCase(
        "residual of another size",
        _mean_and(_tanh(HIDDEN, 48, use_residual=True)),
        _mean_and(_tanh(HIDDEN, 48)),
        NEW_ONLY,
    ),
    StageCase("normalize", _mean_and(p.normalize), _mean_and()),
    StageCase("no normalize", _mean_and(), _mean_and(p.normalize)),
    StageCase("layer norm", _mean_and(p.layer_norm), _mean_and(lambda: p.layer_norm(seed=23))),
    StageCase("layer norm, then normalize", _mean_and(p.layer_norm, p.normalize), _mean_and(p.normalize)),
    StageCase("dropout", _mean_and(p.dropout, p.normalize), _mean_and(p.dropout)),
    StageCase(
        "dense over tokens",
        lambda backbone: [
            p.transformer(backbone),
            p.dense(HIDDEN, 48, activation=nn.Tanh(), module_input_name="token_embeddings"),
            p.pooling("mean", dimension=48),
        ],
        _mean_and(_tanh()),
        NEW_ONLY,
    ),
    StageCase(
        "layers weighted from the second",
        _layers(1, 0.5, 2.0, 1.0, num_layers=3),
        _layers(1, 1.0, 1.0, 1.0, num_layers=3),
        changes={"num_hidden_layers": 3},
    ),
    StageCase(
        "layers weighted from the embeddings on",
        _layers(0, 3.0, 0.5, 2.0, 1.0, num_layers=3),
        _layers(1, 0.5, 2.0, 1.0, num_layers=3),
        changes={"num_hidden_layers": 3},
    ),
)

CASED = {"uncased": False}


def _lowered(backbone: Path) -> Sequence[nn.Module]:
    return [p.transformer(backbone, do_lower_case=True), p.pooling("mean")]


READING: tuple[StageCase, ...] = (
    StageCase(
        "a shorter limit",
        lambda backbone: [p.transformer(backbone, max_seq_length=16), p.pooling("mean")],
        _pooled("mean"),
    ),
    StageCase("lower-casing", _lowered, _pooled("mean"), ("old",), changes=CASED),
    StageCase("cased", _pooled("mean"), _lowered, changes=CASED),
)
