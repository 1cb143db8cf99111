"""The hook in PyTorch's own tools: profiler and compiler, and in Python's logging and pip."""

import gc
import logging
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_training as training
from packaging.requirements import Requirement
from torch.profiler import ProfilerActivity, profile
from torch_alone import Sums, hooked, in_time, layers

import peelsum.torch
from peelsum.telemetry import StepSpans
from peelsum.torch import HookConfigError, SwitchAllreduceState
from peelsum.torch.stats import step_spans

ROOT = Path(__file__).parents[2]
INPUT = torch.ones(2, 6)


# profiler


def profiled(ddp, **options):
    """How often each range of ours was entered in a backward pass."""
    with profile(activities=[ProfilerActivity.CPU], **options) as seen:
        ddp(INPUT).sum().backward()
    ours = [one for one in seen.key_averages() if one.key.startswith("peelsum::")]
    return {one.key.removeprefix("peelsum::"): one.count for one in ours}


def test_spans_of_a_backward_pass(alone, monkeypatch):
    """The environment asks for them; the program chooses where they go."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="opentelemetry-sdk is not installed")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(StepSpans, "of_environment", lambda: StepSpans(provider))
    step_spans.cache_clear()
    state = SwitchAllreduceState(over=Sums(), forms="dense")
    try:
        ddp = hooked(state, layers())
        for _ in range(2):
            ddp(INPUT).sum().backward()
        state.close()
    finally:
        step_spans.cache_clear()
    spans = exporter.get_finished_spans()
    names = {one.name.removeprefix("peelsum.") for one in spans}
    assert names == {"step", "encode", "exchange", "decode", "wait"}
    steps = [one for one in spans if one.name == "peelsum.step"]
    assert all(one.attributes["peelsum.bytes"] > 0 for one in steps)


def test_spans_that_cannot_be_made_are_refused_at_once(monkeypatch):
    monkeypatch.setenv("PEELSUM_SPANS", "2")
    step_spans.cache_clear()
    with pytest.raises(
        HookConfigError, match="PEELSUM_SPANS: '2': is not known; use 1 for spans, 0 for none"
    ):
        SwitchAllreduceState(over="gloo")
    step_spans.cache_clear()


def test_ranges_in_a_profile_of_all_threads(alone):
    """Each exchange comes between words that are written and words that are read."""
    state = SwitchAllreduceState(over=Sums(), forms="dense")
    ddp = hooked(state, layers())
    ddp(INPUT).sum().backward()
    buckets, calls = state.stats().buckets, state._sums.queue.backend.calls
    everything = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    ranges = profiled(ddp, experimental_config=everything)
    assert set(ranges) == {"step", "encode", "exchange", "decode", "wait"}
    assert ranges["wait"] == state.stats().buckets - buckets > 1
    assert ranges["exchange"] == state._sums.queue.backend.calls - calls
    assert 1 < ranges["encode"] == ranges["decode"] <= ranges["exchange"]


def test_a_profile_of_the_training_thread_has_what_it_waited_for(alone):
    state = SwitchAllreduceState(over=Sums())
    ranges = profiled(hooked(state, layers()))
    assert ranges == {"wait": state.stats().buckets}


# logging


LINE = re.compile(
    r"step (\d+): ([\d.]+) MB a step, [\d.]+ times less than dense; ms a step: encode [\d.]+, "
    r"exchange [\d.]+, decode [\d.]+, waited for [\d.]+; gradients that were not finite: (\d+)"
)


def test_statistics_of_every_second_step(alone, caplog):
    """Each line is about the steps since the last; two modules of one pass are in the same."""
    state = SwitchAllreduceState(over=Sums(), log_every=2, forms="dense")
    both = [hooked(state, layers()) for _ in range(2)]
    sent = [0]
    with caplog.at_level(logging.INFO, logger="peelsum.torch"):
        for step in range(6):
            scale = float("inf") if step == 3 else 1.0
            for ddp in both:
                ddp.zero_grad()
            in_time(lambda scale=scale: (scale * sum(ddp(INPUT).sum() for ddp in both)).backward())
            if step % 2:
                sent.append(state.stats().wire_bytes)
    lines = [LINE.fullmatch(record.message) for record in caplog.records if record.name == "peelsum.torch"]
    assert [line[1] for line in lines] == ["2", "4", "6"]
    assert [line[2] for line in lines] == [f"{one / 2e6:.3f}" for one in np.diff(sent)]
    assert [int(line[3]) > 0 for line in lines] == [False, True, False]


def test_nothing_is_logged_unasked(alone, caplog):
    gc.collect()  # states of other tests may say that no gradient came to them
    caplog.clear()
    ddp = hooked(state := SwitchAllreduceState(over=Sums()), layers())
    with caplog.at_level(logging.INFO, logger="peelsum.torch"):
        in_time(lambda: ddp(INPUT).sum().backward())
    assert state.stats().steps == 1
    assert caplog.records == []


# torch.compile


@pytest.mark.parametrize("outside", [True, False], ids=["around DDP", "in DDP"])
def test_a_compiled_module_trains_with_the_same_bits(alone, outside):
    """As traced and differentiated ahead of time, but with torch's own kernels."""
    trained = []
    for compiling in (True, False):
        torch.manual_seed(7)
        module = training.Text()
        if compiling and not outside:
            module = torch.compile(module, backend="aot_eager")
        ddp = torch.nn.parallel.DistributedDataParallel(module)  # torch's compiler takes no small buckets
        state = SwitchAllreduceState(over=Sums())
        called = torch.compile(ddp, backend="aot_eager") if compiling and outside else ddp
        losses = (training.step_loss(called, 0, step) for step in range(4))
        trained.append(training.descend(ddp, state, losses))
        assert state.stats().steps == 4
        state.close()
    np.testing.assert_array_equal(*trained)


# versions


def _beside(version, by):
    major, minor = version.split(".")
    return f"{major}.{int(minor) + by}"


@pytest.mark.parametrize(
    ("version", "warned"), [("2.8.1", 1), ("2.9.0", 0), ("2.15.1+cpu", 0), ("2.16.0a0", 1), ("3.0.0", 1)]
)
def test_a_version_that_was_not_tested_is_told_in_one_warning(version, warned, recwarn):
    peelsum.torch.check_version(version)
    said = f"torch: {version} was not tested; peelsum's tests ran with 2.9 to 2.15"
    assert [str(one.message) for one in recwarn] == [said] * warned


def test_pages_name_the_versions_that_were_tested():
    first, last = (".".join(map(str, version)) for version in peelsum.torch.TESTED)
    for page in ("docs/how-to/install.md", "docs/reference/torch.md"):
        assert f"torch {first} to {last}" in (ROOT / page).read_text(encoding="utf-8"), page


def test_the_versions_of_torch_that_pip_takes_are_those_tested():
    """They are named once, and no version before or after them is among them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [Requirement(one) for extra in project["optional-dependencies"].values() for one in extra]
    ranges = [one.specifier for one in named if one.name == "torch"]
    (specifier,) = ranges
    first, last = (".".join(map(str, version)) for version in peelsum.torch.TESTED)
    for version in (f"{first}.0", f"{last}.9", torch.__version__):
        assert specifier.contains(version)
    for version in (f"{_beside(first, -1)}.9", f"{_beside(last, 1)}.0"):
        assert not specifier.contains(version)
