"""Draw a strategy's decisions over the steps of a training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from peelsum.flexible.history import DecidedStep
from peelsum.flexible.methods import CARRIERS, METHODS


def draw(figure: Any, history: Sequence[DecidedStep]) -> None:
    """Plot method, ratio, exchange time, link rate and latency over steps on an empty matplotlib `Figure`.

    Steps in which the strategy tried out a ratio are shaded. Raises ValueError if `history` is empty.
    """
    if not history:
        raise ValueError("history: is empty; train some steps first")
    steps = [one.step for one in history]
    method, ratio, time, rate, latency = figure.subplots(5, 1, sharex=True)
    used = [name for name in METHODS if any(one.method == name for one in history)]
    method.step(steps, [used.index(one.method) for one in history], where="mid")
    method.set_yticks(range(len(used)), used)
    method.set_ylim(-0.5, len(used) - 0.5)
    ratio.step(steps, [one.ratio for one in history], where="mid")
    time.plot(steps, [1e3 * one.exchange_s for one in history])
    for carrier in CARRIERS:
        known = [(one.step, one.links[carrier]) for one in history if carrier in one.links]
        at = [step for step, _ in known]
        rate.plot(at, [link.gbps for _, link in known], label=carrier)
        latency.plot(at, [1e3 * link.latency_s for _, link in known], label=carrier)
    for axes, label in (
        (ratio, "ratio"),
        (time, "exchange (ms)"),
        (rate, "Gbit/s"),
        (latency, "latency (ms)"),
    ):
        axes.set(ylabel=label, yscale="log")
    for axes in figure.axes:
        for one in history:
            if one.exploring:
                axes.axvspan(one.step - 0.5, one.step + 0.5, color="0.9", linewidth=0)
    rate.legend(frameon=False)
    latency.set(xlabel="step")
