"""The dialect of vLLM's ``/score``: how well texts match, pair by pair, in the order in which they came.

It knows the words of that API; the engine behind it only as ScoreRequest and ScoreReply.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from forebay.core.errors import InvalidRequest
from forebay.core.info import ModelInfo
from forebay.core.request import ScoreReply
from forebay.core.sides import SideName
from forebay.server.dialect import Answer, Dialect, Operation, ScoreCall, Served
from forebay.server.dialects.openai import render_error
from forebay.server.envelope import answer_list
from forebay.server.pairs import PairOptions, check_scores, name_side, read_side
from forebay.server.schema import read

PAIRS = (("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2"))
"""The names that the two sides of a comparison may have."""


def parse_score(body: Mapping[str, Any], info: ModelInfo) -> ScoreCall:
    """Read the body of ``POST /score``."""
    first, second = _names(body)
    options = read(PairOptions, body)
    request = options.request(read_side(body[first], first), read_side(body[second], second), info)
    names = name_side(body, first), name_side(body, second)
    return ScoreCall(request, partial(_render, documents=names[1]), *names)


def _names(body: Mapping[str, Any]) -> tuple[str, str]:
    given = [pair for pair in PAIRS if any(body.get(name) is not None for name in pair)]
    whole = [pair for pair in given if all(body.get(name) is not None for name in pair)]
    if len(whole) == 1 and all(body.get(name) is None or name in whole[0] for pair in given for name in pair):
        return whole[0]
    known = ", ".join(f"'{first}' and '{second}'" for first, second in PAIRS)
    found = "two of them are there" if len(whole) > 1 else "none is complete"
    field = next((name for name in given[0] if body.get(name) is None), given[0][0]) if given else "queries"
    raise InvalidRequest(f"send both sides of the comparison by one pair of names of {known}; {found}", field=field)


def _render(reply: ScoreReply, served: Served, *, documents: SideName) -> Answer:
    check_scores(reply, documents)
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(reply.scores.tolist())]
    return answer_list("score", data, reply, served)


SCORE = Dialect(name="score", operations=(Operation("/score", parse_score),), render_error=render_error)
