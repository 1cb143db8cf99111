"""The description of a job in TOML: on one switch, or on several racks below a spine switch.

A description with neither `[spine]` nor `[[racks]]` is for one switch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from peelsum.control.errors import DescriptionError
from peelsum.control.sections import (
    HostAddress,
    JobSection,
    Port,
    Section,
    SwitchSection,
    check_ports,
    first_validation_error,
)
from peelsum.reading import LimitError, parse_toml, read_text
from peelsum.wire import MAX_WORKERS, Level

Model = TypeVar("Model", bound=Section)
#: A spine has one bit of a bitmap for each rack.
MAX_RACKS = 32
#: The size limit of a description in bytes, three times the size for a switch with full tables. Parsing takes
#: up to 400 times as much memory.
MAX_DESCRIPTION_BYTES = 1 << 18


@dataclass(frozen=True)
class SwitchMember:
    """A worker, or a rack of workers, behind one port of a switch."""

    port: int
    """The switch's port to the worker or rack."""
    mask: int
    """The bit of the worker or rack in the switch's bitmap."""
    first_worker: int
    """The number of the worker, or of the rack's first worker."""
    is_rack: bool = False
    """Whether there is a rack behind the port."""


@dataclass(frozen=True)
class SwitchPlan:
    """One job on one switch."""

    switch: SwitchSection
    """The switch's section of the description."""
    job_id: int
    """The job's number."""
    window: int
    """Chunks that a worker keeps in flight."""
    level: Level
    """The switch's position: the only switch, a rack's (leaf), or the spine."""
    up_port: int
    """The uplink: the port to the aggregation server or to the spine."""
    members: tuple[SwitchMember, ...]
    """The workers or racks below this switch."""
    return_ports: Mapping[int, int]
    """The port towards each worker, by worker number."""
    hosts: Mapping[int, HostAddress] = field(default_factory=dict)
    """Addresses of hosts, by the port that leads to them."""
    section: str = "switch"
    """The name of the switch's section, for error messages."""

    @cached_property
    def expected_mask(self) -> int:
        """The bitmap of a sum that has all members' contributions."""
        return sum(member.mask for member in self.members)

    @cached_property
    def ports(self) -> tuple[int, ...]:
        """Every port that the job or other traffic uses, ascending."""
        others = {*self.switch.bridge.values(), *(hop.port for hop in self.switch.routes.values())}
        return tuple(sorted({self.up_port, *self.group, *self.return_ports.values(), *others}))

    @cached_property
    def group(self) -> tuple[int, ...]:
        """The ports to which a result for all workers is multicast."""
        return tuple(member.port for member in self.members)

    @cached_property
    def host_ports(self) -> tuple[int, ...]:
        """The ports that lead directly to a worker of the job or to its server."""
        server = () if self.level is Level.LEAF else (self.up_port,)
        return (*(member.port for member in self.members if not member.is_rack), *server)

    @property
    def prefix(self) -> str:
        """The prefix of field names in error messages; empty for the only switch of a job."""
        return "" if self.level is Level.ONLY else f"{self.section}."


class PortsSection(Section):
    """`[ports]`: the switch's ports to the aggregation server and to the workers 0, 1, ..."""

    server: Port
    workers: tuple[Port, ...] = Field(strict=False)
    spare: tuple[Port, ...] = Field(default=(), strict=False)
    """Ports for further groups of workers. A group takes one for each of its ranks and one for its server."""


class JobDescription(Section):
    """A job on one switch."""

    job: JobSection
    """The job's number, workers, window and timeout."""
    switch: SwitchSection = SwitchSection()
    """The switch and its settings."""
    ports: PortsSection
    """The switch's ports to the participants."""
    hosts: dict[str, HostAddress] = Field(default_factory=dict)
    """Addresses of hosts, by the number of the port that leads to them."""

    @model_validator(mode="after")
    def _consistent(self) -> JobDescription:
        if len(self.ports.workers) != self.job.workers:
            raise ValueError(
                f"ports.workers: {list(self.ports.workers)}: lists {len(self.ports.workers)} ports for "
                f"job.workers = {self.job.workers}; give each worker one"
            )
        check_ports("", [self.ports.server, *self.ports.workers, *self.ports.spare], self.hosts)
        self.switch.check("switch", self.hosts)
        return self

    def with_workers(self, places: Collection[int]) -> Self:
        """Return the job with only the workers at these places among all."""
        ports = tuple(self.ports.workers[place] for place in sorted(places))
        job = self.job.model_copy(update={"workers": len(ports)})
        return self.model_copy(update={"job": job, "ports": self.ports.model_copy(update={"workers": ports})})

    def plans(self) -> tuple[SwitchPlan, ...]:
        """Return the plan of the only switch, in a tuple."""
        ports = self.server_port, self.worker_ports
        return (_plan(self.job, self.switch, self.hosts, Level.ONLY, *ports),)

    @property
    def server_port(self) -> int:
        """The port of the aggregation server."""
        return self.ports.server

    @property
    def worker_ports(self) -> tuple[int, ...]:
        """The workers' ports, in the order of the workers' numbers."""
        return self.ports.workers

    @property
    def rack_sizes(self) -> tuple[int, ...]:
        """Workers per rack: none."""
        return ()


