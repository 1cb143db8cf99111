"""The description of a network in TOML or JSON: hosts, switches, links and their job.

The structure is that of p4lang/tutorials' topology.json, with links as ["h1", "s1-p1", latency, bandwidth],
and in addition a job and loss. All checks that do not need the kernel are here, and the job's description.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from peelsum.reading import LimitError, parse_json, parse_toml, read_text
from peelsum.topology.errors import TopologyError
from peelsum.wire import COMPILED_LANES, CPU_PORT, DEFAULT_LANES, MAX_WORKERS, RESERVED_JOB_ID

#: An interface's name, `<switch>-p<port>`, has at most 15 characters.
_SWITCH_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,8}")
_HOST_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,30}")
_SWITCH_PORT = re.compile(r"(?P<switch>[A-Za-z][A-Za-z0-9_]*)-p(?P<port>\d{1,3})")
_MAC = re.compile(r"([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}")
_LATENCY = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s)?")
_MILLISECONDS = {"us": 0.001, "ms": 1.0, "s": 1000.0, None: 1.0}


class TopologyDescriptionError(TopologyError):
    """The description of a network is invalid. The message names source, field, value and remedy."""


def _address(value: Any) -> Any:
    try:
        return str(IPv4Interface(value if "/" in str(value) else f"{value}/24"))
    except ValueError:
        raise ValueError("must be an IPv4 address with its prefix, as 10.0.0.1/24") from None


def _mac(value: str) -> str:
    if not _MAC.fullmatch(value):
        raise ValueError("must be six bytes in hexadecimal, as 02:00:00:00:00:01")
    return value.lower()


def _milliseconds(value: Any) -> Any:
    """Convert a latency as in the tutorials, a number or a string with a unit, to milliseconds."""
    if not isinstance(value, str):
        return value
    match = _LATENCY.fullmatch(value.strip())
    if not match:
        raise ValueError("must be milliseconds, or a string as '5ms'")
    return float(match[1]) * _MILLISECONDS[match[2]]


Address = Annotated[str, BeforeValidator(_address)]
Mac = Annotated[str, AfterValidator(_mac)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HostNode(_Section):
    """A host: its addresses, and the commands that it runs at its start."""

    ip: Address | None = None
    """The IPv4 address with prefix length; by default it is assigned."""
    mac: Mac | None = None
    """The MAC address; by default it is assigned."""
    commands: tuple[str, ...] = ()
    """Shell commands that run once in the host's namespace."""


class SwitchNode(_Section):
    """A switch: the source address of packets to its hosts, and its ECN threshold."""

    ip: Address | None = None
    """The IPv4 address with prefix length; by default it is assigned."""
    mac: Mac | None = None
    """The MAC address; by default it is assigned."""
    mark_from: int = Field(default=64, ge=0, lt=1 << 19)
    """The number of packets in the queue of a port with a rate from which packets get an ECN mark."""


class Link(_Section):
    """A cable between two ends. Latency, rate and loss apply to each direction."""

    ends: tuple[str, str]
    """The two ends, each a host or `<switch>-p<port>`."""
    latency_ms: Annotated[float, BeforeValidator(_milliseconds)] = Field(default=0.0, ge=0, le=60_000)
    """The latency in milliseconds."""
    rate_mbit: float | None = Field(default=None, ge=0.01, le=34_000)
    """The rate in Mbit/s; None for no limit."""
    loss: float = Field(default=0.0, ge=0, lt=1)
    """The share of packets that are lost, from 0 to less than 1."""
    loss_burst: float | None = Field(default=None, ge=1, le=1e6)
    """The mean number of packets that are lost in a row; None for independent losses."""
    late: float = Field(default=0.0, ge=0, le=1)
    """The share of packets that change places with one up to 32 later."""

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        """Accept a list as in the tutorials: two ends, then latency, then bandwidth in Mbit/s."""
        if not isinstance(value, list | tuple):
            return value
        if not 2 <= len(value) <= 4:
            raise ValueError('must be ["h1", "s1-p1"], optionally with latency and bandwidth')
        more = dict(zip(("latency_ms", "rate_mbit"), value[2:], strict=False))
        return {"ends": tuple(value[:2]), **more}

    def __str__(self) -> str:
        return " to ".join(self.ends)


