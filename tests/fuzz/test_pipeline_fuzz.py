"""Random and mutated frames reach the compiled pipeline while a job sums.

Hostile frames come from ports of another job, of no job and of the controller, and replays from the victim's
own ports. The switch must not raise, the victim's sums must stay exact, and every slot must become free
again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from frames import FRAME_HEADER_BYTES, frame
from numpy.typing import NDArray
from peelsum_packets import Job
from rigs import SoftswitchRig

from peelsum.pipelines import pipeline
from peelsum.softswitch import Frames, load
from peelsum.transport import AggregationServer, JobConfig, TensorCompleted, Timers, WorkerEndpoint
from peelsum.wire import (
    CPU_PORT,
    EVERYONE,
    UDP_PORT,
    Batch,
    Flag,
    Kind,
    Level,
    Verdict,
    fields_of,
    pack,
    packet_bytes,
)
from peelsum.wire.clock import TICK_US

LANES = 32
SIZE = packet_bytes(LANES)
STRIDE = 256
WORKER_PORTS, SERVER_PORT = (1, 2, 3), 8
HER_WORKERS, HER_SERVER, NOBODYS = (4, 5), 7, (0, 6, 9, 300, 511)
HOSTILE_PORTS = np.array([*HER_WORKERS * 3, HER_SERVER, HER_SERVER, *NOBODYS], np.int32)
AGE_TICKS = 100
TIMERS = Timers(first_answer=0.01, need=0.004, need_most=0.05, stall=5.0)
TENSOR_CHUNKS = 200
#: Where a frame's bytes decide most: addresses, lengths, ports and the packet's own header.
KIND_AT, HEADER_END = FRAME_HEADER_BYTES + 1, FRAME_HEADER_BYTES + 16


@dataclass
class Victim:
    """Three workers and their server, which sum tensor after tensor; each sum is compared bit for bit."""

    numbers: np.random.Generator
    config: JobConfig
    checked: int = 0
    expected: list[NDArray[np.uint32]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server = AggregationServer(self.config)
        self.workers = [WorkerEndpoint(self.config, worker) for worker in range(self.config.workers)]
        self.submit()

    def submit(self) -> None:
        """Submit one more tensor at every worker: odd tensors are OR-ed, even ones added."""
        shape = (self.config.workers, TENSOR_CHUNKS * LANES - 5)
        inputs = self.numbers.integers(0, 1 << 32, shape, dtype=np.uint32)
        unite = len(self.expected) % 2
        self.expected.append(np.bitwise_or.reduce(inputs) if unite else inputs.sum(axis=0, dtype=np.uint32))
        for worker, words in zip(self.workers, inputs, strict=True):
            worker.submit(words, "or" if unite else "add")

    def packets(self, now: float) -> list[tuple[int, Batch]]:
        """Return the packets that the hosts send, by port."""
        found = []
        machines = zip((*WORKER_PORTS, SERVER_PORT), (*self.workers, self.server), strict=True)
        for port, machine in machines:
            machine.expire(now)
            while len(batch := machine.to_send(now)):
                found.append((port, batch.copy()))
        return found

    def receive(self, port: int, batch: Batch, now: float) -> None:
        """Receive packets at one of the victim's ports; a completed tensor must equal the sum."""
        if port == SERVER_PORT:
            self.server.receive(batch, now)
            return
        for event in self.workers[WORKER_PORTS.index(port)].receive(batch, now):
            assert isinstance(event, TensorCompleted)
            np.testing.assert_array_equal(event.words, self.expected[event.ticket])
            self.checked += 1
            if event.ticket == len(self.expected) - 1:
                self.submit()


def framed(batch: Batch) -> NDArray[np.uint8]:
    """Return the packets as frames, uint8[n, STRIDE]."""
    rows = np.zeros((len(batch), STRIDE), np.uint8)
    rows[:, :FRAME_HEADER_BYTES] = np.frombuffer(frame(bytes(SIZE))[:FRAME_HEADER_BYTES], np.uint8)
    rows[:, FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + SIZE] = batch
    return rows


def hostile_frames(
    rng: np.random.Generator, count: int, data: NDArray[np.uint8], port: NDArray[np.int32]
) -> Frames:
    """Return `count` frames made from the victim's latest, uint8[n, STRIDE], which came in at `port`."""
    picked = rng.integers(0, len(data), count)
    rows, own = data[picked].copy(), port[picked]
    ports = rng.choice(HOSTILE_PORTS, count)
    length = np.full(count, FRAME_HEADER_BYTES + SIZE, np.int32)
    fate, how = rng.random(count), rng.random(count)
    replayed = fate < 0.1
    ports[replayed] = own[replayed]
    _forge_results(rng, rows, ports, fate < 0.05)
    _in_her_name(rng, rows, ports, (fate >= 0.1) & (fate < 0.5))
    _scramble(rng, rows, length, fate >= 0.35)
    _veil(rows, length, fate < 0.15, how)
    noise = fate >= 0.95
    rows[noise] = rng.integers(0, 256, (int(noise.sum()), STRIDE), np.uint8)
    controller = (fate >= 0.94) & ~noise
    ports[controller] = CPU_PORT
    rows[controller & (how < 0.5), KIND_AT] = Kind.RESET
    return Frames(rows, length, ports)