class RacksJobSection(JobSection):
    """`[job]`, with more workers than one switch can have."""

    workers: int = Field(ge=2, le=MAX_RACKS * MAX_WORKERS)


class SpineSection(SwitchSection):
    """`[spine]`: the upper switch."""

    server: Port
    """The spine's port to the aggregation server."""
    hosts: dict[str, HostAddress] = Field(default_factory=dict)
    """Addresses of hosts, by the number of the port that leads to them."""


class RackSection(SwitchSection):
    """`[[racks]]`: a rack's switch and its workers."""

    uplink: Port
    """The rack's port to the spine."""
    spine_port: Port
    """The spine's port to the rack."""
    workers: tuple[Port, ...] = Field(strict=False, min_length=1, max_length=MAX_WORKERS)
    """The rack's ports to its workers."""
    hosts: dict[str, HostAddress] = Field(default_factory=dict)
    """Addresses of hosts, by the number of the port that leads to them."""


class RacksDescription(Section):
    """A job on racks below a spine. A worker's number is rack * 32 + its index in the rack's `workers`.

    >>> description = parse_description('''
    ... [job]
    ... id = 1
    ... workers = 3
    ... [spine]
    ... p4runtime = "10.0.0.1:9559"
    ... server = 9                    # the spine's port to the aggregation server
    ... [[racks]]
    ... p4runtime = "10.0.0.2:9559"
    ... uplink = 8                    # this switch's port to the spine
    ... spine_port = 0                # the spine's port to this switch
    ... workers = [1, 2]              # this switch's ports to workers 0 and 1
    ... [[racks]]
    ... p4runtime = "10.0.0.3:9559"
    ... uplink = 8
    ... spine_port = 1
    ... workers = [1]                 # worker 32
    ... ''')
    >>> description.rack_sizes
    (2, 1)
    """

    job: RacksJobSection
    """The job's number, workers, window and timeout."""
    spine: SpineSection
    """The upper switch."""
    racks: tuple[RackSection, ...] = Field(strict=False, min_length=1, max_length=MAX_RACKS)
    """The racks' switches."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        port_count = sum(len(rack.workers) for rack in self.racks)
        if port_count != self.job.workers:
            raise ValueError(
                f"racks: list {port_count} workers for job.workers = {self.job.workers}; give each worker "
                "a port"
            )
        tables_by_place: dict[tuple[str, int], str] = {}
        switches: list[tuple[str, SpineSection | RackSection]] = [("spine", self.spine)]
        switches += [(f"racks.{number}", rack) for number, rack in enumerate(self.racks)]
        for where, switch in switches:
            switch.check(where, switch.hosts)
            if switch.pipeline_lanes != self.spine.pipeline_lanes:
                raise ValueError(
                    f"{where}.pipeline_lanes: {switch.pipeline_lanes}: "
                    f"spine has {self.spine.pipeline_lanes}; give all switches the same"
                )
            if _program(switch) != _program(self.spine):
                raise ValueError(
                    f"{where}.tofino.program: {_program(switch)!r}: spine has {_program(self.spine)!r}; give "
                    "all switches the same"
                )
            other = tables_by_place.setdefault(switch.place, where)
            if other != where:
                raise ValueError(
                    f"{where}.p4runtime: {switch.p4runtime!r}: is {other} already; "
                    "give every switch its own address or device_id"
                )
        check_ports("spine.", [self.spine.server, *self._spine_ports], self.spine.hosts)
        for number, rack in enumerate(self.racks):
            check_ports(f"racks.{number}.", [rack.uplink, *rack.workers], rack.hosts)
        return self

    def plans(self) -> tuple[SwitchPlan, ...]:
        """Return the plan of each switch, the spine's first."""
        spine = SwitchPlan(
            switch=self.spine,
            job_id=self.job.id,
            window=self.job.window,
            level=Level.SPINE,
            up_port=self.spine.server,
            members=tuple(
                SwitchMember(port, 1 << rack, rack * MAX_WORKERS, is_rack=True)
                for rack, port in enumerate(self._spine_ports)
            ),
            return_ports={
                rack * MAX_WORKERS + place: section.spine_port
                for rack, section in enumerate(self.racks)
                for place in range(len(section.workers))
            },
            hosts={int(name): host for name, host in self.spine.hosts.items()},
            section="spine",
        )
        plans = [spine]
        for rack, section in enumerate(self.racks):
            ports, first = (section.uplink, section.workers), rack * MAX_WORKERS
            plans.append(_plan(self.job, section, section.hosts, Level.LEAF, *ports, first, f"racks.{rack}"))
        return tuple(plans)

    def with_workers(self, places: Collection[int]) -> Self:
        """Return the job with only the workers at these places among all; without racks that have none."""
        racks, first = [], 0
        for rack in self.racks:
            ports = tuple(port for place, port in enumerate(rack.workers, first) if place in places)
            racks += [rack.model_copy(update={"workers": ports})] if ports else []
            first += len(rack.workers)
        job = self.job.model_copy(update={"workers": len(places)})
        return self.model_copy(update={"job": job, "racks": tuple(racks)})

    @property
    def server_port(self) -> int:
        """The spine's port to the aggregation server."""
        return self.spine.server

    @property
    def worker_ports(self) -> tuple[int, ...]:
        """The workers' ports at their racks' switches, in the order of the workers' numbers."""
        return tuple(port for rack in self.racks for port in rack.workers)

    @property
    def rack_sizes(self) -> tuple[int, ...]:
        """Workers per rack."""
        return tuple(len(rack.workers) for rack in self.racks)

    @property
    def _spine_ports(self) -> tuple[int, ...]:
        return tuple(rack.spine_port for rack in self.racks)


