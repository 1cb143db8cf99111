"""What one switch needs for one job, independent of the shape of the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from peelsum.control.sections import HostAddress, SwitchSection
from peelsum.wire import Level


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
