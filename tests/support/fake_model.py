"""A LoadedModel around a FakeModel and a small tokenizer: the whole of the Python API, without a checkpoint."""

from typing import Any

from forebay.core.info import Decision, ModelInfo
from forebay.core.params import Abilities
from forebay.core.tasks import Task
from forebay.loading.assemble import LoadedModel
from forebay.text.prompts import Prompts
from tests.support.engine import CPU, FakeModel, make_pipeline
from tests.support.text import text_tokenizer

MAX_LEN = 64


def loaded_model(model: FakeModel, **changes: Any) -> LoadedModel:
    """The mean of token ids and positions, of texts read by the small BERT tokenizer."""
    abilities = Abilities(
        tasks=(Task.EMBED, Task.TOKEN_EMBED),
        default_task=Task.EMBED,
        dimension=3,
        default_dimension=3,
        max_len=MAX_LEN,
        vocab_size=1000,
        prompts={"query": "search "},
    )
    info = ModelInfo(
        name="fake",
        path="nowhere",
        architecture="FakeModel",
        dtype="float32",
        device="cpu",
        abilities=abilities,
        prompts=abilities.prompts,
        default_prompt_name=None,
        similarity="cosine",
        num_parameters=0,
        decisions=(Decision("pooling", "MEAN", "default"),),
    )
    parts: dict[str, Any] = {
        "info": info,
        "device": CPU,
        "prompts": Prompts(abilities.prompts),
        "texts": {"": text_tokenizer("bert", MAX_LEN)},
        "pipelines": {"": make_pipeline(model)},
        "default_route": "",
        "route_of_input_type": {},
    }
    return LoadedModel(**{**parts, **changes})