def _forge_results(
    rng: np.random.Generator, rows: NDArray[np.uint8], ports: NDArray[np.int32], chosen: NDArray[np.bool_]
) -> None:
    """Turn the chosen rows into results, some of unfinished chunks, from a port of no job."""
    packets = fields_of(rows[:, FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + SIZE], LANES)
    ports[chosen] = NOBODYS[1]
    packets["kind"][chosen] = Kind.RESULT
    packets["lanes"][chosen] = rng.integers(0, 1 << 32, LANES, np.uint32)


def _in_her_name(
    rng: np.random.Generator, rows: NDArray[np.uint8], ports: NDArray[np.int32], chosen: NDArray[np.bool_]
) -> None:
    """Turn the chosen rows into packets that the switch accepts for Mallory's own jobs."""
    packets = fields_of(rows[:, FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + SIZE], LANES)
    upwards, downwards = (
        [Kind.CONTRIBUTION, Kind.RETRY, Kind.RESEND, Kind.BYPASS],
        [Kind.RESULT, Kind.RESEND],
    )
    count = len(rows)
    serves = ports == HER_SERVER
    job_id = rng.choice([2, 3], count)  # in job 3 her workers' ports are racks' uplinks
    mine = (ports - HER_WORKERS[0]) * np.where(job_id == 3, 32, 1) & 0xFFFF
    made = pack(
        rng.integers(0, 1 << 32, (count, LANES), np.uint32),
        kind=np.where(serves, rng.choice(downwards, count), rng.choice(upwards, count)),
        flags=rng.choice([0, int(Flag.OR), int(Flag.CE), int(Flag.SPINE)], count),
        job_id=job_id,
        generation=packets["generation"],
        sender=np.where(serves, rng.choice([EVERYONE, 0, 9], count), mine),
        chunk_id=packets["chunk_id"].astype(np.int64) + rng.choice([0, 4096], count) & 0xFFFFFFFF,
        bitmap=rng.integers(0, 1 << 32, count),
    )
    rows[chosen, FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + SIZE] = made[chosen]


def _scramble(
    rng: np.random.Generator, rows: NDArray[np.uint8], length: NDArray[np.int32], chosen: NDArray[np.bool_]
) -> None:
    """Overwrite up to six bytes of the chosen rows, mostly of their headers, and cut or lengthen some."""
    count = len(rows)
    for _ in range(6):
        at = np.where(
            rng.random(count) < 0.7, rng.integers(0, HEADER_END, count), rng.integers(0, STRIDE, count)
        )
        hit = np.flatnonzero(chosen & (rng.random(count) < 0.25))
        small = rng.random(count) < 0.5  # small numbers name kinds, jobs and workers that there are
        value = np.where(small, rng.integers(0, 9, count), rng.integers(0, 256, count))
        rows[hit, at[hit]] = value[hit]
    cut = chosen & (rng.random(count) < 0.15)
    length[cut] = rng.integers(0, STRIDE + 1, int(cut.sum()))


def _veil(
    rows: NDArray[np.uint8], length: NDArray[np.int32], chosen: NDArray[np.bool_], how: NDArray[np.float64]
) -> None:
    """Insert a VLAN tag or IPv4 options before the payload of some chosen rows."""
    for veiled, at, inserted in (
        (chosen & (how < 0.1), 12, [0x81, 0, 0, 0]),
        (chosen & (how > 0.1) & (how < 0.2), 34, [1, 1, 1, 1]),
    ):
        rows[veiled, at + 4 :] = rows[veiled, at:-4]
        rows[veiled, at : at + 4] = inserted
        length[veiled] = np.minimum(length[veiled] + 4, STRIDE)
        if at == 34:
            rows[veiled, 14] = 0x46
            rows[veiled, 17] += 4


def as_a_host_reads(raw: bytes) -> bytes | None:
    """Return the UDP payload that a Linux host would hand to a socket on port 20563.

    The host skips tags of VLAN 0 and IPv4 options.
    """
    at = 12
    while raw[at : at + 2] in (b"\x81\x00", b"\x88\xa8") and not int.from_bytes(raw[at + 2 : at + 4]) & 0xFFF:
        at += 4
    ip = raw[at + 2 :]
    if raw[at : at + 2] != b"\x08\x00" or len(ip) < 20 or ip[0] >> 4 != 4 or ip[9] != 17:
        return None
    udp = ip[4 * (ip[0] & 15) :]
    if int.from_bytes(ip[6:8]) & 0x1FFF or len(udp) < 8 or int.from_bytes(udp[2:4]) != UDP_PORT:
        return None
    return udp[8 : int.from_bytes(udp[4:6])]


