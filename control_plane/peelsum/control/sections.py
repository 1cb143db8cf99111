"""The TOML sections that both kinds of job descriptions share, and the types of their fields.

These checks need no connection to a switch. Limits of its pipeline are checked at admission.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from ipaddress import IPv4Address, IPv4Network
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from peelsum.addresses import parse_address
from peelsum.wire import COMPILED_LANES, CPU_PORT, DEFAULT_LANES, DROP_PORT, MAX_WORKERS, RESERVED_JOB_ID

#: The sizes of the switch program's tables `bridge`, without the row for broadcasts, and `routes`.
MAX_BRIDGED, MAX_ROUTES = 1023, 1024
#: The largest job number: packets have 8 bits for it.
MAX_JOB_ID = 255
#: A port number as a TOML key, without leading zeros, so that no port has two keys.
_PORT_NUMBER = re.compile(r"0|[1-9][0-9]{0,3}")
_MAC_HINT = "six bytes in hexadecimal, as 02:00:00:00:00:01"

#: How similar a suggestion must be to an unknown name: `gbps` to `gbp` is, `network` to `worker` is not.
_MIN_SIMILARITY = 0.66
#: For each kind of range error: the bound's name in pydantic's error context, and the remedy.
_RANGES = {
    "greater_than": ("gt", "more than {}"),
    "greater_than_equal": ("ge", "{} or more"),
    "less_than": ("lt", "less than {}"),
    "less_than_equal": ("le", "{} or less"),
}


def _port(value: Any) -> Any:
    if isinstance(value, int) and value in (CPU_PORT, DROP_PORT):
        raise ValueError(f"port {value} is reserved by the switch; use another")
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


def _address(value: str) -> str:
    parse_address(value)
    return value


def _compiled_lanes(value: int) -> int:
    if value not in COMPILED_LANES:
        raise ValueError(f"is not compiled; use {', '.join(map(str, COMPILED_LANES))}")
    return value


def _check_distinct(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    entries = validate(value)
    if len(entries) < len(value):
        raise ValueError("has an address twice, in two spellings; list it once")
    return entries


_Distinct = WrapValidator(_check_distinct)
Port = Annotated[int, BeforeValidator(_port), Field(ge=0, lt=DROP_PORT)]
Mac = Annotated[int, BeforeValidator(_mac)]
P4RuntimeAddress = Annotated[str, AfterValidator(_address)]
Ipv4 = Annotated[int, BeforeValidator(_ip)]
#: A network address and a prefix length.
Prefix = Annotated[tuple[int, int], BeforeValidator(_prefix)]


class Section(BaseModel):
    """Base class of TOML sections. Values are not converted between types, and unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class HostAddress(Section):
    """A host's Ethernet and IPv4 addresses, as integers."""

    mac: Mac
    ip: Ipv4


class NextHop(Section):
    """A route's egress port, and the MAC address of the next host or router."""

    port: Port
    mac: Mac


class JobSection(Section):
    """`[job]`: the job's number, workers, window and timeout."""

    id: int = Field(gt=RESERVED_JOB_ID, le=MAX_JOB_ID)
    """The job's number, which every packet carries."""
    workers: int = Field(ge=2, le=MAX_WORKERS)
    """The number of workers."""
    window: int = Field(default=512, ge=1)
    """Chunks that a worker keeps in flight."""
    timeout_s: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """Seconds without progress after which a worker gives up."""


class TofinoPort(Section):
    """`ports.N` of a Tofino: the settings with which the device port N is brought up."""

    speed: Literal["10G", "25G", "40G", "50G", "100G", "200G", "400G"]
    """The speed in bits per second."""
    fec: Literal["none", "firecode", "reed_solomon"]
    """The forward error correction, which must be the same at both ends of a cable."""
    autonegotiation: bool | None = None
    """Whether to use autonegotiation; None lets the switch decide by the kind of cable."""
    serdes_lanes: int | None = Field(default=None, ge=1, le=8)
    """The number of serial lanes, if the speed permits several; None lets the switch decide."""


class TofinoSection(Section):
    """`[switch.tofino]`: the additional settings of a Tofino, which is controlled by BF Runtime."""

    program: str = Field(min_length=1)
    """The folder with the compiled program, from `peelsum switch compile --tofino --out`."""
    processor_port: int | None = Field(default=None, ge=0, lt=1 << 9)
    """The port of the switch's CPU, for which the program was compiled. None is 192 on Tofino 1 and 0 on
    Tofino 2. On a Tofino 1 with four pipes it is 320."""
    ports: dict[str, TofinoPort] = Field(default_factory=dict)
    """The ports to bring up, by device port number."""

    def check(self, where: str) -> None:
        """Raise ValueError if a key of `ports` is no port number. where: the name of this section."""
        for name in self.ports:
            if not _PORT_NUMBER.fullmatch(name):
                raise ValueError(f"{where}.ports.{name}: is not a number; use the device port, as 132")


