"""The settings of a switch process: the options of `peelsum switch run`, and an argument of `run`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from peelsum.addresses import parse_address
from peelsum.options import CommandSettings, Option, OptionError
from peelsum.wire import CPU_PORT, DROP_PORT
from peelsum.wire.datagrams import Address

T = TypeVar("T")
#: How frames reach a port: `auto` is `xdp` where it works, else `packet`.
Method = Literal["auto", "xdp", "packet"]
_LAST_UDP_PORT = 0xFFFF


class ByPort(dict[int, T]):
    """Values by switch port, with an optional `default` for the other ports."""

    default: T | None = None

    def of(self, ports: Iterable[int]) -> dict[int, T]:
        """Return the values of `ports`, and those of all ports that have a value of their own."""
        return {**({} if self.default is None else dict.fromkeys(ports, self.default)), **self}


def _by_port(read: Callable[[str], T], example: str, texts: Sequence[str]) -> dict[int, T]:
    """Parse texts of the form PORT@VALUE; return the values by switch port."""
    values: dict[int, T] = {}
    for text in texts:
        port, _, value = text.partition("@")
        if not port.isdecimal() or not value:
            raise ValueError(f"{text}: give PORT@VALUE, for example 1@{example}")
        if int(port) in values:
            raise ValueError(f"{text}: port {port} is given twice; give every port one value")
        values[int(port)] = read(value)
    return values


def _numbers(unit: str, texts: Sequence[str]) -> ByPort[float]:
    """Parse texts of the form PORT@NUMBER, or NUMBER for all other ports."""
    values = ByPort[float]()
    for text in texts:
        port, _, number = text.rpartition("@")
        if port and not port.isdecimal():
            raise ValueError(f"{text}: {port} is not a port; give a number, as 1@1000")
        try:
            if port:
                values[int(port)] = float(number)
            else:
                values.default = float(number)
        except ValueError:
            raise ValueError(f"{number!r}: is not a number; give {unit}, as 1000 or 1@1000") from None
    return values


def _udp_port(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text}: is not a UDP port; give 1 to {_LAST_UDP_PORT}")
    return int(text)


def _address(text: str) -> Address:
    try:
        return parse_address(text, "the other switch's port", "127.0.0.1:7001")
    except ValueError as error:
        raise ValueError(f"{text}: {error}") from None


def _repeated(
    text: str, name: str, metavar: str, parse: Callable[[Sequence[str]], Any], **more: Any
) -> Option:
    """Return an option that may be given several times, each time for one port or for all ports."""
    return Option(text, name=name, metavar=metavar, parse=parse, repeated=True, **more)


INTERFACES = _repeated(
    "A port on a network interface, instead of UDP; repeat it for others.",
    *("--interface", "PORT@NAME", partial(_by_port, str, "eth0")),
    short="-i",
)
_UDP_PORTS = _repeated(
    "The UDP port of one port, instead of udp_base; repeat it.",
    *("--udp-port", "PORT@UDP", partial(_by_port, _udp_port, "41001")), least=1, most=_LAST_UDP_PORT,
)  # fmt: skip
_PEER_ADDRESSES = _repeated(
    "A port joined to another switch's UDP port; repeat it for others.",
    *("--join", "PORT@HOST:UDP", partial(_by_port, _address, "127.0.0.1:7001")),
)
_RATES = _repeated(
    "Mbit/s at which all ports, or one port, send; repeat it for others.",
    *("--port-rate", "[PORT@]MBIT", partial(_numbers, "Mbit/s")),
)
_DELAYS = _repeated(
    "Propagation delay in ms of frames that all ports, or one port, send; repeat it.",
    *("--port-delay", "[PORT@]MS", partial(_numbers, "ms")),
)
_ARRIVAL_DELAYS = _repeated(
    "Propagation delay in ms of frames to all ports, or to one port; repeat it.",
    *("--arrival-delay", "[PORT@]MS", partial(_numbers, "ms")),
)
_QUEUE = Option(
    "Packets that may wait at a port with a rate, by default 1024; more are dropped.", name="--port-queue"
)
_LOSS = Option("Share of datagrams that each port loses in each direction, from 0 to 1.", 0, 1)
_LOSS_BURST = Option(
    "Mean number of datagrams that are lost in a row; by default each is lost independently.", 1, 1e6
)
_LATE = Option("Share of sent datagrams that change places with one up to 32 later, from 0 to 1.", 0, 1)
_UDP_BASE = Option("Port p listens on UDP port udp_base + p; by default on a free one.", 0, _LAST_UDP_PORT)
_PORT_METHOD = Option(
    "How frames reach interfaces' ports: AF_XDP, AF_PACKET, or the first that works.", name="--ports-by"
)
_SCHEDULE = Option("Changes of rates and delays, TOML or CSV, from the first frame on.", metavar="FILE")
_CAPTURE = Option("Write pcap files of every port there, one for each direction.", metavar="FOLDER")
_CPU_PORT = Option("The port through which packets go to and come from the controller.", 1, DROP_PORT - 1)
_PROGRAM = Option("BMv2 JSON of a program to run until a controller loads one.", metavar="FILE")
_P4RUNTIME = Option("Where P4Runtime listens; port 0 chooses a free one.")


def check_loss_burst(loss: float, burst: float | None) -> None:
    """Raise OptionError if no packets lost `burst` at a time are the share `loss` of all."""
    if burst is None:
        return
    share = burst / (1 + burst)  # that of the bursts, with one packet between two
    if not 0 < loss <= share:
        raise OptionError(
            f"--loss-burst: {burst:g} needs a --loss above 0 and up to {share:g}, not {loss:g}; "
            "change one of them"
        )


@dataclass(frozen=True)
class SwitchSettings(CommandSettings):
    """The ports of a switch, their links, and where its P4Runtime server listens."""

    ports: Annotated[int, Option("Number of switch ports, numbered from 1.", 1, CPU_PORT - 1)] = 8
    """Ignored if ports are on interfaces."""
    p4runtime: Annotated[str, _P4RUNTIME] = "127.0.0.1:9559"
    udp_base: Annotated[int | None, _UDP_BASE] = None
    udp_ports: Annotated[Mapping[int, int], _UDP_PORTS] = field(default_factory=dict)
    host: Annotated[str, Option("Address of the UDP ports.")] = "127.0.0.1"
    interfaces: Annotated[Mapping[int, str], INTERFACES] = field(default_factory=dict)
    port_method: Annotated[Method, _PORT_METHOD] = "auto"
    peer_addresses: Annotated[Mapping[int, Address], _PEER_ADDRESSES] = field(default_factory=dict)
    loss: Annotated[float, _LOSS] = 0.0
    """Share of datagrams except hellos."""
    loss_burst: Annotated[float | None, _LOSS_BURST] = None
    late: Annotated[float, _LATE] = 0.0
    """Of datagrams that a port sends at once."""
    seed: Annotated[int, Option("Seed of the choice of lost datagrams.", 0, 2**63 - 1)] = 0
    rates: Annotated[ByPort[float], _RATES] = field(default_factory=ByPort)
    queue_limit: Annotated[int | None, _QUEUE] = None
    delays: Annotated[ByPort[float], _DELAYS] = field(default_factory=ByPort)
    arrival_delays: Annotated[ByPort[float], _ARRIVAL_DELAYS] = field(default_factory=ByPort)
    schedule: Annotated[Path | None, _SCHEDULE] = None
    capture: Annotated[Path | None, _CAPTURE] = None
    device_id: Annotated[int, Option("P4Runtime's device_id.", 0, 2**64 - 1)] = 1
    cpu_port: Annotated[int, _CPU_PORT] = CPU_PORT
    program: Annotated[Path | None, _PROGRAM] = None
    as_bmv2: bool = False
    """Whether P4Runtime may listen beyond loopback without TLS, and captures are named after interfaces and
    replace earlier ones, as in BMv2; no option."""
    mode: Literal["numba", "python"] = "numba"
    """Whether pipelines are compiled or interpreted; no option."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.udp_base is not None and self.udp_base > (most := _LAST_UDP_PORT - self.ports):
            raise OptionError(f"--udp-base: {self.udp_base} is out of range; use 0 to {most}")
        rated = self.rates or self.rates.default is not None or self.schedule is not None
        if self.queue_limit is not None and not rated:
            raise OptionError(f"--port-queue: {self.queue_limit}: no port has a queue; give --port-rate too")
        if self.interfaces and self.loss:
            raise OptionError(
                f"--loss: {self.loss:g} is for UDP ports; lose packets on the link of an interface"
            )
        if self.interfaces and self.late:
            raise OptionError(f"--late: {self.late:g} is for UDP ports; use netem for an interface")
        check_loss_burst(self.loss, self.loss_burst)
        self._check_ports("--interface", self.interfaces, range(DROP_PORT))
        self._check_ports("--join", self.peer_addresses, range(1, self.ports + 1))
        self._check_ports("--udp-port", self.udp_ports, range(1, self.ports + 1))
        if self.cpu_port in (self.interfaces or range(1, self.ports + 1)):
            raise OptionError(f"--cpu-port: {self.cpu_port}: is a port of the switch; choose another number")

    def _check_ports(self, name: str, values: Mapping[int, object], ports: range) -> None:
        for port, value in values.items():
            if port not in ports:
                limits = f"{ports.start} to {ports.stop - 1}"
                raise OptionError(f"{name}: {port}@{value}: port {port} is out of range; use {limits}")
        if len(set(values.values())) < len(values):
            raise OptionError(f"{name}: {', '.join(map(str, values.values()))}: give each to one port")