def deliver(victim: Victim, out: Frames, now: float) -> None:
    """Deliver packets to the victim's hosts as their kernels would."""
    ports = out.port.copy()
    data, length = out.data.copy(), out.length.copy()
    for port in (*WORKER_PORTS, SERVER_PORT):
        here = np.flatnonzero(ports == port)
        read = [as_a_host_reads(data[row, : length[row]].tobytes()) for row in here]
        ours = [np.frombuffer(payload, np.uint8) for payload in read if payload is not None]
        if ours:
            assert {len(payload) for payload in ours} == {SIZE}
            victim.receive(port, np.stack(ours), now)


@pytest.fixture(scope="module")
def rig() -> SoftswitchRig:
    return SoftswitchRig(load(pipeline(LANES).json_path), "numba")


def admit(rig: SoftswitchRig) -> JobConfig:
    """Admit the victim's job and Mallory's two on a switch that forwards other traffic to both."""
    victim = Job(rig, job_id=1, ports=WORKER_PORTS, server_port=SERVER_PORT, generation=3)
    Job(rig, job_id=2, ports=HER_WORKERS, server_port=HER_SERVER, generation=3)
    Job(rig, job_id=3, ports=HER_WORKERS, server_port=HER_SERVER, generation=3, level=Level.SPINE)
    mac = int.from_bytes(frame(b"")[:6])
    rig.write("bridge", (mac,), "forward", (WORKER_PORTS[0],))
    rig.write("routes", ((0x0A000000, 24),), "route", (WORKER_PORTS[1], 1, mac))
    return JobConfig(
        job_id=1,
        generation=victim.generation,
        workers=len(WORKER_PORTS),
        lanes=LANES,
        window=64,
        first_chunk=0xFFFFFF00,
        timers=TIMERS,
    )


def fuzz(rig: SoftswitchRig, seed: int, hostile: int, per_batch: int = 2000) -> tuple[Victim, int]:
    """Process `hostile` frames among the victim's; return the victim, and the switch's clock at the end."""
    rng = np.random.default_rng(seed)
    victim = Victim(rng, admit(rig))
    now_us, offered, recent = 0, 0, Frames(np.zeros((0, STRIDE), np.uint8), *[np.zeros(0, np.int32)] * 2)
    while offered < hostile:
        now_us += int(rng.integers(100, 2000))
        sent = victim.packets(now_us / 1e6)
        own = Frames(
            np.concatenate([recent.data[:0], *(framed(batch) for _, batch in sent)]),
            np.full(sum(len(batch) for _, batch in sent), FRAME_HEADER_BYTES + SIZE, np.int32),
            np.concatenate([recent.port[:0], *(np.full(len(batch), port, np.int32) for port, batch in sent)]),
        )
        recent = own if len(own) else recent
        foreign = hostile_frames(rng, per_batch, recent.data, recent.port)
        order = rng.permutation(len(own) + per_batch)
        everything = Frames(
            np.concatenate([own.data, foreign.data])[order],
            np.concatenate([own.length, foreign.length])[order],
            np.concatenate([own.port, foreign.port])[order],
        )
        deliver(victim, rig.switch.process(everything, now_us), now_us / 1e6)
        offered += per_batch
    return victim, now_us


def every_slot_is_claimable(rig: SoftswitchRig, now_us: int) -> bool:
    """Return whether each slot absorbs a new job's contribution once the age limit has passed."""
    prober = Job(rig, job_id=9, ports=(10, 11), server_port=12, generation=1)
    batch = pack(
        np.zeros((rig.slots, LANES), np.uint32),
        kind=Kind.CONTRIBUTION,
        job_id=9,
        generation=prober.generation,
        chunk_id=np.arange(rig.slots),
    )
    rows = framed(batch)
    before = rig.verdicts().get(Verdict.ABSORBED, 0)
    full = np.full(len(rows), FRAME_HEADER_BYTES + SIZE, np.int32)
    out = rig.switch.process(
        Frames(rows, full, np.full(len(rows), 10, np.int32)), now_us + (AGE_TICKS + 1) * TICK_US
    )
    return len(out) == 0 and rig.verdicts()[Verdict.ABSORBED] - before == rig.slots


@pytest.mark.parametrize(
    ("hostile", "seed"), [(1_000_000, 1), pytest.param(10_000_000, 2, marks=pytest.mark.slow)]
)
def test_hostile_frames_harm_nobody(rig: SoftswitchRig, hostile: int, seed: int) -> None:
    rig.fresh()
    rig.set_age_limit(AGE_TICKS)
    victim, now_us = fuzz(rig, seed, hostile)
    assert victim.checked >= 3 * hostile // 50_000
    assert set(rig.verdicts()) == set(Verdict)
    assert every_slot_is_claimable(rig, now_us)


@pytest.mark.parametrize(
    ("raw", "payload"),
    [
        (frame(b"hello"), b"hello"),
        (frame(b"hello", dst_port=53), None),
        (frame(b"hello", fragment=1), None),
        (frame(b"hello")[:12] + bytes.fromhex("88a8e000 81000000") + frame(b"hello")[12:], b"hello"),
        (frame(b"hello")[:12] + bytes.fromhex("81000001") + frame(b"hello")[12:], None),
    ],
)
def test_the_host_of_these_tests_reads_what_linux_reads(raw: bytes, payload: bytes | None) -> None:
    assert as_a_host_reads(raw) == payload
