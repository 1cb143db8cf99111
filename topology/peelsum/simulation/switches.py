"""The switches of a simulation: peelsum's, compiled or as specified, with the same tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from peelsum.control.description import SwitchPlan
from peelsum.pipelines import pipeline
from peelsum.simulation.engine import Outputs, Timerless, together
from peelsum.simulation.trains import PS_PER_S, Arrivals, Train
from peelsum.softswitch import Frames, Switch, load
from peelsum.softswitch.program.model import Program
from peelsum.spec import SpecSwitch
from peelsum.wire import FRAME_HEADER_BYTES, Verdict, encapsulation, packet_bytes
from peelsum.wire.clock import TICK_US

_TICK_PS = TICK_US * PS_PER_S // 1_000_000
#: The frame's number follows its packet, where the program does not look (an Ethernet trailer).
_TRAILER = 4
#: Verdicts of packets that a switch neither passed on nor added up.
REFUSALS = range(Verdict.NOT_PEELSUM, Verdict.ABSORBED)


class ProgramSwitch(Timerless):
    """A compiled P4 program in the softswitch, in memory. The data of trains are UDP payloads.

    payload_bytes: of the longest packet.
    """

    def __init__(self, program: Program, payload_bytes: int) -> None:
        self.switch = Switch(program)
        self._payload_end = FRAME_HEADER_BYTES + payload_bytes
        self._frames = np.zeros((0, self._payload_end + _TRAILER), np.uint8)

    def run(self, arrivals: Arrivals | None, until: int) -> Outputs:
        """Process packets in order of time, all of one tick of the slots' clock at once."""
        sent: dict[int, list[Train]] = {}
        if arrivals is not None:
            ticks = arrivals.train.times // _TICK_PS
            edges = [0, *(np.flatnonzero(np.diff(ticks)) + 1).tolist(), len(arrivals)]
            for first, stop in pairwise(edges):
                self._process(arrivals, slice(first, stop), sent)
        return together(sent)

    def _process(self, arrivals: Arrivals, rows: slice, sent: dict[int, list[Train]]) -> None:
        train = arrivals.train.rows(rows)
        count = len(train)
        if count > len(self._frames):
            self._frames = np.zeros((count, self._frames.shape[1]), np.uint8)
        frames = self._frames[:count]
        frames[:, FRAME_HEADER_BYTES : self._payload_end] = train.data
        numbers = np.arange(count, dtype=np.uint32).view(np.uint8).reshape(count, -1)
        for size in np.unique(train.sizes).tolist():
            equal = train.sizes == size
            header = encapsulation(size - FRAME_HEADER_BYTES)
            frames[equal, :FRAME_HEADER_BYTES] = np.frombuffer(header, np.uint8)
            frames[equal, size : size + _TRAILER] = numbers[equal]
        now_us = int(train.times[0]) // _TICK_PS * TICK_US
        out = self.switch.process(Frames(frames, train.sizes + _TRAILER, arrivals.ports[rows]), now_us)
        sizes = out.length - _TRAILER
        trailers = np.take_along_axis(out.data, sizes[:, np.newaxis] + np.arange(_TRAILER), axis=1)
        cause = trailers.view(np.uint32)[:, 0]
        by_port = np.argsort(out.port, kind="stable")
        ports = out.port[by_port]
        for chosen in np.split(by_port, np.flatnonzero(np.diff(ports)) + 1) if len(ports) else ():
            data = np.ascontiguousarray(out.data[chosen, FRAME_HEADER_BYTES : self._payload_end])
            leaving = Train(train.times[cause[chosen]], sizes[chosen], data)
            sent.setdefault(int(out.port[chosen[0]]), []).append(leaving)