class JobNode(_Section):
    """The network's job: the hosts of workers and server, and the transport's settings."""

    workers: tuple[str, ...] = Field(min_length=2)
    server: str
    id: int = Field(default=1, gt=RESERVED_JOB_ID, le=255)
    window: int | None = Field(default=None, ge=1)
    timeout_s: float = Field(default=30.0, gt=0)
    lanes: int = DEFAULT_LANES
    program: Path | None = None
    """What p4c-bm2-ss made of a program that sums for hosts of its own, in place of peelsum's program."""

    @field_validator("program")
    @classmethod
    def _found_from_the_description(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        return None if value is None else (info.context or Path()) / value


class Topology(_Section):
    """A network. Every host has one link; every switch port has at most one."""

    hosts: dict[str, HostNode]
    switches: dict[str, SwitchNode] = Field(min_length=1)
    links: tuple[Link, ...]
    job: JobNode | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Topology:
        for kind, names, pattern, example in (
            ("hosts", self.hosts, _HOST_NAME, "h1"),
            ("switches", self.switches, _SWITCH_NAME, "s1"),
        ):
            for name in names:
                if not pattern.fullmatch(name):
                    raise ValueError(f"{kind}: {name!r}: must be a short word, as {example}; rename it")
        if both := self.hosts.keys() & self.switches.keys():
            raise ValueError(f"hosts: {min(both)!r}: is a switch's name, too; rename one")
        _check_links(self)
        if len(self.hosts) + len(self.switches) > 254:
            raise ValueError(f"hosts: {len(self.hosts)}: are too many; use fewer than 250")
        owners: dict[str, str] = {}
        for name in (*self.hosts, *self.switches):
            mac, ip = self.address_of(name)
            for address in (mac, ip.partition("/")[0]):
                other = owners.setdefault(address, name)
                if other != name:
                    raise ValueError(f"{name}: {address}: is also that of {other}; give each its own")
        if self.job is not None:
            _check_job(self, self.job)
        return self

    @cached_property
    def attachments(self) -> dict[str, tuple[str, int]]:
        """The switch and the switch port to which each host is connected."""
        return {
            end: (switch, port)
            for switch in self.switches
            for port, _, end in self.cables(switch)
            if end in self.hosts
        }

    @cached_property
    def trunks(self) -> dict[tuple[str, str], tuple[int, int]]:
        """The two ports of the link between two switches. Keys and values have both orders."""
        return {
            (switch, far[0]): (port, far[1])
            for switch in self.switches
            for port, _, end in self.cables(switch)
            if (far := switch_port(end))
        }

    def bridge(self, switch: str) -> dict[str, int]:
        """Return the port of a switch that leads to each host, by the host's MAC address."""
        ports = {}
        # A switch, the previous one, and the port of `switch` that leads there.
        pending = [(switch, "", 0)]
        while pending:
            current, previous, first_port = pending.pop()
            for host, (at, port) in self.attachments.items():
                if at == current:
                    ports[self.address_of(host)[0]] = first_port or port
            for (near, far), (port, _) in self.trunks.items():
                if near == current and far != previous:
                    pending.append((far, current, first_port or port))
        return ports

    def cables(self, switch: str) -> list[tuple[int, Link, str]]:
        """Return a switch's links in the order of its ports: the port, the link, and the other end."""
        both = [(end, other, link) for link in self.links for end, other in (link.ends, link.ends[::-1])]
        at_port = [(switch_port(end), link, other) for end, other, link in both]
        cables = [(port[1], link, other) for port, link, other in at_port if port and port[0] == switch]
        return sorted(cables, key=lambda cable: cable[0])

    def address_of(self, name: str) -> tuple[str, str]:
        """Return a host's or switch's MAC address, and its IPv4 address with prefix length.

        Addresses that the description does not have are assigned by position in the description.
        """
        node = self.hosts.get(name) or self.switches[name]
        number = list(self.hosts).index(name) + 1 if name in self.hosts else 0
        last = number or 254 - list(self.switches).index(name)
        high = 0 if number else 0xFF
        return node.mac or f"02:00:00:00:{high:02x}:{last:02x}", node.ip or f"10.0.0.{last}/24"


def switch_port(end: str) -> tuple[str, int] | None:
    """Split a link's end, `<switch>-p<port>`, into switch and port; return None for other names."""
    match = _SWITCH_PORT.fullmatch(end)
    return (match["switch"], int(match["port"])) if match else None


def star(workers: int = 4) -> Topology:
    """Return a star: one switch, workers at ports 1 to n and the aggregation server at port n + 1."""
    names = [f"h{number}" for number in range(1, workers + 2)]
    return Topology(
        hosts={name: HostNode() for name in names},
        switches={"s1": SwitchNode()},
        links=tuple(Link(ends=(name, f"s1-p{port}")) for port, name in enumerate(names, 1)),
        job=JobNode(workers=tuple(names[:-1]), server=names[-1]),
    )


def two_racks() -> Topology:
    """Return two racks of two workers, each with a switch, below a spine switch with the server."""
    workers = {"h1": "s1-p1", "h2": "s1-p2", "h3": "s2-p1", "h4": "s2-p2"}
    links = (*workers.items(), ("s1-p3", "s3-p1"), ("s2-p3", "s3-p2"), ("h5", "s3-p3"))
    return Topology(
        hosts={name: HostNode() for name in (*workers, "h5")},
        switches={name: SwitchNode() for name in ("s1", "s2", "s3")},
        links=tuple(Link(ends=ends) for ends in links),
        job=JobNode(workers=tuple(workers), server="h5"),
    )


BUILT_IN = {"star": star, "two_racks": two_racks}


def read(source: str) -> Topology:
    """Return a built-in topology by its name, or read one from a .toml or .json file.

    Raises TopologyDescriptionError.
    """
    if source in BUILT_IN:
        return BUILT_IN[source]()
    path = Path(source)
    if path.suffix not in (".toml", ".json"):
        known = ", ".join(BUILT_IN)
        raise TopologyDescriptionError(
            f"topology: {source}: is neither {known} nor a .toml or .json file; give one of these"
        )
    try:
        return parse(read_text(path), source)
    except OSError as error:
        raise TopologyDescriptionError(f"{source}: {error.strerror}; give the path of a topology") from None
    except UnicodeDecodeError as error:
        raise TopologyDescriptionError(
            f"{source}: is not UTF-8 (byte {error.start}); save it as such"
        ) from None


def parse(text: str, source: str) -> Topology:
    """Parse a topology: JSON if `source` ends in .json, otherwise TOML. Raises TopologyDescriptionError."""
    try:
        values = parse_json(text) if source.endswith(".json") else parse_toml(text)
        return Topology.model_validate(values, context=Path(source).parent)
    except ValidationError as error:
        # Import the control plane, which is slow, only for an error.
        from peelsum.control.sections import first_validation_error

        message = first_validation_error(error, "a topology", Topology)
        raise TopologyDescriptionError(f"{source}: {message}") from None
    except LimitError as error:
        raise TopologyDescriptionError(f"{source}: {error}") from None
    except ValueError as error:  # both decoders raise it
        raise TopologyDescriptionError(f"{source}: cannot be read: {error}; correct it there") from None


def worker_numbers(topology: Topology, job: JobNode) -> dict[str, int]:
    """Return the number of each worker's host: with racks, rack * MAX_WORKERS + its position in the rack."""
    racks = _racks(topology, job)
    if not racks:
        return {host: number for number, host in enumerate(job.workers)}
    return {
        host: rack * MAX_WORKERS + place
        for rack, hosts in enumerate(racks.values())
        for place, host in enumerate(hosts)
    }


def job_description(
    topology: Topology, job: JobNode, p4runtime: Mapping[str, str], window: int, *, addressed: bool
) -> str:
    """Return the job description for `peelsum job admit`, in TOML.

    p4runtime: the address of each switch. window: chunks in flight. addressed: whether switches must write
    the hosts' addresses into packets, because hosts are in networks of their own.
    """
    text = f"[job]\nid = {job.id}\nworkers = {len(job.workers)}\nwindow = {window}\n"
    text += f"timeout_s = {job.timeout_s}\n"
    spine, server = topology.attachments[job.server]

    def ports(hosts: Iterable[str]) -> list[int]:
        return [topology.attachments[host][1] for host in hosts]

    def switch(name: str, section: str, hosts: Iterable[str]) -> str:
        """Return the lines of a section for a switch and the hosts behind it."""
        lines = f'p4runtime = "{p4runtime[name]}"\npipeline_lanes = {job.lanes}\n'
        lines += f"device_id = {list(topology.switches).index(name) + 1}\n"
        if any(link.rate_mbit is not None for _, link, _ in topology.cables(name)):
            lines += f"queue_depth = {topology.switches[name].mark_from}\n"
        if not addressed:
            return lines
        mac, ip = topology.address_of(name)
        lines += f'address = {{ mac = "{mac}", ip = "{ip.partition("/")[0]}" }}\n'
        bridge = ", ".join(f'"{mac}" = {port}' for mac, port in topology.bridge(name).items())
        lines += f"bridge = {{ {bridge} }}\n"
        for host in hosts:
            mac, ip = topology.address_of(host)
            lines += f'[{section}hosts.{topology.attachments[host][1]}]\nmac = "{mac}"\n'
            lines += f'ip = "{ip.partition("/")[0]}"\n'
        return lines

    racks = _racks(topology, job)
    if not racks:
        text += f"[ports]\nserver = {server}\nworkers = {ports(job.workers)}\n"
        return text + "[switch]\n" + switch(spine, "", (*job.workers, job.server))
    text += f"[spine]\nserver = {server}\n" + switch(spine, "spine.", [job.server])
    for rack, hosts in racks.items():
        uplink, spine_port = topology.trunks[rack, spine]
        text += f"[[racks]]\nuplink = {uplink}\nspine_port = {spine_port}\nworkers = {ports(hosts)}\n"
        text += switch(rack, "racks.", hosts)
    return text


def _racks(topology: Topology, job: JobNode) -> dict[str, list[str]]:
    """Return the workers' hosts by their switch; nothing if that is the server's switch."""
    racks: dict[str, list[str]] = {}
    for host in job.workers:
        racks.setdefault(topology.attachments[host][0], []).append(host)
    return {} if topology.attachments[job.server][0] in racks else racks


def _check_links(topology: Topology) -> None:
    """Raise ValueError for wrong ends, if an end has no link or several, or if switches form a ring."""
    for number, link in enumerate(topology.links):
        for end in link.ends:
            if end in topology.hosts:
                continue
            port = switch_port(end)
            if port is None or port[0] not in topology.switches:
                raise ValueError(
                    f"links.{number}: {end!r}: is neither a host nor a switch port; use one, such as h1 or "
                    "s1-p1"
                )
            if not 1 <= port[1] < CPU_PORT:
                raise ValueError(
                    f"links.{number}: {end!r}: port {port[1]} is out of range; use 1 to {CPU_PORT - 1}"
                )
        if all(end in topology.hosts for end in link.ends):
            raise ValueError(f"links.{number}: {link}: joins two hosts; put a switch between them")
    uses = Counter(end for link in topology.links for end in link.ends)
    for end, count in uses.items():
        if count > 1:
            raise ValueError(f"links: {end!r}: has {count} links; give it one")
    for name in topology.hosts:
        if not uses[name]:
            raise ValueError(f"hosts: {name!r}: has no link; plug it into a switch")
    # In a ring of switches, broadcasts would circulate endlessly.
    connected = {name: {name} for name in topology.switches}
    for number, link in enumerate(topology.links):
        near, far = (switch_port(end) for end in link.ends)
        if near and far:
            if near[0] in connected[far[0]]:
                raise ValueError(
                    f"links.{number}: {link}: closes a ring: {near[0]} and {far[0]} are joined "
                    "already; remove it"
                )
            merged = connected[near[0]] | connected[far[0]]
            connected.update(dict.fromkeys(merged, merged))


def _check_job(topology: Topology, job: JobNode) -> None:
    """Raise ValueError if the job's hosts do not exist, have two roles or are behind wrong switches."""
    if job.program is None and job.lanes not in COMPILED_LANES:
        raise ValueError(
            f"job.lanes: {job.lanes}: is not compiled; use {', '.join(map(str, COMPILED_LANES))}"
        )
    for name, count in Counter((*job.workers, job.server)).items():
        if name not in topology.hosts:
            raise ValueError(f"job: {name!r}: is not a host; use one of {', '.join(topology.hosts)}")
        if count > 1:
            raise ValueError(f"job: {name!r}: has {count} roles; give each host one")
    spine = topology.attachments[job.server][0]
    racks = Counter(topology.attachments[name][0] for name in job.workers)
    unlinked = sorted(rack for rack in racks if (rack, spine) not in topology.trunks)
    if set(racks) != {spine} and (spine in racks or unlinked):
        raise ValueError(
            f"job: its workers are behind {', '.join(sorted(racks))}, its server behind {spine}: put all "
            "behind one switch, or the server behind one that is linked to all of the workers' switches"
        )
    if job.program is not None:
        if set(racks) != {spine}:
            raise ValueError("job.program: runs on one switch; put all workers behind that of the server")
        if not 1 <= job.lanes <= max(COMPILED_LANES):
            raise ValueError(f"job.lanes: {job.lanes}: is out of range; use 1 to {max(COMPILED_LANES)}")
    for rack, count in racks.items():
        if count > MAX_WORKERS:
            raise ValueError(f"job: {count} workers are behind {rack}; a switch sums {MAX_WORKERS} at most")
