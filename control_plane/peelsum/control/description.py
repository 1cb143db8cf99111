"""What an operator says about a job, in TOML: who takes part, behind which ports, on which switch.

Owns the checks that need no switch. What a pipeline can hold is checked at admission.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from peelsum.control.validation import first_validation_error
from peelsum.control.errors import DescriptionError
from peelsum.control.plan import Member, SwitchPlan
from peelsum.wire import COMPILED_LANES, CPU_PORT, DROP_PORT, MAX_WORKERS, RESERVED_JOB_ID, Level

#: v1model drops what is sent to this port.
Description = TypeVar("Description", bound=BaseModel)
#: The switch's tables have as many rows; that of `bridge` has another one, for broadcasts.
MAX_BRIDGED, MAX_ROUTES = 1023, 1024
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


Port = Annotated[int, BeforeValidator(_port), Field(ge=0, lt=DROP_PORT)]
Mac = Annotated[int, BeforeValidator(_mac)]
Ipv4 = Annotated[int, BeforeValidator(_ip)]
#: Address and length.
Prefix = Annotated[tuple[int, int], BeforeValidator(_prefix)]


class Section(BaseModel):
    """A table of a description: strict, and nothing unknown in it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class HostAddress(Section):
    """What packets to or from a port carry as Ethernet and IPv4 addresses, as integers."""

    mac: Mac
    ip: Ipv4


class NextHop(Section):
    """Where packets of a route go: the port, and the MAC address of who is behind it."""

    port: Port
    mac: Mac


class JobSection(Section):
    """`[job]`: how many workers, how many chunks each keeps in flight, how long nothing may happen."""

    id: int = Field(gt=RESERVED_JOB_ID, le=255)
    workers: int = Field(ge=2, le=MAX_WORKERS)
    window: int = Field(default=512, ge=1)
    timeout_s: float = Field(default=30.0, gt=0, allow_inf_nan=False)


class SwitchSection(Section):
    """`[switch]`: where P4Runtime listens, and what shall run there.

    `age_limit_ms` is how long a slot that nobody touches keeps its chunk; `queue_depth`, if given, is
    how many packets may queue at a port before those behind them are marked; both hold for the whole
    switch, as the last admitted job has them. `address` is what packets to real hosts carry as source.

    `bridge` and `routes` are for other traffic than jobs'. `bridge` has, by MAC address, the port behind
    which that host is; broadcasts go to all of these ports. `routes` has, by IPv4 prefix, the next hop of
    packets to it, which leave with `address.mac` as source. Each replaces the one that the switch has; left
    out, that stays as it is.
    """

    p4runtime: str = Field(default="127.0.0.1:9559", pattern=r"^.+:\d{1,5}$")
    device_id: int = Field(default=1, ge=0, lt=1 << 64)
    pipeline_lanes: int = COMPILED_LANES[-1]
    age_limit_ms: float = Field(default=1000.0, ge=0)
    queue_depth: int | None = Field(default=None, ge=0, lt=1 << 19)
    address: HostAddress | None = None
    bridge: dict[Mac, Port] = Field(default_factory=dict, max_length=MAX_BRIDGED)
    routes: dict[Prefix, NextHop] = Field(default_factory=dict, max_length=MAX_ROUTES)

    def check(self, where: str, hosts: Mapping[str, HostAddress]) -> None:
        """Raise ValueError for what no pipeline can do. `where` is the switch's table."""
        if self.pipeline_lanes not in COMPILED_LANES:
            have = ", ".join(map(str, COMPILED_LANES))
            raise ValueError(f"{where}.pipeline_lanes: {self.pipeline_lanes}: is not compiled; use {have}")
        if (hosts or self.routes) and self.address is None:
            what = "hosts" if hosts else "routes"
            raise ValueError(
                f"{where}.address: is missing; {what} need a source address, {{mac = ..., ip = ...}}"
            )


class PortsSection(Section):
    """`[ports]`: the switch port of the aggregation server, and of worker 0, 1, ..."""

    server: Port
    workers: tuple[Port, ...] = Field(strict=False)


class JobDescription(Section):
    """A whole description. `hosts` has, by port number, the addresses of the host behind it."""

    job: JobSection
    switch: SwitchSection = SwitchSection()
    ports: PortsSection
    hosts: dict[str, HostAddress] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> JobDescription:
        if len(self.ports.workers) != self.job.workers:
            raise ValueError(
                f"ports.workers: {list(self.ports.workers)}: lists {len(self.ports.workers)} ports for "
                f"job.workers = {self.job.workers}; give each worker one"
            )
        check_ports("", [self.ports.server, *self.ports.workers], self.hosts)
        self.switch.check("switch", self.hosts)
        return self

    @property
    def expected_mask(self) -> int:
        """The worker bitmap of a complete sum."""
        return (1 << self.job.workers) - 1

    @property
    def rack_sizes(self) -> tuple[int, ...]:
        """How many workers each rack has: there are no racks."""
        return ()

    @property
    def server_port(self) -> int:
        """The port of the aggregation server."""
        return self.ports.server

    @property
    def worker_ports(self) -> tuple[int, ...]:
        """The workers' ports, in the order of their numbers."""
        return self.ports.workers

    def plans(self) -> tuple[SwitchPlan, ...]:
        """What each switch gets: here the only one."""
        return (
            SwitchPlan(
                switch=self.switch,
                job_id=self.job.id,
                window=self.job.window,
                level=Level.ONLY,
                up_port=self.ports.server,
                members=tuple(Member(port, 1 << n, n) for n, port in enumerate(self.ports.workers)),
                return_ports=dict(enumerate(self.ports.workers)),
                hosts={int(name): host for name, host in self.hosts.items()},
            ),
        )

    @classmethod
    def parse(cls, text: str, source: str = "job description") -> Self:
        """A description from TOML. Raises DescriptionError naming `source`, field, value and remedy."""
        return validated(cls, tables_of(text, source), source)

    @classmethod
    def read(cls, path: Path) -> Self:
        """The description in a file. Raises DescriptionError, also where it cannot be read."""
        return cls.parse(text_of(path), str(path))


def check_ports(where: str, ports: Sequence[int], hosts: Mapping[str, HostAddress]) -> None:
    """Raise ValueError unless ports are used once and hosts are behind them. `where` is '' or 'table.'."""
    for port, count in Counter(ports).items():
        if count > 1:
            raise ValueError(
                f"{where}ports: {port}: is used {count} times; give every participant its own port"
            )
    for name in hosts:
        if not name.isdecimal() or int(name) not in ports:
            raise ValueError(f"{where}hosts.{name}: is no port of this job; use one of {sorted(ports)}")


def text_of(path: Path) -> str:
    """The text of a description's file. Raises DescriptionError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DescriptionError(f"{path}: {error.strerror}; give the path of a job description") from None
    except UnicodeDecodeError as error:
        raise DescriptionError(f"{path}: is not UTF-8 (byte {error.start}); save it as such") from None


def tables_of(text: str, source: str) -> dict[str, Any]:
    """TOML's tables. Raises DescriptionError naming `source`."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DescriptionError(f"{source}: is not TOML: {error}") from None


def validated(model: type[Description], tables: Mapping[str, Any], source: str) -> Description:
    """A description of that kind. Raises DescriptionError naming `source`, field, value and remedy."""
    try:
        return model.model_validate(tables)
    except ValidationError as error:
        raise DescriptionError(
            f"{source}: {first_validation_error(error, 'a job description', model)}"
        ) from None