class CompiledSwitch(ProgramSwitch):
    """The committed P4 program in the softswitch, in memory. It has 4,096 slots.

    Raises PipelineError if there is no pipeline of so many lanes.
    """

    def __init__(self, lanes: int) -> None:
        super().__init__(load(pipeline(lanes).json_path), packet_bytes(lanes))
        self._tables = {name.rpartition(".")[2]: table for name, table in self.switch.tables.items()}

    def admit(self, plan: SwitchPlan, generation: int, salt: int) -> None:
        """Write a job's rows. salt: the slot of chunk 0, before reduction."""
        prefix = "PeelsumIngress.aggregation.admission."
        members, paths = self._tables["members"], self._tables["return_paths"]
        members.insert((plan.job_id, plan.up_port), prefix + "admit_server")
        for member in plan.members:
            role = "admit_rack" if member.is_rack else "admit_worker"
            members.insert((plan.job_id, member.port), prefix + role, (member.mask, member.first_worker))
        for worker, port in plan.return_ports.items():
            paths.insert((plan.job_id, worker), "PeelsumIngress.aggregation.delivery.return_to", (port,))
        self.switch.groups.set(plan.job_id, [(port, 0) for port in plan.group])
        row = (generation, salt, plan.expected_mask, plan.up_port, plan.job_id)
        self._tables["jobs"].insert((plan.job_id,), prefix + plan.level.value, row)

    def verdicts(self) -> dict[Verdict, int]:
        """Return the packets by the program's verdict."""
        cells = next(c for name, c in self.switch.counters.items() if name.endswith("verdicts")).values()
        return {verdict: int(cells[verdict, 0]) for verdict in Verdict if cells[verdict, 0]}


class SpecifiedSwitch(Timerless):
    """The executable specification: any lanes, any power of two of slots from 256 on; 10 times slower."""

    def __init__(self, switch: SpecSwitch) -> None:
        self._switch = switch

    def admit(self, plan: SwitchPlan, generation: int, salt: int) -> None:
        """Write a job's rows. salt: the slot of chunk 0, before reduction."""
        switch, job_id = self._switch, plan.job_id
        switch.admit_job(
            job_id,
            generation=generation,
            salt=salt,
            expected_mask=plan.expected_mask,
            up_port=plan.up_port,
            group=job_id,
            level=plan.level,
        )
        switch.admit_server(job_id, plan.up_port)
        for port, mask, first, is_rack in map(astuple, plan.members):
            if is_rack:
                switch.admit_rack(job_id, port, rack_mask=mask, first_worker=first)
            else:
                switch.admit_worker(job_id, port, worker_mask=mask, worker_id=first)
        for worker, port in plan.return_ports.items():
            switch.return_to(job_id, worker, port)
        switch.set_group(job_id, list(plan.group))

    def verdicts(self) -> dict[Verdict, int]:
        """Return the packets by verdict."""
        return {verdict: count for verdict in Verdict if (count := self._switch.verdicts[verdict])}

    def run(self, arrivals: Arrivals | None, until: int) -> Outputs:
        """Process packets in order of time."""
        rows: dict[int, list[tuple[int, int, bytes]]] = {}
        if arrivals is not None:
            train = arrivals.train
            for i in range(len(arrivals)):
                now_us = int(train.times[i]) // _TICK_PS * TICK_US
                for port, payload in self._switch.process(
                    int(arrivals.ports[i]), train.data[i].tobytes(), now_us
                ):
                    rows.setdefault(port, []).append((int(train.times[i]), int(train.sizes[i]), payload))
        return [(port, _train(rows[port])) for port in sorted(rows)]


#: A switch that sums.
SummingSwitch = CompiledSwitch | SpecifiedSwitch


def _train(rows: list[tuple[int, int, bytes]]) -> Train:
    times, sizes, payloads = zip(*rows, strict=True)
    data: NDArray[np.uint8] = np.frombuffer(bytearray(b"".join(payloads)), np.uint8).reshape(len(rows), -1)
    return Train(np.array(times, np.int64), np.array(sizes, np.int32), data)


def refused(verdicts: Mapping[Verdict, int]) -> dict[str, int]:
    """Return the packets that a switch dropped, by reason; absorbed ones are in a sum."""
    return {v.name.lower(): count for v, count in verdicts.items() if v.value in REFUSALS}
