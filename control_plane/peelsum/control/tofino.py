"""The driver for Tofino 1 and 2 over BF Runtime: registers, limits and ports.

A device port's number is pipe * 128 + the port's number in the pipe. Each pipe has its own registers, and a
packet uses those of its ingress pipe. So all ports of a job must be in the same pipe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from math import ceil
from typing import Any, NamedTuple

from finsy.p4entity import P4TableAction, P4TableEntry

from peelsum.control.bfruntime import BfRuntimeSession, row
from peelsum.control.description import SwitchPlan
from peelsum.control.errors import DescriptionError
from peelsum.control.sections import TofinoPort, TofinoSection
from peelsum.control.session import lanes_and_slots
from peelsum.wire import FRAME_HEADER_BYTES, RESERVED_JOB_ID, RESULT_KEPT, packet_bytes
from peelsum.wire.clock import NEVER_TICKS


class _Device(NamedTuple):
    """The differences between Tofino 1 and 2."""

    cell_bytes: int
    """The size of a buffer cell, the unit of queue depths: tm_tofino.h, tm_tof2.h of p4lang/open-p4studio."""
    processor_port: int
    """The port of the switch's CPU, the default of peelsum.p4."""


#: The devices by the architecture in P4Info.
ARCHITECTURES = {"tna": _Device(80, 192), "t2na": _Device(176, 0)}
#: One tick of the program's clock: a time in nanoseconds without its low 16 bits.
_TOFINO_TICK_US = 65.536
_PIPE_BITS = 7
_JOB_OF_TAG = 0xFF
_MAX_DEPTH = (1 << 19) - 1
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
        self._device = ARCHITECTURES[session.running_schema().p4info.pkg_info.arch]

    def check(self, plan: SwitchPlan) -> None:
        """Raise DescriptionError if the ports are in several pipes, or have other settings than described."""
        self._pipe(plan)
        self._missing_ports(plan.switch.tofino, plan.section)

    def bring_up(self, described: TofinoSection | None, section: str) -> None:
        """Add and enable the described ports that the switch does not have yet.

        section: the name of the switch's section. Raises DescriptionError if a port has other settings.
        """
        table = self._session.tables.table("$PORT")
        missing = self._missing_ports(described, section)
        self._session.write_raw(
            [row("INSERT", table, port, _settings(config)) for port, config in missing.items()]
        )

    def limit_updates(self, age_limit_ms: float | None, queue_depth: int | None) -> list[Any]:
        """Return the updates that set limits. None does not change a limit.

        A queue depth in packets is converted into buffer cells, for packets of the pipeline's size.
        """
        updates: list[Any] = []
        if age_limit_ms is not None:
            table = self._session.tables.table("owner.age_limit")
            ticks = round(min(age_limit_ms * 1000 / _TOFINO_TICK_US, NEVER_TICKS))
            updates.append(row("MODIFY", table, None, {"value": ticks}))
        if queue_depth is not None:
            frame = FRAME_HEADER_BYTES + packet_bytes(lanes_and_slots(self._session)[0])
            cells = queue_depth * ceil(frame / self._device.cell_bytes)
            action = P4TableAction("mark_from", depth=min(cells, _MAX_DEPTH))
            updates.append(~P4TableEntry("congestion", action=action, is_default_action=True))
        return updates

    def free_slots(self, plan: SwitchPlan) -> None:
        """Free the slots of the job's earlier generations in its pipe.

        A freed slot keeps its expiry time, because the switch's clock cannot be read.
        """
        table, pipe = self._session.tables.table("owner.owner"), self._pipe(plan)
        freed = [
            row("MODIFY", table, slot, {"tag": 0, "expiry": expiry})
            for slot, (tag, expiry) in self._owners(pipe).items()
            if tag & _JOB_OF_TAG == plan.job_id
        ]
        self._session.write_raw(freed, pipe)

    def free_stale_slots(self) -> None:
        """Do nothing, because the switch's clock cannot be read."""

    def secret_ports(self) -> None:
        """Return None: no port of a Tofino is a UDP socket."""

    def secret_updates(self, secrets: Mapping[int, str], known: Collection[int] | None) -> list[Any]:
        """Return no updates: no port of a Tofino is a UDP socket."""
        return []

    def slots_in_use(self) -> dict[int, int]:
        """Return the number of slots in use by each job, in all pipes together."""
        counts, marks = Counter[int](), self._session.tables.table("marks.slot_marks")
        (first_slot,) = self._session.values(self._session.tables.table("owner.owner"), key=0).values()
        for pipe in range(len(first_slot["tag"])):
            slots = self._session.values(marks, pipe=pipe)
            kept = {slot for slot, data in slots.items() if data["f1"][0].stream[-1] & RESULT_KEPT}
            owners = self._owners(pipe).items()
            counts.update(tag & _JOB_OF_TAG for slot, (tag, _) in owners if slot not in kept)
        return {job_id: count for job_id, count in counts.items() if job_id != RESERVED_JOB_ID}

    def _pipe(self, plan: SwitchPlan) -> int:
        """Return the pipe of a job's ports.

        Raises DescriptionError if they are in several pipes, or one is the CPU's port.
        """
        used, tofino = (plan.up_port, *plan.group), plan.switch.tofino
        processor = tofino.processor_port if tofino else None
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

    def _missing_ports(self, described: TofinoSection | None, section: str) -> dict[int, TofinoPort]:
        """Return the described ports that the switch does not have yet, by number.

        Raises DescriptionError if a port has other settings than described.
        """
        missing = {}
        for name, port in (described.ports if described else {}).items():
            current = self._port(int(name))
            if not current:
                missing[int(name)] = port
            elif any(_settings(port)[setting] != value for setting, value in current.items()):
                raise DescriptionError(
                    f"{section}.tofino.ports.{name}: {port.speed}, {port.fec}: the switch has it with "
                    f"{', '.join(current.values())}; remove it there, or describe it as it is"
                )
        return missing

    def _port(self, port: int) -> dict[str, str]:
        """Return speed and FEC of a port; an empty dictionary if the port has not been added."""
        return {
            name: data[name][0].str_val
            for data in self._session.values(self._session.tables.table("$PORT"), key=port).values()
            for name in ("$SPEED", "$FEC")
        }

    def _owners(self, pipe: int) -> dict[int, tuple[int, int]]:
        """Return the tag and the expiry time of each slot of a pipe."""
        slots = self._session.values(self._session.tables.table("owner.owner"), pipe=pipe)
        return {
            slot: (
                int.from_bytes(data["tag"][0].stream, "big"),
                int.from_bytes(data["expiry"][0].stream, "big"),
            )
            for slot, data in slots.items()
        }


def _settings(port: TofinoPort) -> Mapping[str, object]:
    """Return the data of a row in `$PORT` for a described port."""
    settings = {
        "$SPEED": f"BF_SPEED_{port.speed}",
        "$FEC": _FEC[port.fec],
        "$AUTO_NEGOTIATION": _NEGOTIATION[port.autonegotiation],
        "$PORT_ENABLE": True,
    }
    return settings if port.serdes_lanes is None else {**settings, "$N_LANES": port.serdes_lanes}
