"""One engine in one process: it loads once, then answers orders over pipes, so that several can take turns.

``python -m benchmarks.peer_worker MODULE LOADER SETTINGS`` imports ``benchmarks.MODULE`` and calls its LOADER with the
settings (JSON), which returns the engine's operations by name. An order is a JSON object a line:
``{"op": name, "args": {...}, "save": path, "calls": 1}``. The answer tells the seconds that the operation took (the
median of so many calls), the process's largest resident size so far, and what it returned: an array goes to the .npy
file ``save``, anything else into the answer.
"""

import importlib
import json
import statistics
import sys
import time

import numpy as np

from benchmarks.probe import read_peak_memory


def main(module: str, loader: str, settings: str) -> None:
    operations = getattr(importlib.import_module(f"benchmarks.{module}"), loader)(**json.loads(settings))
    print(json.dumps({"seconds": 0.0, "peak": read_peak_memory(), "value": None}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        seconds = []
        for _ in range(order["calls"]):
            started = time.perf_counter()
            value = operations[order["op"]](**order["args"])
            seconds.append(time.perf_counter() - started)
        if isinstance(value, np.ndarray):
            if order["save"] is not None:
                np.save(order["save"], value)
            value = None
        answer = {"seconds": statistics.median(seconds), "peak": read_peak_memory(), "value": value}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
