"""Tofino 1 and 2 over BF Runtime: registers of each pipe, limits, and ports that have to be brought up.

A device port's number is its pipe * 128 + its place in the pipe. A packet meets the registers of the pipe
that it enters by, so all ports of a job are in one pipe.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import ceil
from typing import Any, NamedTuple

from peelsum.control.bfruntime import BfRuntimeSession, default_row, row
from peelsum.control.entries import queue_limit_entry
from peelsum.control.errors import DescriptionError
from peelsum.control.plan import SwitchPlan
from peelsum.control.sections import TofinoPort, TofinoSection
from peelsum.control.session import lanes
from peelsum.wire import FRAME_HEADER_BYTES, RESERVED_JOB_ID, packet_bytes
from peelsum.wire.clock import NEVER_TICKS


class _Device(NamedTuple):
    """Differences between the two devices."""

    cell_bytes: int
    """Bytes of the cells that a queue's depth counts: tm_tofino.h and tm_tof2.h of p4lang/open-p4studio."""
    processor_port: int
    """The port of the switch's processor, as peelsum.p4 has it by default."""


#: By the architecture in P4Info.
ARCHITECTURES = {"tna": _Device(80, 192), "t2na": _Device(176, 0)}
#: One tick of the clock: the program drops the low 16 bits of a time in nanoseconds.
_TOFINO_TICK_US = 65.536
_PIPE_BITS = 7
_JOB_OF_TAG = 0xFF
_DEEPEST = (1 << 19) - 1
_SPEEDS = "BF_SPEED_{}"
_FEC = {
    "none": "BF_FEC_TYP_NONE",
    "firecode": "BF_FEC_TYP_FIRECODE",
    "reed_solomon": "BF_FEC_TYP_REED_SOLOMON",
}
_NEGOTIATION = {None: "PM_AN_DEFAULT", True: "PM_AN_FORCE_ENABLE", False: "PM_AN_FORCE_DISABLE"}


