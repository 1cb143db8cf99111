"""A scenario to simulate: a network, its jobs, and a seed; from a TOML file, from options, or in Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from peelsum.control import ControlError
from peelsum.control.description import file_text, parsed_toml
from peelsum.control.sections import Section, first_validation_error
from peelsum.simulation.trains import SimulationError
from peelsum.transport import Timers, TransportConfigError
from peelsum.wire import COMPILED_LANES, MAX_WORKERS

#: Slots of the compiled program.
COMPILED_SLOTS = 4096
#: Ports of a switch that lead to workers.
MAX_PORTS = 254
Seconds = Annotated[float, Field(ge=0, le=3600)]


class RateChange(Section):
    """`[[network.schedule]]`: from a time on, hosts' links have another rate."""

    at_s: float = Field(gt=0, le=1e6)
    """Seconds from the start."""
    gbps: float = Field(ge=1e-3, le=1600)
    """Rate in Gbit/s."""


class NetworkSection(Section):
    """`[network]`: links, queues and switches."""

    racks: int = Field(default=1, ge=1, le=32)
    """1 is one switch; more have a switch each, below a spine."""
    gbps: float = Field(default=100.0, ge=1e-3, le=1600)
    """Rate of a host's link in Gbit/s."""
    oversubscription: float = Field(default=1.0, ge=0.01, le=1000)
    """Rate of a rack's hosts over the rate of its link to the spine."""
    delay_us: float = Field(default=1.0, ge=0, le=1e6)
    """Propagation delay of each link in microseconds."""
    queue: int = Field(default=1024, ge=1, le=1 << 20)
    """Packets that may wait at a switch's port."""
    mark_from: int = Field(default=64, ge=0, le=1 << 30)
    """Packets in a switch port's queue from which on it marks (ECN)."""
    loss: float = Field(default=0.0, ge=0, lt=1)
    """Probability that a packet is lost, on each link."""
    cross: float = Field(default=0.0, ge=0, lt=1)
    """Share of the rate that cross traffic offers: between switches, or from the one switch to each host."""
    schedule: tuple[RateChange, ...] = Field(default=(), strict=False)
    """Later rates. Links between switches change alike."""

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        times = [change.at_s for change in self.schedule]
        if times != sorted(set(times)):
            raise ValueError("schedule: times must ascend; put the earliest first, each once")
        return self


class Straggler(Section):
    """`[[jobs.stragglers]]`: a worker that starts later, or whose link is slower."""

    worker: int = Field(ge=0)
    """Its number, from 0 on, over all racks."""
    late_s: Seconds = 0.0
    """Seconds after the others."""
    gbps: float | None = Field(default=None, ge=1e-3, le=1600)
    """Rate of its link, both ways; None for the others' rate."""


