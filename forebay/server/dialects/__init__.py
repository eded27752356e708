"""The table of dialects: the one place that names them all."""

from forebay.server.dialect import Dialect
from forebay.server.dialects.openai import OPENAI
from forebay.server.dialects.rerank import RERANK
from forebay.server.dialects.score import SCORE
from forebay.server.dialects.tei import TEI
from forebay.server.dialects.vllm import VLLM

DIALECTS: tuple[Dialect, ...] = (OPENAI, VLLM, SCORE, RERANK, TEI)
"""The first one's errors also answer paths that belong to no dialect."""
