"""Figures of one simulated allreduce, in virtual time or by formula."""

from __future__ import annotations

from typing import Any

from peelsum.simulation import Job, NetworkSection, Scenario, TimersSection, simulate
from peelsum.simulation.cost_model import estimate
from peelsum.simulation.flows import run_collective
from peelsum.simulation.slot_model import run_protocol
from peelsum.simulation.slot_protocols import PROTOCOLS

#: Timers for round trips of microseconds, in place of those for a host's system calls.
QUICK = TimersSection(
    first_answer=2e-3, resend_least=1e-4, resend_most=5e-3, need=5e-4, need_most=2e-2, reply_gap=5e-5
)


def scenario_of(
    workers: int,
    *,
    elements: int = 1 << 20,
    gbps: float = 100.0,
    loss: float = 0.0,
    timers: TimersSection = QUICK,
    one_switch: bool = False,
) -> Scenario:
    """Return a scenario of one job, in as few racks of 32 as hold it."""
    racks = 1 if one_switch else max(1, -(-workers // 32))
    job = Job(workers=workers, elements=elements, timers=timers)
    return Scenario(network=NetworkSection(racks=racks, gbps=gbps, loss=loss), jobs=(job,))


def measured(scenario: Scenario, algorithm: str) -> dict[str, Any]:
    """Simulate one allreduce packet by packet. Raises SimulationError if the algorithm is unknown."""
    if algorithm == "peelsum":
        report = simulate(scenario)
        jobs = report.jobs
        return figures(
            scenario,
            max(one.seconds for one in jobs),
            in_switch=sum(one.in_switch for one in jobs) / len(jobs),
            resends=sum(one.resends for one in jobs),
            octets=report.octets,
            wrong=sum(one.wrong for one in jobs),
        )
    if algorithm in PROTOCOLS:
        found: Any = run_protocol(scenario, algorithm, PROTOCOLS[algorithm])
    else:
        found = run_collective(scenario, algorithm)
    share = getattr(found, "in_switch", None)
    counts = {"resends": found.resends, "octets": found.octets, "wrong": found.wrong}
    return figures(scenario, found.seconds, in_switch=share, **counts)


def figures(scenario: Scenario, seconds: float, **others: Any) -> dict[str, Any]:
    """Return the figures of a sum that takes so many seconds; counts that are not given are 0."""
    goodput = 32 * scenario.jobs[0].elements / seconds / 1e9
    none = {"in_switch": None, "resends": 0, "octets": 0, "wrong": 0}
    return {**none, **others, "seconds": seconds, "goodput_gbps": goodput}


def by_formula(workers: int, algorithm: str, elements: int = 1 << 20) -> dict[str, Any]:
    """Return the figures of a formula. More than 1,024 workers are in racks of as many as 32 racks need."""
    racks = min(max(1, -(-workers // 32)), 32)
    job = Job.model_construct(workers=workers, elements=elements)
    scenario = Scenario.model_construct(network=NetworkSection(racks=racks), jobs=(job,))
    return figures(scenario, estimate(scenario, algorithm))