class PlacedSwitch(Section):
    """The address of a switch, and the program that it must run."""

    p4runtime: P4RuntimeAddress
    """The address of the P4Runtime server, or of a Tofino's BF Runtime server, `host:port`."""
    device_id: int = Field(default=1, ge=0, lt=1 << 64)
    """The switch's device_id at that server."""
    pipeline_lanes: Annotated[int, AfterValidator(_compiled_lanes)] = DEFAULT_LANES
    """32-bit values per packet of the pipeline that must run."""
    tofino: TofinoSection | None = None
    """The settings of a Tofino; None for a switch with the v1model program."""

    @property
    def place(self) -> tuple[str, int]:
        """The address and device_id, which identify the switch."""
        return self.p4runtime, self.device_id


class SwitchSection(PlacedSwitch):
    """`[switch]`: the address of the switch, and its settings.

    Limits, bridge and routes apply to the whole switch: an admission that gives them replaces earlier ones.
    """

    p4runtime: P4RuntimeAddress = "127.0.0.1:9559"
    """As for `PlacedSwitch`."""
    age_limit_ms: float | None = Field(default=None, ge=0)
    """Milliseconds without a packet after which another chunk may take over a slot. None does not change the
    switch's limit, which is one second in a new pipeline."""
    queue_depth: int | None = Field(default=None, ge=0, lt=1 << 19)
    """The number of packets in a port's queue from which packets get an ECN mark. None does not change the
    switch's limit."""
    address: HostAddress | None = None
    """The source address of routed packets, and of packets to hosts with a given address."""
    bridge: Annotated[dict[Mac, Port], _Distinct] = Field(default_factory=dict, max_length=MAX_BRIDGED)
    """For other traffic: the port by MAC address. Broadcasts go to all these ports. If it is empty, the
    switch's bridge does not change."""
    routes: Annotated[dict[Prefix, NextHop], _Distinct] = Field(default_factory=dict, max_length=MAX_ROUTES)
    """For other traffic: the next hop by IPv4 prefix. If it is empty, the switch's routes do not change."""

    def check(self, where: str, hosts: Mapping[str, HostAddress]) -> None:
        """Raise ValueError if a port of a Tofino is no number, or the source address is missing.

        where: the name of the switch's section.
        """
        if self.tofino is not None:
            self.tofino.check(f"{where}.tofino")
        if (hosts or self.routes) and self.address is None:
            what = "hosts" if hosts else "routes"
            raise ValueError(
                f"{where}.address: is missing; {what} need a source address, {{mac = ..., ip = ...}}"
            )


def check_ports(where: str, ports: Sequence[int], hosts: Mapping[str, HostAddress]) -> None:
    """Raise ValueError if a port is used twice, or the key of a host is not one of the ports.

    where: the prefix of field names in errors: '' or 'section.'.
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


def first_validation_error(error: ValidationError, of: str, model: type[BaseModel]) -> str:
    """Return the first validation error as text: field, value and remedy.

    An unknown name is preferred: if it is misspelled, pydantic also reports the correct one as missing.
    of: the kind of description, e.g. 'a topology'. model: the class that was validated.
    """
    problems = error.errors(include_url=False)
    problem = next((item for item in problems if item["type"] == "extra_forbidden"), problems[0])
    where = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    match problem["type"]:
        case "missing":
            return f"{where}: is missing; add it"
        case "extra_forbidden":
            fields = _field_names(model, problem["loc"][:-1])
            suggestions = get_close_matches(str(problem["loc"][-1]), fields, 1, _MIN_SIMILARITY)
            remedy = f"call it {suggestions[0]!r}" if suggestions else f"use one of {', '.join(fields)}"
            return f"{where}: is not a field of {of}; {remedy}, or remove it"
        case kind if kind in _RANGES:
            name, remedy = _RANGES[kind]
            bound = str(problem["ctx"][name]).removesuffix(".0")
            return f"{where}: {problem['input']!r} is out of range; use {remedy.format(bound)}"
        case "value_error" if not where:
            return message
        case "model_type" | "model_attributes_type" | "dict_type":
            message = "must be a table, in JSON an object" + ("" if where else f", with the fields of {of}")
        case "tuple_type":
            message = "must be a list"
        case "too_short":
            message = f"must list at least {problem['ctx']['min_length']}"
        case "too_long":
            most, listed = problem["ctx"]["max_length"], len(problem["input"])
            return f"{where}: lists {listed}; list at most {most}"
    prefix = f"{where}: " if where else ""
    return f"{prefix}{problem['input']!r}: {message[0].lower()}{message[1:]}"


def _field_names(model: type[BaseModel], where: Sequence[str | int]) -> list[str]:
    """Return the field names of the section at the path `where` in a description."""
    models: list[type[BaseModel]] = [model]
    for step in where:
        fields = models[0].model_fields
        if str(step) in fields:  # otherwise `step` is the key of a mapping or the index of a list
            models = _models(fields[str(step)].annotation)
        if not models:
            return []
    return list(models[0].model_fields)


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the models in a type such as `dict[str, Host]` or `Host | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models(argument)]
