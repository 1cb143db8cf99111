"""The switches of a simulation: peelsum's, compiled or as specified, with the same tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from peelsum.pipelines import pipeline
from peelsum.simulation.engine import Outputs, Timerless, together
from peelsum.simulation.trains import PS_PER_S, Arrivals, Train
from peelsum.softswitch import Frames, Switch, load
from peelsum.softswitch.program.model import Program
from peelsum.spec import SpecSwitch
from peelsum.wire import FRAME_HEADER_BYTES, Level, Verdict, encapsulation, packet_bytes
from peelsum.wire.clock import TICK_US

_TICK_PS = TICK_US * PS_PER_S // 1_000_000
#: The frame's number follows its packet, where the program does not look (an Ethernet trailer).
_TRAILER = 4
#: Verdicts of packets that a switch neither passed on nor added up.
REFUSALS = range(Verdict.NOT_PEELSUM, Verdict.ABSORBED)


@dataclass(frozen=True)
class Admission:
    """A job's rows in one switch's tables, as the controller writes them."""

    job_id: int
    """1 to 255."""
    generation: int
    """As in the packets."""
    salt: int
    """Slot of chunk 0, before reduction."""
    up_port: int
    """Port to the server or to the spine."""
    workers: Mapping[int, int] = field(default_factory=dict)
    """Worker id behind each port, if the switch has workers."""
    racks: Mapping[int, int] = field(default_factory=dict)
    """Rack behind each port, if the switch is a spine."""
    return_ports: Mapping[int, int] = field(default_factory=dict)
    """Port towards each worker."""
    level: Level = Level.ONLY
    """The switch's place."""

    @property
    def members(self) -> dict[int, tuple[int, int]]:
        """Mask and first worker id behind each port."""
        workers = {port: (1 << worker % 32, worker) for port, worker in self.workers.items()}
        return workers | {port: (1 << rack, 32 * rack) for port, rack in self.racks.items()}

    @property
    def expected_mask(self) -> int:
        """The bitmap of a complete sum."""
        return sum(mask for mask, _ in self.members.values())


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

    def admit(self, job: Admission) -> None:
        """Write a job's rows."""
        prefix = "PeelsumIngress.aggregation.admission."
        members, paths = self._tables["members"], self._tables["return_paths"]
        members.insert((job.job_id, job.up_port), prefix + "admit_server")
        role = "admit_rack" if job.racks else "admit_worker"
        for port, member in job.members.items():
            members.insert((job.job_id, port), prefix + role, member)
        for worker, port in job.return_ports.items():
            paths.insert((job.job_id, worker), "PeelsumIngress.aggregation.delivery.return_to", (port,))
        self.switch.groups.set(job.job_id, [(port, 0) for port in job.members])
        row = (job.generation, job.salt, job.expected_mask, job.up_port, job.job_id)
        self._tables["jobs"].insert((job.job_id,), prefix + job.level.value, row)

    def verdicts(self) -> dict[Verdict, int]:
        """Return the packets by the program's verdict."""
        cells = next(c for name, c in self.switch.counters.items() if name.endswith("verdicts")).values()
        return {verdict: int(cells[verdict, 0]) for verdict in Verdict if cells[verdict, 0]}


class SpecifiedSwitch(Timerless):
    """The executable specification: any lanes, any power of two of slots from 256 on; 10 times slower."""

    def __init__(self, switch: SpecSwitch) -> None:
        self._switch = switch

    def admit(self, job: Admission) -> None:
        """Write a job's rows."""
        self._switch.admit_job(
            job.job_id,
            generation=job.generation,
            salt=job.salt,
            expected_mask=job.expected_mask,
            up_port=job.up_port,
            group=job.job_id,
            level=job.level,
        )
        self._switch.admit_server(job.job_id, job.up_port)
        for port, (mask, first) in job.members.items():
            if job.racks:
                self._switch.admit_rack(job.job_id, port, rack_mask=mask, first_worker=first)
            else:
                self._switch.admit_worker(job.job_id, port, worker_mask=mask, worker_id=first)
        for worker, port in job.return_ports.items():
            self._switch.return_to(job.job_id, worker, port)
        self._switch.set_group(job.job_id, list(job.members))

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
