import pytest
from prometheus_client.parser import text_string_to_metric_families

from forebay.core.events import RequestDone, RequestDropped, StepDone
from forebay.core.request import Timings
from forebay.server.metrics import Metrics


def samples(metrics: Metrics) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_a_step():
    metrics = Metrics()
    metrics.observe(StepDone(3, 512, 2048, 0.001, 0.25, 0, 0))
    found = samples(metrics)
    assert (found["forebay_step_tokens_sum"], found["forebay_step_sequences_sum"]) == (512, 3)
    assert (found["forebay_step_fill_ratio_sum"], found["forebay_step_fill_ratio_count"]) == (0.25, 1)
    assert (found["forebay_forward_seconds_sum"], found["forebay_pack_seconds_sum"]) == (0.25, 0.001)
    assert metrics.last_step > 0


def test_an_answered_request():
    metrics = Metrics()
    metrics.observe(RequestDone(5, 100, 2, 1, Timings(0.5, 0.25, 2.0)))
    found = samples(metrics)
    assert (found["forebay_tokenize_seconds_sum"], found["forebay_queue_seconds_sum"]) == (0.5, 0.25)
    assert found["forebay_compute_seconds_sum"] == 2.0
    names = ("items", "tokens", "truncated_items", "failed_items")
    assert [found[f"forebay_{name}_total"] for name in names] == [5, 100, 2, 1]


def test_dropped_requests():
    metrics = Metrics()
    metrics.observe(RequestDropped("cancelled", 5))
    metrics.observe(RequestDropped("deadline_exceeded", 2))
    found = samples(metrics)
    assert found["forebay_dropped_requests_total[cancelled]"] == 1
    assert found["forebay_dropped_requests_total[deadline_exceeded]"] == 1
    assert found["forebay_cancelled_items_total"] == 5


def test_http():
    metrics = Metrics()
    metrics.count_request("/v1/embeddings", 200, 0.5)
    metrics.count_request("/v1/embeddings", 429, 0.25)
    metrics.count_error("overloaded")
    metrics.count_reply(0.125)
    metrics.watch_queue(lambda: (3, 42))
    metrics.note_reserved(5, 640)
    found = samples(metrics)
    assert found["forebay_requests_total[/v1/embeddings][200]"] == 1
    assert found["forebay_requests_total[/v1/embeddings][429]"] == 1
    assert found["forebay_request_seconds_sum[/v1/embeddings]"] == 0.75
    assert found["forebay_errors_total[overloaded]"] == 1
    assert found["forebay_reply_seconds_sum"] == 0.125
    assert (found["forebay_queued_sequences"], found["forebay_queued_tokens"]) == (3, 42)
    assert (found["forebay_kv_blocks"], found["forebay_kv_bytes"]) == (5, 640)


@pytest.mark.parametrize("number", [1, 2])
def test_every_app_has_its_own(number):
    metrics = Metrics()
    metrics.count_error("x")
    assert samples(metrics)["forebay_errors_total[x]"] == 1
