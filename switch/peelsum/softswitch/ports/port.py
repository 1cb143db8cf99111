"""The interface between the data plane and a switch's ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from peelsum.softswitch.runtime.frames import Frames

if TYPE_CHECKING:
    from _typeshed import HasFileno

    from peelsum.softswitch.ports.interfaces import InterfaceCounts
    from peelsum.softswitch.ports.udp import PortCounts


class Port(Protocol):
    """One switch port, as the data plane uses it."""

    @property
    def socket(self) -> HasFileno: ...
    @property
    def counts(self) -> PortCounts | InterfaceCounts: ...


class Ports(Protocol):
    """All ports of a switch: `UdpPorts`, `InterfacePorts`, `CapturedPorts`."""

    @property
    def ports(self) -> Mapping[int, Port]: ...
    @property
    def listening(self) -> dict[int, int]: ...
    def resize(self, packet_bytes: int) -> None: ...
    def receive(self, ready: Sequence[int]) -> Frames: ...
    def send(self, frames: Frames) -> None: ...
    def send_by(self, number: int, frames: Frames) -> None: ...
    def close(self) -> None: ...
