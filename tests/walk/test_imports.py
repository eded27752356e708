"""What stays out of a process that serves a model: it costs seconds at every start."""

import subprocess
import sys

HEAVY = ("torch._dynamo", "sympy", "transformers", "scipy", "pandas", "pyarrow")

SERVE_ONE = f"""
import sys
from forebay import PoolingModel
with PoolingModel("default") as model:
    model.embed("a text")
print([name for name in {HEAVY!r} if name in sys.modules])
"""


def test_loading_and_embedding_import_nothing_heavy():
    ran = subprocess.run([sys.executable, "-c", SERVE_ONE], capture_output=True, text=True, check=True, timeout=300)
    assert ran.stdout.strip() == "[]"