def _plan(
    job: JobSection,
    switch: SwitchSection,
    hosts: Mapping[str, HostAddress],
    level: Level,
    up_port: int,
    worker_ports: Sequence[int],
    first_worker: int = 0,
    section: str = "switch",
) -> SwitchPlan:
    """Return the plan of a switch with workers at `worker_ports`, numbered from `first_worker` on."""
    return SwitchPlan(
        switch=switch,
        job_id=job.id,
        window=job.window,
        level=level,
        up_port=up_port,
        members=tuple(SwitchMember(port, 1 << n, first_worker + n) for n, port in enumerate(worker_ports)),
        return_ports=dict(enumerate(worker_ports, first_worker)),
        hosts={int(name): host for name, host in hosts.items()},
        section=section,
    )


def _program(switch: SwitchSection) -> str:
    return switch.tofino.program if switch.tofino else ""


#: A job on one switch or on several.
AnyDescription = JobDescription | RacksDescription


def parse_description(text: str, source: str = "job description") -> AnyDescription:
    """Parse a job description of either kind.

    source: where the text is from. Raises DescriptionError, which names source, field, value and remedy.
    """
    values = parsed_toml(text, source)
    if "spine" in values or "racks" in values:
        return validated(RacksDescription, values, source)
    return validated(JobDescription, values, source)


def read_description(path: Path) -> AnyDescription:
    """Read a job description of either kind from a file. Raises DescriptionError."""
    return parse_description(file_text(path), str(path))


def file_text(path: Path, of: str = "a job description") -> str:
    """Return the text of a description file. Raises DescriptionError. of: the kind of description."""
    try:
        return read_text(path, MAX_DESCRIPTION_BYTES)
    except OSError as error:
        raise DescriptionError(f"{path}: {error.strerror}; give the path of {of}") from None
    except UnicodeDecodeError as error:
        raise DescriptionError(f"{path}: is not UTF-8 (byte {error.start}); save it as such") from None


def parsed_toml(text: str, source: str) -> dict[str, Any]:
    """Parse TOML. Raises DescriptionError, which names `source`."""
    try:
        text.encode()  # the text is stored and sent as UTF-8
        return parse_toml(text, MAX_DESCRIPTION_BYTES)
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise DescriptionError(
            f"{source}: line {line}: {text[error.start]!r}: is no Unicode character; remove it"
        ) from None
    except LimitError as error:
        raise DescriptionError(f"{source}: {error}") from None
    except ValueError as error:  # not only TOMLDecodeError: Python limits the digits of a number
        raise DescriptionError(f"{source}: is not TOML: {error}") from None


def validated(
    model: type[Model], values: Mapping[str, Any], source: str, of: str = "a job description"
) -> Model:
    """Validate parsed TOML. Raises DescriptionError, which names `source`, field, value and remedy."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        reason = first_validation_error(error, of, model)
        raise DescriptionError(f"{source}: {reason}") from None