class TimersSection(Section):
    """`[jobs.timers]`: see `peelsum.transport.Timers`; seconds."""

    first_answer: float = Timers.first_answer
    """A worker's longest wait while nothing has come back."""
    resend_least: float = Timers.resend_least
    """A worker's least wait before a chunk's further retransmissions, after the fifth."""
    resend_most: float = Timers.resend_most
    """A worker's longest wait before a retransmission."""
    need: float = Timers.need
    """How long the server leaves a chunk incomplete before it asks for the missing parts."""
    need_most: float = Timers.need_most
    """Upper bound of the server's back-off."""
    reply_gap: float = Timers.reply_gap
    """Shortest time between two results of one chunk that the server sends to all again."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        try:
            self.timers()
        except TransportConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def timers(self) -> Timers:
        """Return the timers of workers and servers."""
        return Timers(**self.model_dump())


class Job(Section):
    """`[[jobs]]`: one job's allreduce, repeated."""

    workers: int = Field(default=4, ge=1, le=1024)
    """Number of workers, divided evenly over the racks."""
    elements: int = Field(default=1 << 20, ge=1, le=1 << 30)
    """32-bit words of each sum."""
    window: int = Field(default=1024, ge=1, le=1 << 16)
    """Most outstanding chunks of a worker."""
    initial_window: int = Field(default=128, ge=1, le=1 << 16)
    """Congestion window at the start, in chunks."""
    sums: int = Field(default=1, ge=1, le=1 << 30)
    """Number of sums, of which a worker has at most two in flight at once."""
    start_s: Seconds = 0.0
    """When its workers start."""
    salt: int | None = Field(default=None, ge=0, lt=1 << 32)
    """Slot of chunk 0 in every switch; by default jobs are spread over the slots."""
    stragglers: tuple[Straggler, ...] = Field(default=(), strict=False)
    """Workers unlike the others."""
    timers: TimersSection = Field(default_factory=TimersSection)
    """Timers of its workers and its server."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        for straggler in self.stragglers:
            if straggler.worker >= self.workers:
                raise ValueError(
                    f"stragglers: worker {straggler.worker} is not one of {self.workers}; "
                    f"give 0 to {self.workers - 1}"
                )
        return self


class Scenario(Section):
    """A simulation: the network, the jobs, the switches' program, and the seed.

    >>> Scenario(jobs=(Job(workers=8),)).network.gbps
    100.0
    """

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """Decides words, losses and cross traffic. Equal seeds give equal rows, bit for bit."""
    lanes: int = Field(default=256, ge=1, le=4096)
    """Words per chunk."""
    slots: int = Field(default=COMPILED_SLOTS, ge=256, le=1 << 24)
    """Slots of each switch, a power of two."""
    switch: Literal["auto", "specification"] = "auto"
    """The implementation of the switch; "auto" takes the compiled program if it has these lanes and slots."""
    shared_server: bool = False
    """Whether one host is the aggregation server of all jobs; else each job has its own."""
    limit_s: float = Field(default=60.0, gt=0, le=1e6)
    """Simulated seconds after which the simulation fails."""
    network: NetworkSection = Field(default_factory=NetworkSection)
    """Links and switches."""
    jobs: tuple[Job, ...] = Field(default=(Job(),), strict=False, min_length=1, max_length=128)
    """The jobs."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.slots & (self.slots - 1):
            raise ValueError(f"slots: {self.slots} is not a power of two; use {1 << self.slots.bit_length()}")
        racks, ports = self.network.racks, 0
        for number, job in enumerate(self.jobs):
            least = -(-job.workers // MAX_WORKERS)
            if racks < least:
                raise ValueError(
                    f"network.racks: {racks}: jobs.{number} has {job.workers} workers, a switch takes "
                    f"{MAX_WORKERS}; use {least} or more"
                )
            if racks > 1 and job.workers < racks:
                raise ValueError(
                    f"jobs.{number}.workers: {job.workers} are fewer than {racks} racks; use {racks} or more"
                )
            if racks > self.lanes:
                raise ValueError(f"lanes: {self.lanes}: a NEED names {racks} racks; use {racks} or more")
            ports += -(-job.workers // racks)
        if ports > MAX_PORTS:
            raise ValueError(f"jobs: need {ports} ports of a switch; use {MAX_PORTS} or fewer in all")
        return self

    @property
    def compiled(self) -> bool:
        """Whether switches run the compiled program."""
        return self.switch == "auto" and self.slots == COMPILED_SLOTS and self.lanes in COMPILED_LANES


def with_options(path: Path | None, options: Mapping[str, Any]) -> Scenario:
    """Return the scenario of a file, or the default one, with other values; values of None change nothing.

    options: values of fields of the scenario, of its network and of every job, by name; and `jobs`, how often
        the first job is repeated. Without `racks`, there are as many as the workers need.
    Raises SimulationError naming file, or option, field and remedy.
    """
    source = "scenario" if path is None else str(path)
    try:
        values = {} if path is None else parsed_toml(file_text(path, "a scenario"), source)
    except ControlError as error:
        raise SimulationError(str(error)) from None
    options = {name: value for name, value in options.items() if value is not None}

    def of(section: type[Section]) -> dict[str, Any]:
        return {name: options[name] for name in options.keys() & section.model_fields.keys() - {"jobs"}}

    values |= of(Scenario)
    network, jobs = values.get("network", {}), values.get("jobs", [{}])
    if isinstance(jobs, list) and all(isinstance(table, dict) for table in (network, *jobs)):  # else refused
        jobs = [{**job, **of(Job)} for job in jobs]
        values["jobs"] = jobs[:1] * options["jobs"] if "jobs" in options else jobs
        workers = [job.get("workers", 1) for job in jobs]
        most = max((count for count in workers if isinstance(count, int)), default=1)
        racks = min(max(-(-most // MAX_WORKERS), 1), MAX_WORKERS)
        values["network"] = {"racks": racks, **network, **of(NetworkSection)}
    try:
        return Scenario.model_validate(values)
    except ValidationError as error:
        field, _, message = first_validation_error(error, "a scenario", Scenario).partition(": ")
        name = field.rpartition(".")[2]
        where = f"--{name}" if name in options else f"{source}: {field}"
        raise SimulationError(f"{where}: {message}") from None
