"""The line that tells on what a measurement was made: processor, cores, packages, day."""

import datetime
import os
import platform
import re
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("torch", "forebay", "sentence-transformers", "transformers", "tokenizers", "numpy")


def describe_machine() -> str:
    import torch

    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    return (
        f"{processor()}, {len(os.sched_getaffinity(0))} cores, {torch.get_num_threads()} threads, "
        f"Python {platform.python_version()}; {versions}; {datetime.date.today().isoformat()}."
    )


def processor() -> str:
    """The processor as the kernel names it."""
    info = Path("/proc/cpuinfo").read_text()
    name = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    return name[1].strip() if name else platform.machine()
