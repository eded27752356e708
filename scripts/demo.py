"""The demo: starts a server with the built-in model, sends it a few texts, shows what comes back, stops the server.

It uses HTTP as any client would; nothing of the package is imported.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from rich.console import Console
from rich.table import Table

TEXTS = [
    "How do I reset my password?",
    "I can't log in to my account any more.",
    "The forebay is the water that waits in front of a turbine.",
    "A reservoir feeds the hydroelectric plant.",
    "Knead the dough and let it rest for an hour.",
]
START_SECONDS = 120


def find_free_port() -> int:
    """Ask the system for a port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(url: str, server: "subprocess.Popen[bytes]") -> None:
    """Wait for /readyz; stop if the server ends before."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urlopen(f"{url}/readyz", timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError("the server did not become ready")


def embed(url: str, texts: list[str]) -> list[list[float]]:
    """Ask the OpenAI-compatible route for vectors."""
    body = json.dumps({"model": "default", "input": texts}).encode()
    with urlopen(Request(f"{url}/v1/embeddings", body, {"Content-Type": "application/json"}), timeout=60) as answer:
        reply: dict[str, Any] = json.load(answer)
    return [item["embedding"] for item in reply["data"]]


def dot(left: list[float], right: list[float]) -> float:
    """Return the cosine of two vectors of unit length."""
    return sum(a * b for a, b in zip(left, right, strict=True))


def show(vectors: list[list[float]]) -> None:
    """Print the head of each vector, and how alike the texts are."""
    console = Console()
    table = Table("", "text", f"the first of {len(vectors[0])} numbers", title="Vectors", title_justify="left")
    for number, (text, vector) in enumerate(zip(TEXTS, vectors, strict=True), 1):
        table.add_row(str(number), text, " ".join(f"{value:+.3f}" for value in vector[:4]))
    console.print(table)
    table = Table("", *(str(number) for number in range(1, len(TEXTS) + 1)), title="Cosine similarity")
    for number, left in enumerate(vectors, 1):
        cosines = (dot(left, right) for right in vectors)
        table.add_row(str(number), *(f"[bold]{c:.2f}[/bold]" if c > 0.3 else f"{c:.2f}" for c in cosines))
    console.print(table)


def main() -> int:
    """Run the demo."""
    port = find_free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "forebay", "serve", "default", "--port", str(port)]
    environment = {name: value for name, value in os.environ.items() if name != "FOREBAY_API_KEY"}
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            print(f"+ forebay serve default --port {port}", flush=True)
            wait_until_ready(url, server)
            print(f"+ POST {url}/v1/embeddings with {len(TEXTS)} texts", flush=True)
            show(embed(url, TEXTS))
        except (RuntimeError, OSError) as error:
            log.seek(0)
            print(f"error: {error}; the server said:\n{log.read().decode(errors='replace')}", file=sys.stderr)
            return 1
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=60)
    print("+ the server has stopped; `.venv/bin/forebay serve` starts one that stays")
    return 0


if __name__ == "__main__":
    sys.exit(main())