class Tofino:
    """A Tofino that runs the program, behind bf_switchd."""

    def __init__(self, session: BfRuntimeSession) -> None:
        self._session = session
        self._device = ARCHITECTURES[session.loaded().p4info.pkg_info.arch]

    def check(self, plan: SwitchPlan) -> None:
        """Raise DescriptionError unless one pipe has all ports, and described ports are as the switch's."""
        self._pipe(plan)
        self._missing(plan.switch.tofino, plan.section)

    def bring_up(self, described: TofinoSection | None, section: str) -> None:
        """Add and enable the described ports that the switch does not have.

        section: name of the switch's table. Raises DescriptionError if one is there with other settings.
        """
        table = self._session.tables.table("$PORT")
        missing = self._missing(described, section)
        self._session.write_raw([row("INSERT", table, port, _settings(one)) for port, one in missing.items()])

    def limit_updates(self, age_limit_ms: float | None, queue_depth: int | None) -> list[Any]:
        """Return the updates of limits; None keeps one. A queue's depth becomes cells of whole packets."""
        updates: list[Any] = []
        if age_limit_ms is not None:
            table = self._session.tables.table("owner.age_limit")
            updates.append(default_row(table, {"value": _ticks(age_limit_ms)}))
        if queue_depth is not None:
            frame = FRAME_HEADER_BYTES + packet_bytes(lanes(self._session))
            cells = queue_depth * ceil(frame / self._device.cell_bytes)
            updates.append(~queue_limit_entry(min(cells, _DEEPEST)))
        return updates

    def free_slots(self, plan: SwitchPlan) -> None:
        """Free the slots of the job's pipe that its earlier generations hold.

        A freed slot keeps its expiry, as the switch's clock cannot be read.
        """
        table, pipe = self._session.tables.table("owner.owner"), self._pipe(plan)
        freed = [
            row("MODIFY", table, slot, {"tag": 0, "expiry": expiry})
            for slot, (tag, expiry) in self._owners(pipe).items()
            if tag & _JOB_OF_TAG == plan.job_id
        ]
        self._session.write_raw(freed, pipe)

    def secret_ports(self) -> None:
        """Return None: no port of a Tofino is a UDP socket."""

    def secret_updates(self, secrets: Mapping[int, str], known: Collection[int] | None) -> list[Any]:
        """Return none, for the same reason."""
        return []

    def slots_in_use(self) -> dict[int, int]:
        """Return the number of slots that each job holds, in all pipes."""
        found: dict[int, int] = {}
        for pipe in self._pipes():
            for tag, _ in self._owners(pipe).values():
                if (job_id := tag & _JOB_OF_TAG) != RESERVED_JOB_ID:
                    found[job_id] = found.get(job_id, 0) + 1
        return found

    def _pipe(self, plan: SwitchPlan) -> int:
        """Return the pipe of a job. Raises DescriptionError if it has several, or the processor's port."""
        used, described = (plan.up_port, *plan.group), plan.switch.tofino
        processor = described.processor_port if described else None
        if processor is None:
            processor = self._device.processor_port
        if processor in used:
            raise DescriptionError(f"{plan.prefix}ports: {processor}: is the processor's port; use another")
        pipes = sorted({port >> _PIPE_BITS for port in used})
        if len(pipes) > 1:
            raise DescriptionError(
                f"{plan.prefix}ports: {', '.join(map(str, used))}: are in pipes "
                f"{', '.join(map(str, pipes))}, each with registers of its own; take all from one pipe, "
                "whose ports have the same port // 128"
            )
        return pipes[0]

    def _missing(self, described: TofinoSection | None, section: str) -> dict[int, TofinoPort]:
        """Return the described ports that the switch does not have; raise for one with other settings."""
        missing = {}
        for name, wanted in (described.ports if described else {}).items():
            found = self._port(int(name))
            if not found:
                missing[int(name)] = wanted
            elif any(_settings(wanted)[setting] != value for setting, value in found.items()):
                raise DescriptionError(
                    f"{section}.tofino.ports.{name}: {wanted.speed}, {wanted.fec}: the switch has it with "
                    f"{', '.join(found.values())}; remove it there, or describe it as it is"
                )
        return missing

    def _port(self, port: int) -> dict[str, str]:
        """Return speed and FEC of a port; nothing if it has not been added."""
        table = self._session.tables.table("$PORT")
        numbers = {table.data[name].number: name for name in ("$SPEED", "$FEC")}
        return {
            numbers[field.field_id]: field.str_val
            for data in self._session.values(table, key=port).values()
            for field in data.fields
            if field.field_id in numbers
        }

    def _owners(self, pipe: int) -> dict[int, tuple[int, int]]:
        """Return tag and expiry of every slot of a pipe."""
        table = self._session.tables.table("owner.owner")
        names = {table.data[name].number: name for name in ("tag", "expiry")}
        found = {}
        for slot, data in self._session.values(table, pipe=pipe).items():
            pair = {names[field.field_id]: int.from_bytes(field.stream, "big") for field in data.fields}
            found[slot] = (pair["tag"], pair["expiry"])
        return found

    def _pipes(self) -> range:
        """Return the switch's pipes, as many as a register's value has."""
        table = self._session.tables.table("owner.owner")
        (data,) = self._session.values(table, key=0).values()
        return range(sum(field.field_id == table.data["tag"].number for field in data.fields))


def _settings(port: TofinoPort) -> Mapping[str, object]:
    settings = {
        "$SPEED": _SPEEDS.format(port.speed),
        "$FEC": _FEC[port.fec],
        "$AUTO_NEGOTIATION": _NEGOTIATION[port.autonegotiation],
        "$PORT_ENABLE": True,
    }
    return settings if port.serdes_lanes is None else {**settings, "$N_LANES": port.serdes_lanes}


def _ticks(age_limit_ms: float) -> int:
    ticks = age_limit_ms * 1000 / _TOFINO_TICK_US
    return NEVER_TICKS if ticks >= NEVER_TICKS else round(ticks)
