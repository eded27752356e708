"""Prometheus metrics of one app, in its own registry, shaped like the engine: steps, queue, tokens, stations.

It learns of the engine's work through events (on the engine's threads) and of HTTP's through ``count``.
"""

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from forebay.core.events import Event, RequestDone, RequestDropped, StepDone

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
TOKENS = tuple(float(2**exponent) for exponent in range(3, 18))
ITEMS = tuple(float(2**exponent) for exponent in range(13))
FILL = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)


class Metrics:
    """All series of one app. ``last_step`` is the moment (``time.monotonic``) of the latest forward pass."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.last_step = float("-inf")
        ProcessCollector(registry=self.registry)
        self._make_engine_series()
        self._make_http_series()

    def _make_engine_series(self) -> None:
        seconds, counter = self._seconds, self._counter
        self._queue = seconds("queue", "a request waited from admission to its first step")
        self._tokenize = seconds("tokenize", "a request's tokenizing took")
        self._compute = seconds("compute", "a request spent from its first step to its last")
        self._forward = seconds("forward", "a step's forward pass took")
        self._pack = seconds("pack", "a step's packing took")
        self._step_tokens = self._histogram("step_tokens", "Tokens of a step", TOKENS)
        self._step_sequences = self._histogram("step_sequences", "Sequences of a step", ITEMS)
        self._step_fill = self._histogram("step_fill_ratio", "Tokens of a step, as a share of its budget", FILL)
        self._queued_sequences = self._gauge("queued_sequences", "Sequences that wait")
        self._queued_tokens = self._gauge("queued_tokens", "Tokens that wait")
        self._prefix_tokens = counter("prefix_tokens", "Tokens that were found computed in the prefix cache")
        self._kv_blocks = self._gauge("kv_blocks", "Blocks for keys and values; 0 for a model that keeps none")
        self._kv_bytes = self._gauge("kv_bytes", "Bytes that are reserved for keys and values")
        self._held_blocks = self._gauge("held_kv_blocks", "Blocks that the latest step's sequences held")
        self._items = counter("items", "Items that were answered")
        self._tokens = counter("tokens", "Tokens of answered requests")
        self._truncated = counter("truncated_items", "Items that were cut to the model's length")
        self._failed = counter("failed_items", "Items whose computation failed")
        self._dropped = counter("dropped_requests", "Requests that ended without an answer", "reason")
        self._cancelled = counter("cancelled_items", "Items whose client went away")

    def _make_http_series(self) -> None:
        self._requests = self._counter("requests", "HTTP requests", "route", "status")
        self._errors = self._counter("errors", "HTTP requests that ended in an error", "code")
        self._request = self._seconds("request", "an HTTP request took in all", "route")
        self._reply = self._seconds("reply", "a reply's encoding took")
        self.under_way = self._gauge("requests_under_way", "HTTP requests that are being answered")

    def _seconds(self, name: str, what: str, *labels: str) -> Histogram:
        return self._histogram(f"{name}_seconds", f"Seconds that {what}", SECONDS, *labels)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"forebay_{name}", text, labels, buckets=buckets, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"forebay_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"forebay_{name}", text, registry=self.registry)

    def observe(self, event: Event) -> None:
        """Take in one event of the engine."""
        match event:
            case StepDone():
                self._observe_step(event)
            case RequestDone():
                self._queue.observe(event.timings.queue)
                self._tokenize.observe(event.timings.tokenize)
                self._compute.observe(event.timings.compute)
                self._items.inc(event.num_items)
                self._tokens.inc(event.num_tokens)
                self._truncated.inc(event.num_truncated)
                self._failed.inc(event.num_failed)
            case RequestDropped():
                self._dropped.labels(event.kind).inc()
                if event.kind == "cancelled":
                    self._cancelled.inc(event.num_items)

    def _observe_step(self, step: StepDone) -> None:
        self.last_step = time.monotonic()
        self._forward.observe(step.forward_seconds)
        self._pack.observe(step.pack_seconds)
        self._step_tokens.observe(step.num_tokens)
        self._step_sequences.observe(step.num_sequences)
        self._step_fill.observe(step.num_tokens / step.budget)
        self._prefix_tokens.inc(step.prefix_tokens)
        self._held_blocks.set(step.held_blocks)

    def note_reserved(self, num_blocks: int, num_bytes: int) -> None:
        """Take in what a loaded model has reserved for keys and values."""
        self._kv_blocks.set(num_blocks)
        self._kv_bytes.set(num_bytes)

    def watch_queue(self, count_queued: Callable[[], tuple[int, int]]) -> None:
        """Read the queue's depth whenever the metrics are asked for."""
        self._queued_sequences.set_function(lambda: count_queued()[0])
        self._queued_tokens.set_function(lambda: count_queued()[1])

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count one HTTP request that has ended."""
        self._requests.labels(route, str(status)).inc()
        self._request.labels(route).observe(seconds)

    def count_error(self, code: str) -> None:
        """Count one HTTP request that ended in an error."""
        self._errors.labels(code).inc()

    def count_reply(self, seconds: float) -> None:
        """Note how long a reply's encoding took."""
        self._reply.observe(seconds)

    def render(self) -> bytes:
        """All series in Prometheus' text format."""
        return generate_latest(self.registry)
