"""The TOML tables that both kinds of job description share, and the types of their fields.

The checks here need no switch. A pipeline's capacity is checked at admission.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from peelsum.wire import COMPILED_LANES, CPU_PORT, DEFAULT_LANES, DROP_PORT, MAX_WORKERS, RESERVED_JOB_ID

#: Limits of the switch program's tables. Table `bridge` has one more row, for broadcasts.
MAX_BRIDGED, MAX_ROUTES = 1023, 1024
#: The largest number of a job, as packets have 8 bits for it.
MAX_JOB_ID = 255
#: A port as a key, which other spellings of the number would repeat.
_PORT_NUMBER = re.compile(r"0|[1-9][0-9]{0,3}")
_MAC_HINT = "six bytes in hexadecimal, as 02:00:00:00:00:01"


def _port(value: Any) -> Any:
    if isinstance(value, int) and value in (CPU_PORT, DROP_PORT):
        raise ValueError(f"port {value} is the switch's own; use another")
    return value


def _mac(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError(f"must be {_MAC_HINT}")
    parts = value.split(":")
    try:
        octets = bytes.fromhex("".join(part.zfill(2) for part in parts))
    except ValueError:
        octets = b""
    if len(parts) != 6 or len(octets) != 6:
        raise ValueError(f"must be {_MAC_HINT}")
    return int.from_bytes(octets, "big")


def _ip(value: Any) -> Any:
    try:
        return int(IPv4Address(value))
    except ValueError:
        raise ValueError("must be an IPv4 address, as 10.0.0.1") from None


def _prefix(value: Any) -> Any:
    try:
        network = IPv4Network(value)
    except ValueError:
        raise ValueError("must be an IPv4 prefix without host bits, as 10.0.1.0/24") from None
    return int(network.network_address), network.prefixlen


def _distinct(value: Any, validated: ValidatorFunctionWrapHandler) -> Any:
    entries = validated(value)
    if len(entries) < len(value):
        raise ValueError("has an address in two spellings; list it once")
    return entries


_Distinct = WrapValidator(_distinct)
Port = Annotated[int, BeforeValidator(_port), Field(ge=0, lt=DROP_PORT)]
Mac = Annotated[int, BeforeValidator(_mac)]
Ipv4 = Annotated[int, BeforeValidator(_ip)]
#: Network address and prefix length.
Prefix = Annotated[tuple[int, int], BeforeValidator(_prefix)]


class Section(BaseModel):
    """One TOML table. Values are not converted between types, and unknown names are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class HostAddress(Section):
    """Ethernet and IPv4 address of a host, as integers."""

    mac: Mac
    ip: Ipv4


class NextHop(Section):
    """The port that a route's packets leave by, and the MAC address of the next host or router."""

    port: Port
    mac: Mac


class JobSection(Section):
    """`[job]`: the job's number, its workers, window and timeout."""

    id: int = Field(gt=RESERVED_JOB_ID, le=MAX_JOB_ID)
    """Number of the job, which every packet carries."""
    workers: int = Field(ge=2, le=MAX_WORKERS)
    """Number of workers."""
    window: int = Field(default=512, ge=1)
    """Chunks that a worker keeps in flight."""
    timeout_s: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """Seconds without progress after which a worker gives up."""


class TofinoPort(Section):
    """`ports.N` of a Tofino: how the device port N is brought up."""

    speed: Literal["10G", "25G", "40G", "50G", "100G", "200G", "400G"]
    """Bits a second."""
    fec: Literal["none", "firecode", "reed_solomon"]
    """Forward error correction, which both ends of a cable must have alike."""
    autonegotiation: bool | None = None
    """Whether to negotiate; None leaves it to the switch, by the kind of cable."""
    serdes_lanes: int | None = Field(default=None, ge=1, le=8)
    """Serial lanes of the port, where its speed has several forms; None leaves it to the switch."""


