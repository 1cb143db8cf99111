"""Collectives on a scenario's links: streams between hosts, through switches that only forward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.rivals import flow_kernels as kernels
from benchmarks.rivals.collectives import COLLECTIVES, Transfers
from benchmarks.rivals.flow_kernels import ROW_WORDS, FlowColumn, FlowState, HostColumn, Ints, Out
from peelsum.simulation.engine import Engine, Outputs, Timerless
from peelsum.simulation.hosts import PORT
from peelsum.simulation.scenario import Job, Scenario
from peelsum.simulation.topologies import build
from peelsum.simulation.trains import NEVER, PS_PER_S, Arrivals, SimulationError, Train, joined, ps
from peelsum.transport.congestion import new_numbers
from peelsum.wire import FRAME_HEADER_BYTES, HEADER_BYTES

_HEADERS = FRAME_HEADER_BYTES + HEADER_BYTES
_ROOM = 4096


@dataclass(frozen=True)
class FlowRow:
    """The results of a collective."""

    collective: str
    """Its name."""
    seconds: float
    """Simulated seconds from the start to the last transfer."""
    packets: int
    """Packets that hosts sent, acknowledgements excluded."""
    resends: int
    """Packets sent again."""
    octets: int
    """Bytes on all links."""
    drops: dict[str, int]
    """Packets dropped by links, by reason."""
    offered: int
    """Packets that came to links' queues."""
    delivered: int
    """Packets that arrived."""
    wrong: int
    """Parts of sums with a wrong value, over all workers."""


class Forwarder(Timerless):
    """A switch that forwards by destination. `ports` has the port to each host, int32[hosts]."""

    def __init__(self, hosts: int) -> None:
        self.ports = np.zeros(hosts, np.int32)

    def run(self, arrivals: Arrivals | None, until: int) -> Outputs:
        """Send every packet on."""
        if arrivals is None:
            return []
        train = arrivals.train
        out = self.ports[train.data.view(np.uint32)[:, 1]]
        order = np.argsort(out, kind="stable")
        edges = np.flatnonzero(np.diff(out[order])) + 1
        return [(int(out[rows[0]]), train.rows(rows)) for rows in np.split(order, edges)]


class FlowHost:
    """A host that sends its part of a collective's transfers."""

    def __init__(
        self, state: FlowState, owner: Ints, host: int, *, start: int, least: int, gbps: float
    ) -> None:
        self._state, self._owner, self._least, self._start = state, owner, least, start
        self._byte_ps = 8000 / gbps
        self._mine = np.flatnonzero(state.connections[:, FlowColumn.SOURCE] == host)
        self._host = np.zeros(len(HostColumn), np.int64)
        self._host[HostColumn.DUE] = NEVER
        self._host[HostColumn.FRAME_PS] = int(state.sizes.max() * self._byte_ps)
        self._out = Out(
            np.zeros((_ROOM, ROW_WORDS), np.uint32),
            np.zeros(_ROOM, np.int64),
            np.zeros(_ROOM, np.int32),
            np.zeros(1, np.int64),
        )

    def next_time(self) -> int:
        """Return when the host starts, or its next timer."""
        return min(self._start, int(self._host[HostColumn.DUE]))

    def run(self, arrivals: Arrivals | None, until: int) -> Outputs:
        """Process packets and timers before `until`."""
        rows = np.zeros((0, ROW_WORDS), np.uint32)
        times = np.zeros(0, np.int64)
        if arrivals is not None:
            rows, times = arrivals.train.data.view(np.uint32), arrivals.train.times
        if self._start < until:
            # What arrives in the same step, but before, is taken at the start.
            self._host[HostColumn.NOW] = max(int(self._host[HostColumn.NOW]), self._start)
            self._start = NEVER
            kernels.start(self._state, self._mine)
        self._host[HostColumn.NEXT] = 0
        sent: list[Train] = []
        while not kernels.run_host(
            self._state,
            self._owner,
            self._mine,
            rows,
            times,
            until,
            self._least,
            self._byte_ps,
            self._host,
            self._out,
        ):
            sent += self._taken()
        sent += self._taken()
        return [(PORT, joined(sent))] if sent else []

    def _taken(self) -> list[Train]:
        count, out = int(self._out.filled[0]), self._out
        if not count:
            return []
        out.filled[0] = 0
        data = out.rows[:count].copy().view(np.uint8)
        return [Train(out.times[:count].copy(), out.sizes[:count].copy(), data)]


def run_collective(
    scenario: Scenario,
    name: str,
    collective: Callable[[int, int], Transfers] | None = None,
    on_step: Callable[[Engine], None] | None = None,
) -> FlowRow:
    """Run a collective of the scenario's first job on the scenario's links, and return its row.

    collective: the function, if it is not one of COLLECTIVES. Packets carry `lanes` words with the headers of
    a peelsum packet; windows and timers are the job's. Raises SimulationError for an unknown name, or if it
    does not end by `limit_s`.
    """
    if collective is None and name not in COLLECTIVES:
        raise SimulationError(f"algorithm: {name!r} is unknown; use {', '.join(COLLECTIVES)}")
    job = scenario.jobs[0]
    transfers = (collective or COLLECTIVES[name])(job.workers, job.elements)
    state, owner = flow_state(transfers, scenario.lanes, job)
    engine = Engine(scenario.seed)
    hosts = transfers.workers
    starts = [ps(job.start_s)] * hosts
    rates = [scenario.network.gbps] * hosts
    for straggler in job.stragglers:
        starts[straggler.worker] += ps(straggler.late_s)
        rates[straggler.worker] = straggler.gbps or scenario.network.gbps
    least = ps(job.timers.resend_least)
    nodes = [
        FlowHost(state, owner, host, start=starts[host], least=least, gbps=rates[host])
        for host in range(hosts)
    ]
    build(engine, scenario, nodes, hosts, lambda: Forwarder(hosts), _route)
    tell = None if on_step is None else (lambda: on_step(engine))
    engine.run(lambda: bool((state.missing == 0).all()), scenario.limit_s, tell)
    return _row(name, scenario, transfers, state, engine)


