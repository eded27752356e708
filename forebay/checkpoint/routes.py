"""Turns a pipeline with a Router into one straight pipeline a route, and says which texts take which.

The choice follows sentence-transformers: mappings of (task, modality) first, then the routes' own names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from forebay.checkpoint.stages import RouterStage, SpladePoolingStage, Stage, TransformerStage, features_of, name_of
from forebay.core.errors import UnsupportedCheckpoint


@dataclass(frozen=True, slots=True)
class Routes:
    """Straight pipelines by route name; a checkpoint without a Router has one, named "".

    ``default`` is the route of a text without an input type (None: it must be given), ``by_input_type`` the route
    for each input type that the checkpoint knows.
    """

    stages: Mapping[str, tuple[Stage, ...]]
    default: str | None
    by_input_type: Mapping[str, str] = field(default_factory=dict)


def expand_routes(stages: tuple[Stage, ...]) -> Routes:
    """Turn a pipeline with at most one Router into a straight pipeline for each of its routes."""
    places = [place for place, stage in enumerate(stages) if isinstance(stage, RouterStage)]
    if not places:
        _check_flow("", stages)
        return Routes({"": stages}, "")
    router = stages[places[0]]
    assert isinstance(router, RouterStage)
    if len(places) > 1 or any(isinstance(stage, RouterStage) for route in router.routes.values() for stage in route):
        raise UnsupportedCheckpoint("modules.json: the pipeline has more than one Router; Forebay reads at most one")
    before, after = stages[: places[0]], stages[places[0] + 1 :]
    straight = {name: before + route + after for name, route in router.routes.items()}
    for name, route in straight.items():
        _check_flow(name, route)
    tasks = [task for task, modality in router.mappings if task is not None and modality in (None, "text")]
    found = {task: _resolve(router, task) for task in (*tasks, *router.routes)}
    by_input_type = {task: route for task, route in found.items() if route is not None}
    return Routes(straight, _resolve(router, None), by_input_type)


def _resolve(router: RouterStage, task: str | None) -> str | None:
    """Return the route of a text of that task, by the order in which sentence-transformers looks."""
    for key in ((task, "text"), (task, None), (None, "text"), (None, None)):
        if key in router.mappings:
            return router.mappings[key]
    if task is not None:
        return task if task in router.routes else None
    return "text" if "text" in router.routes else router.default_route


def _check_flow(route: str, stages: tuple[Stage, ...]) -> None:
    """Refuse a pipeline in which a stage reads a feature that no earlier stage has written."""
    where = f"route '{route}'" if route else "modules.json"
    if not stages:
        raise UnsupportedCheckpoint(f"{where}: the pipeline has no modules that compute anything")
    features: set[str] = set()
    for place, stage in enumerate(stages):
        reads, writes = features_of(stage)
        if (reads is None) != (place == 0):
            raise UnsupportedCheckpoint(
                f"{where}: module {place} is a {name_of(stage)}; expected a Transformer, StaticEmbedding "
                "or SparseStaticEmbedding first and nowhere else"
            )
        if reads is not None and reads not in features:
            raise UnsupportedCheckpoint(
                f"{where}: module {place} ({name_of(stage)}) reads '{reads}', which no earlier module writes"
            )
        features.add(writes)
    _check_logits(where, stages)


def _check_logits(where: str, stages: tuple[Stage, ...]) -> None:
    """Refuse logits over the vocabulary that are not read by SpladePooling, and SpladePooling of anything else."""
    backbone, *rest = stages
    has_logits = isinstance(backbone, TransformerStage) and backbone.task == "fill-mask"
    places = [place for place, stage in enumerate(rest) if isinstance(stage, SpladePoolingStage)]
    if places != ([0] if has_logits else []):
        raise UnsupportedCheckpoint(
            f"{where}: {'a' if has_logits else 'no'} Transformer with the task 'fill-mask' comes first and "
            f"{len(places)} SpladePooling in all; expected one SpladePooling directly after such a Transformer"
        )