class TofinoSection(Section):
    """`[switch.tofino]`: the additional settings of a Tofino, whose bf_switchd is asked by BF Runtime."""

    program: str = Field(min_length=1)
    """The folder that `peelsum switch compile --tofino --out` wrote for the device."""
    processor_port: int | None = Field(default=None, ge=0, lt=1 << 9)
    """The port of the switch's processor, for which the program was compiled. None is 192 on Tofino 1 and 0
    on Tofino 2. A Tofino 1 with four pipes has 320."""
    ports: dict[str, TofinoPort] = Field(default_factory=dict)
    """Ports to bring up, by their number."""

    def check(self, where: str) -> None:
        """Raise ValueError for values that no switch supports. `where` is the name of this table."""
        for name in self.ports:
            if not _PORT_NUMBER.fullmatch(name):
                raise ValueError(f"{where}.ports.{name}: is not a number; use the device port, as 132")


class PlacedSwitch(Section):
    """Where a switch's server listens, and the program that must run."""

    p4runtime: str = Field(pattern=r"^.+:\d{1,5}$")
    """The server of P4Runtime, or of a Tofino's BF Runtime, `host:port`."""
    device_id: int = Field(default=1, ge=0, lt=1 << 64)
    """The server's device_id of the switch."""
    pipeline_lanes: int = DEFAULT_LANES
    """32-bit values per packet in the pipeline that must run."""
    tofino: TofinoSection | None = None
    """For a Tofino; without it, the switch runs the v1model program."""

    @property
    def place(self) -> tuple[str, int]:
        """What tells switches apart: address and device_id."""
        return self.p4runtime, self.device_id

    def check_program(self, where: str) -> None:
        """Raise ValueError for values that no pipeline has. `where` is the name of the switch's table."""
        if self.pipeline_lanes not in COMPILED_LANES:
            have = ", ".join(map(str, COMPILED_LANES))
            raise ValueError(f"{where}.pipeline_lanes: {self.pipeline_lanes}: is not compiled; use {have}")
        if self.tofino is not None:
            self.tofino.check(f"{where}.tofino")


class SwitchSection(PlacedSwitch):
    """`[switch]`: where the switch's server listens, and how the switch is set up.

    Limits, bridge and routes hold for the whole switch: the last admission that gives them wins.
    """

    p4runtime: str = Field(default="127.0.0.1:9559", pattern=r"^.+:\d{1,5}$")
    """As for `PlacedSwitch`."""
    age_limit_ms: float | None = Field(default=None, ge=0)
    """Milliseconds without a packet after which another chunk may take a slot over. None keeps the switch's
    limit, which is one second in a new pipeline."""
    queue_depth: int | None = Field(default=None, ge=0, lt=1 << 19)
    """Packets in a port's queue from which later ones get an ECN mark. None keeps the switch's limit."""
    address: HostAddress | None = None
    """Source address of packets to hosts whose address is given, and of routed packets."""
    bridge: Annotated[dict[Mac, Port], _Distinct] = Field(default_factory=dict, max_length=MAX_BRIDGED)
    """For other traffic: the port behind which each MAC address is. Broadcasts go to all these ports.
    An empty one keeps the switch's."""
    routes: Annotated[dict[Prefix, NextHop], _Distinct] = Field(default_factory=dict, max_length=MAX_ROUTES)
    """For other traffic: the next hop by IPv4 prefix. An empty one keeps the switch's."""

    def check(self, where: str, hosts: Mapping[str, HostAddress]) -> None:
        """Raise ValueError for values that no pipeline has. `where` is the name of the switch's table."""
        self.check_program(where)
        if (hosts or self.routes) and self.address is None:
            what = "hosts" if hosts else "routes"
            raise ValueError(
                f"{where}.address: is missing; {what} need a source address, {{mac = ..., ip = ...}}"
            )


def check_ports(where: str, ports: Sequence[int], hosts: Mapping[str, HostAddress]) -> None:
    """Raise ValueError if a port is used twice or a host is behind none of them.

    where: what the error's field names start with: '' or 'table.'.
    """
    for port, count in Counter(ports).items():
        if count > 1:
            raise ValueError(
                f"{where}ports: {port}: is used {count} times; give every participant its own port"
            )
    for name in hosts:
        if not _PORT_NUMBER.fullmatch(name) or int(name) not in ports:
            raise ValueError(
                f"{where}hosts.{name}: this job does not use that port; use one of {sorted(ports)}"
            )