def _route(switch: Forwarder, host: int, port: int) -> None:
    switch.ports[host] = port


def flow_state(transfers: Transfers, lanes: int, job: Job) -> tuple[FlowState, Ints]:
    """Return the state of all connections before the first packet, and the connection of each transfer."""
    pairs = _by_connection(transfers)
    # Transfers are numbered by connection: a connection's are consecutive.
    number = {t: n for n, t in enumerate(t for each in pairs.values() for t in each)}
    order = sorted(number, key=lambda t: number[t])
    connections = np.zeros((len(pairs), len(FlowColumn)), np.int64)
    connections[:, FlowColumn.HEARD] = -1
    count = len(order)
    owner, ends, missing = (np.zeros(count, np.int64) for _ in range(3))
    sizes: list[NDArray[np.int32]] = []
    first = 0
    for c, ((source, target), each) in enumerate(pairs.items()):
        connections[c, [FlowColumn.SOURCE, FlowColumn.TARGET, FlowColumn.FIRST]] = source, target, first
        connections[c, [FlowColumn.TRANSFER, FlowColumn.LAST_TRANSFER]] = (
            number[each[0]],
            number[each[-1]] + 1,
        )
        end = 0
        for t in each:
            packets = _packet_sizes(transfers.each[t].words, lanes)
            sizes.append(packets)
            end += len(packets)
            owner[number[t]], ends[number[t]], missing[number[t]] = c, end, len(packets)
        first += end
    followers = _followers(transfers, order, number)
    flat = np.concatenate(sizes)
    state = FlowState(
        connections=connections,
        windows=np.array([new_numbers(job.window, job.initial_window) for _ in pairs]),
        sizes=flat,
        transfer=np.repeat(np.arange(count, dtype=np.int32), missing),
        acked=np.zeros(len(flat), np.bool_),
        received=np.zeros(len(flat), np.bool_),
        number=np.full(len(flat), -1, np.int64),
        sent_at=np.zeros(len(flat), np.int64),
        pending=np.zeros((len(pairs), kernels.MOST_ACKS), np.uint32),
        ends=ends,
        missing=missing,
        waits=np.array([len(transfers.each[t].after) + 1 for t in order], np.int64),
        followers=np.cumsum([0, *map(len, followers)], dtype=np.int64),
        follower=np.array([follower for each in followers for follower in each], np.int64),
        done_at=np.zeros(count, np.int64),
    )
    return state, owner


def _by_connection(transfers: Transfers) -> dict[tuple[int, int], list[int]]:
    """Return the indices of the transfers from each host to each other."""
    pairs: dict[tuple[int, int], list[int]] = {}
    for t, transfer in enumerate(transfers.each):
        pairs.setdefault((transfer.source, transfer.target), []).append(t)
    return pairs


def _followers(transfers: Transfers, order: list[int], number: Mapping[int, int]) -> list[list[int]]:
    """Return the transfers that wait for each transfer, all by their numbers."""
    followers: list[list[int]] = [[] for _ in order]
    for t in order:
        for before in transfers.each[t].after:
            followers[number[before]].append(number[t])
    return followers


def _packet_sizes(words: int, lanes: int) -> NDArray[np.int32]:
    """Return the bytes of a transfer's packets; one of no words still takes a packet."""
    packets = max(-(-words // lanes), 1)
    sizes = np.full(packets, _HEADERS + 4 * lanes, np.int32)
    sizes[-1] = max(_HEADERS + 4 * (words - (packets - 1) * lanes), kernels.ACK_BYTES)
    return sizes


def replayed(transfers: Transfers, arrived: Sequence[int]) -> int:
    """Return how many parts are wrong at workers if transfers take effect in the order of their arrival.

    Worker w starts with 3**(w % 30) + w in every part; integers have no limit here.
    """
    values = [3 ** (w % 30) + w for w in range(transfers.workers)]
    have = [[value] * transfers.parts for value in values]
    for t in sorted(range(len(transfers.each)), key=lambda t: (arrived[t], t)):
        transfer = transfers.each[t]
        brought = have[transfer.source][transfer.part]
        have[transfer.target][transfer.part] = brought + have[transfer.target][transfer.part] * transfer.adds
    expected = values[: transfers.parts] if transfers.gathers else [sum(values)] * transfers.parts
    return sum(a != b for w in range(transfers.workers) for a, b in zip(have[w], expected, strict=True))


def _row(name: str, scenario: Scenario, transfers: Transfers, state: FlowState, engine: Engine) -> FlowRow:
    links, arrived = engine.total(), [0] * len(transfers.each)
    for n, t in enumerate(t for each in _by_connection(transfers).values() for t in each):
        arrived[t] = int(state.done_at[n])
    return FlowRow(
        collective=name,
        seconds=max(arrived) / PS_PER_S - scenario.jobs[0].start_s,
        packets=int(state.connections[:, FlowColumn.SENT].sum()),
        resends=int(state.connections[:, FlowColumn.RESENDS].sum()),
        octets=links.octets,
        drops={"queue_full": links.queue_full, "lost": links.lost},
        offered=links.offered,
        delivered=links.delivered,
        wrong=replayed(transfers, arrived),
    )
