"""What one switch gets for one job, whatever the shape of the network. Values between files and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from peelsum.wire import Level

if TYPE_CHECKING:
    from peelsum.control.description import HostAddress, SwitchSection


@dataclass(frozen=True)
class Member:
    """A worker behind a port, with its bit, or a rack of workers from that number on."""

    port: int
    mask: int
    first_worker: int
    is_rack: bool = False


@dataclass(frozen=True)
class SwitchPlan:
    """One job on one switch. `section` is where the switch stands in the description, for complaints.

    `up_port` is the server's or the upper switch's. `return_ports` has the port of every worker number. `hosts`
    has, by port, the addresses of the host behind it.
    """

    switch: SwitchSection
    job_id: int
    window: int
    level: Level
    up_port: int
    members: tuple[Member, ...]
    return_ports: Mapping[int, int]
    hosts: Mapping[int, HostAddress] = field(default_factory=dict)
    section: str = "switch"

    @property
    def expected_mask(self) -> int:
        """The bitmap of a complete sum."""
        return sum(member.mask for member in self.members)

    @property
    def ports(self) -> tuple[int, ...]:
        """Every port that the job or other traffic uses, ascending."""
        others = {*self.switch.bridge.values(), *(hop.port for hop in self.switch.routes.values())}
        return tuple(sorted({self.up_port, *self.group, *self.return_ports.values(), *others}))

    @property
    def group(self) -> tuple[int, ...]:
        """The ports that a result for everybody is copied to."""
        return tuple(member.port for member in self.members)
