"""The table of dialects: the one place that names them all."""

from forebay.server.dialect import Dialect
from forebay.server.dialects.openai import OPENAI

DIALECTS: tuple[Dialect, ...] = (OPENAI,)
"""The first one's errors also answer paths that belong to no dialect."""
