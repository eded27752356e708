"""One library in a process of its own: seconds from its import to the first vector, and the most memory it ever held.

``python -m benchmarks.probe PEER FOLDER BATCH_SIZE`` reads texts as a JSON list from standard input and prints JSON.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Probe(NamedTuple):
    """``peak_bytes`` is the largest resident size of the process, the interpreter and torch included."""

    start_seconds: float
    peak_bytes: int


def probe(peer: str, folder: str, batch_size: int | None, texts: Sequence[str]) -> Probe:
    """Run the probe in a fresh process; nothing else of this process should be at work meanwhile."""
    command = [sys.executable, "-m", "benchmarks.probe", peer, folder, str(batch_size or 0)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    root = Path(__file__).parents[1]
    done = subprocess.run(
        command, input=json.dumps(texts), stdout=subprocess.PIPE, text=True, check=True, cwd=root, env=environment
    )
    return Probe(*json.loads(done.stdout.splitlines()[-1]))


def read_peak_memory() -> int:
    """The kernel's own mark of this address space; ru_maxrss would begin with that of the parent process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def main(peer: str, folder: str, batch_size: str) -> None:
    texts = json.load(sys.stdin)
    started = time.perf_counter()
    from benchmarks.peers import PEERS

    model = PEERS[peer](folder)
    model.embed(["first"])
    start_seconds = time.perf_counter() - started
    model.batch_size = int(batch_size) or None
    if texts:
        model.embed(texts)
    print(json.dumps(Probe(start_seconds, read_peak_memory())))
    model.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
