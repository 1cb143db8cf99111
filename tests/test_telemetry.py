"""OpenTelemetry's spans of a step: how they nest, what they say, and that nothing is imported unasked."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from peelsum.allreduce import Allreduce, LocalSummation
from peelsum.telemetry import StepSpans, TelemetryError
from peelsum.wire import packet_bytes

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")
RNG = np.random.default_rng(3)
TENSORS = {"a": RNG.normal(size=1000).astype(np.float32), "b": RNG.normal(size=33).astype(np.float32)}


@pytest.fixture
def made():
    """Return a provider, and a function that returns the spans that ended."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter.get_finished_spans


def summed(made, workers=2, steps=1, **settings):
    """Sum TENSORS; return the last step's results, and the spans by worker."""
    provider, ended = made
    group = LocalSummation.group(workers)

    def run(summation):
        spans = StepSpans(provider, job=9)
        allreduce = Allreduce(summation, span=spans.span, note=spans.note, **settings)
        for _ in range(steps):
            result = allreduce.sum(TENSORS)
        return result

    with ThreadPoolExecutor(workers) as threads:
        results = list(threads.map(run, group))
    return results, ended()


def test_phases_lie_within_their_step_and_add_up_to_it(made):
    results, spans = summed(made, steps=2)
    steps = [one for one in spans if one.name == "peelsum.step"]
    assert len(steps) == 4
    for step in steps:
        within = [one for one in spans if one.parent and one.parent.span_id == step.context.span_id]
        assert {one.name for one in within} == {"peelsum.encode", "peelsum.exchange", "peelsum.decode"}
        assert all(step.start_time <= one.start_time <= one.end_time <= step.end_time for one in within)
        exchanges = [one.attributes for one in within if one.name == "peelsum.exchange"]
        for name in ("peelsum.chunks", "peelsum.bytes"):
            assert sum(one[name] for one in exchanges) == step.attributes[name] > 0
        assert step.attributes["peelsum.job"] == 9
        lanes = LocalSummation.group(1)[0].lanes
        assert step.attributes["peelsum.bytes"] == step.attributes["peelsum.chunks"] * packet_bytes(lanes)
    assert {(one.attributes["peelsum.worker"], one.attributes["peelsum.step"]) for one in steps} == {
        (worker, number) for worker in (0, 1) for number in (1, 2)
    }
    last = {one.attributes["peelsum.worker"]: one for one in steps if one.attributes["peelsum.step"] == 2}
    for worker, result in enumerate(results):
        assert last[worker].attributes["peelsum.bytes"] == result.wire_bytes


def test_sums_are_the_same_bits_as_without(made):
    results, _ = summed(made)
    plain = [Allreduce(one) for one in LocalSummation.group(2)]
    with ThreadPoolExecutor(2) as threads:
        expected = list(threads.map(lambda one: one.sum(TENSORS), plain))
    for name in TENSORS:
        for one, other in zip(results, expected, strict=True):
            assert one[name].values.tobytes() == other[name].values.tobytes()


def test_an_error_is_recorded_in_its_span(made):
    provider, ended = made
    spans = StepSpans(provider)
    (alone,) = LocalSummation.group(1)

    def fail(parts):
        raise RuntimeError("gone")

    alone.sum_words = fail
    with pytest.raises(RuntimeError, match="gone"):
        Allreduce(alone, span=spans.span, note=spans.note).sum(TENSORS)
    named = {one.name: one.status.status_code.name for one in ended()}
    assert named["peelsum.exchange"] == named["peelsum.step"] == "ERROR"


def test_neither_telemetry_nor_logs_are_imported_unless_asked():
    modules = "{'opentelemetry', 'structlog'} & {*sys.modules}"
    code = f"import peelsum.logs, peelsum.torch, sys; sys.exit(bool({modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_environment_asks(monkeypatch):
    monkeypatch.delenv("PEELSUM_SPANS", raising=False)
    assert StepSpans.of_environment() is None
    monkeypatch.setenv("PEELSUM_SPANS", "1")
    assert StepSpans.of_environment() is not None
    monkeypatch.setenv("PEELSUM_SPANS", "yes")
    with pytest.raises(TelemetryError, match="PEELSUM_SPANS: 'yes': is not known; use 1 for spans"):
        StepSpans.of_environment()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(
        TelemetryError, match=r"opentelemetry: is not installed; run: pip install 'peelsum\[otel"
    ):
        StepSpans()
