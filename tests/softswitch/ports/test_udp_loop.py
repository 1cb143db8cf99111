"""The compiled loop over UDP ports: the same packets as `Switch.process`, and every way in which it stops."""

import contextlib
import os
import resource
import socket
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from frames import frame
from patience import PATIENCE_S, until
from peelsum_packets import Job
from rigs import SoftswitchRig
from softswitch_frames import host_at, received

from peelsum.pipelines import pipeline
from peelsum.softswitch import Switch, load
from peelsum.softswitch.ports.pacing import NEVER, PAUSE_US, due_in, hold, new_rings, release
from peelsum.softswitch.ports.udp import UdpPorts
from peelsum.softswitch.ports.udp_kernels import UdpColumn
from peelsum.softswitch.process import DataPlane
from peelsum.softswitch.runtime.device import Device
from peelsum.softswitch.runtime.queues import Queues
from peelsum.wire import FRAME_HEADER_BYTES, Kind, pack, packet_bytes, packet_fields

LANES, WORKERS, SERVER, CPU = 32, 4, 5, 300
SIZE = packet_bytes(LANES)
#: The program's clock: ticks of 2**6 us, and what is added to them (switch/p4/generated/wire.p4).
TICK_SHIFT, EPOCH_TICKS = 6, 0x40000000


def job_on(rig):
    return Job(rig, job_id=1, ports=range(1, WORKERS + 1), server_port=SERVER)


@pytest.fixture
def rig():
    with rig_of() as rig:
        yield rig


@contextlib.contextmanager
def rig_of(queues=None):
    """A job's switch whose loop runs on UDP, its hosts, and a second switch that runs without ports."""
    program = load(pipeline(LANES).json_path)
    ours, other = SoftswitchRig(program, "numba"), SoftswitchRig(program, "numba")
    ports, device = UdpPorts(range(1, SERVER + 1), batch=64, cpu_port=CPU), Device(queues=queues)
    if queues:
        ours.switch = Switch(program, queues=queues)
    with contextlib.ExitStack() as stack:
        stack.callback(ports.close)
        stack.callback(device.close)
        plane = stack.enter_context(DataPlane(device, ports))
        device.install(ours.switch)
        plane.process_batch(1)
        hosts = {
            number: stack.enter_context(host_at(plane.process_batch, at, SIZE))
            for number, at in ports.listening.items()
        }
        yield SimpleNamespace(
            ports=ports, device=device, plane=plane, hosts=hosts, job=job_on(ours), other=job_on(other)
        )


def contributions(worker, count, first=0):
    lanes = np.random.default_rng(worker).integers(0, 1 << 32, (count, LANES), np.uint32)
    return pack(
        lanes, kind=Kind.CONTRIBUTION, job_id=1, generation=7, sender=worker, bitmap=1 << worker,
        chunk_id=np.arange(first, first + count),
    )  # fmt: skip


def results(count):
    lanes = np.random.default_rng(99).integers(0, 1 << 32, (count, LANES), np.uint32)
    return pack(
        lanes, kind=Kind.RESULT, job_id=1, generation=7, sender=0xFFFF, bitmap=(1 << WORKERS) - 1,
        chunk_id=np.arange(count),
    )  # fmt: skip


def arrived(sock, count):
    """Return `count` sent packets or more; on a busy machine they may arrive later."""
    bursts = []
    until(lambda: bursts.append(received(sock, SIZE)) or sum(map(len, bursts)) >= count)
    return np.concatenate(bursts)


def turn_until(rig, port, count):
    """Take turns until the host at a port has received `count` packets; return them."""
    bursts = [received(rig.hosts[port], SIZE)]
    deadline = time.monotonic() + PATIENCE_S
    while sum(map(len, bursts)) < count:
        assert time.monotonic() < deadline
        rig.plane.process_batch(0.01)  # on a busy machine, sent packets may arrive later
        bursts.append(received(rig.hosts[port], SIZE))
    return np.concatenate(bursts)


def test_sums_and_results_pass_as_through_a_switch_without_ports(rig):
    batches = {worker: contributions(worker, 50) for worker in range(WORKERS)}
    for worker, batch in batches.items():
        rig.hosts[worker + 1].send(batch)
        rig.plane.process_batch(PATIENCE_S)
    sums = turn_until(rig, SERVER, 50)
    expected = np.sum([packet_fields(batch, LANES)["lanes"] for batch in batches.values()], 0, np.uint32)
    assert np.array_equal(packet_fields(sums, LANES)["lanes"], expected)
    rig.hosts[SERVER].send(results(50))
    returned = {port: turn_until(rig, port, 50) for port in range(1, WORKERS + 1)}
    frames = [(worker + 1, frame(bytes(row))) for worker, batch in batches.items() for row in batch]
    frames += [(SERVER, frame(bytes(row))) for row in results(50)]
    other = rig.other.rig.process_frames(frames)
    for port, got in {**returned, SERVER: sums}.items():
        assert [bytes(row) for row in got] == [raw[FRAME_HEADER_BYTES:] for to, raw in other if to == port]
    assert rig.job.verdicts() == rig.other.verdicts()


def test_it_goes_on_where_the_room_for_copies_ended(rig):
    # Every result has 100 copies, so that a burst of them needs several times the room.
    copies = 100
    rows = len(rig.ports.received.data)
    assert 64 * copies > rows + copies
    rig.job.rig.set_group(1, [1] * copies)
    rig.hosts[SERVER].send(results(64))
    got = turn_until(rig, 1, 64 * copies)
    assert np.array_equal(packet_fields(got, LANES)["chunk_id"], np.repeat(np.arange(64), copies))


def test_frames_for_the_controller_leave_the_others_in_order(rig):
    delivered = []
    rig.device.on_packet_in(delivered.extend)
    rig.job.rig.set_group(1, [2, CPU])
    rig.hosts[SERVER].send(results(20))
    got = turn_until(rig, 2, 20)
    assert np.array_equal(got, results(20))
    assert [raw[FRAME_HEADER_BYTES:] for raw in delivered] == [bytes(row) for row in results(20)]
    assert rig.ports.unsent_frames["unknown_port"] == 0
    rig.job.rig.set_group(1, [2])
    rig.hosts[SERVER].send(results(3))
    assert len(turn_until(rig, 2, 3)) == 3
    rig.plane.process_batch(0)
    assert len(delivered) == 20


def test_a_kernel_that_refuses_so_many_segments_gets_fewer(rig):
    if not rig.ports.ports[1].socket.offload:
        pytest.skip("the kernel does not segment")
    rig.ports.sockets.state[0, UdpColumn.SEGMENTS] = 1000  # more than a datagram holds
    rig.job.rig.set_group(1, [1, 2] * 4)
    rig.hosts[SERVER].send(results(120))
    for port in (1, 2):
        got = turn_until(rig, port, 480)
        assert np.array_equal(packet_fields(got, LANES)["chunk_id"], np.repeat(np.arange(120), 4))
    assert rig.ports.sockets.state[0, UdpColumn.SEGMENTS] <= 64


def test_frames_from_the_controller_pass(rig):
    rig.job.rig.admit_server(1, CPU)
    row = bytes(results(1)[0])
    assert rig.device.inject(frame(row))
    rig.plane.process_batch(PATIENCE_S)
    assert bytes(received(rig.hosts[1], SIZE)[0]) == row


@contextlib.contextmanager
def running(rig):
    thread = threading.Thread(target=rig.plane.run)
    thread.start()
    try:
        yield thread
    finally:
        rig.plane.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_others_get_at_the_state_while_it_waits_for_packets(rig):
    with running(rig):
        for number in range(200):
            rig.job.rig.set_group(2, [number % 8])
            assert rig.job.rig.switch.groups.get(2) == ((number % 8, 0),)
        rig.hosts[1].send(contributions(0, 5))
        until(lambda: sum(rig.job.verdicts().values()) == 5)


def test_a_group_that_grows_while_it_runs_is_served(rig):
    with running(rig):
        # Larger than the memory of groups, which is replaced.
        rig.job.rig.set_group(1, [1] * 300)
        rig.hosts[SERVER].send(results(2))
        got = arrived(rig.hosts[1], 600)
    assert np.array_equal(packet_fields(got, LANES)["chunk_id"], np.repeat([0, 1], 300))


def test_a_new_pipeline_takes_over_while_it_waits(rig):
    with running(rig):
        fresh = SoftswitchRig(load(pipeline(LANES).json_path), "numba")
        job = job_on(fresh)
        rig.device.install(fresh.switch)
        until(lambda: rig.hosts[1].send(contributions(0, 4)) and job.verdicts())


def test_the_program_sees_the_planes_clock(rig):
    stamps = rig.job.rig.switch.registers["PeelsumIngress.aggregation.owner.owner_stamp"]
    before = rig.plane.now_us() >> TICK_SHIFT
    rig.hosts[1].send(contributions(0, 1))
    rig.plane.process_batch(PATIENCE_S)
    after = rig.plane.now_us() >> TICK_SHIFT
    (stamp,) = (value for value in stamps.values().tolist() if value)
    assert before <= stamp - EPOCH_TICKS <= after


FRAME_BITS = 8 * (FRAME_HEADER_BYTES + SIZE)


def test_a_port_with_a_rate_keeps_it_while_others_send_at_once():
    with rig_of(Queues({1: 0.5})) as rig:
        began = time.monotonic()
        rig.hosts[SERVER].send(results(30))
        assert np.array_equal(turn_until(rig, 2, 30), results(30))
        assert np.array_equal(turn_until(rig, 1, 30), results(30))
        assert time.monotonic() - began >= 30 * FRAME_BITS / 0.5e6
        assert rig.ports.unsent_frames == {"malformed": 0, "unknown_port": 0}


def test_what_exceeds_a_queue_is_dropped_and_the_rest_leaves_in_order():
    with rig_of(Queues({1: 1.0}, limit=8)) as rig:
        rig.job.rig.set_group(1, [1])
        for burst in range(3):
            rig.hosts[SERVER].send(results(20))
            got = turn_until(rig, 1, 8)
            assert np.array_equal(got, results(20)[:8])
            counts = rig.device.queues.counts()[1]
            assert (counts.sent, counts.dropped) == (8 * (burst + 1), 12 * (burst + 1))


@pytest.mark.parametrize("seed", range(2))
def test_held_packets_leave_when_due_in_order_over_the_clocks_wrap(seed):
    random = np.random.default_rng(seed)
    limit = 16
    with rig_of() as rig:
        rings = new_rings([1, 3], limit, SIZE, rig.ports.sockets)
        send_buffers = rig.ports.send_buffers_for(2 * limit)
        waiting = {1: [], 3: []}
        now = (1 << 48) - 3000
        for _ in range(60):
            count = int(random.integers(0, 4))
            ports = random.choice([1, 2, 3], count).astype(np.int32)
            data = np.stack(
                [np.frombuffer(frame(random.bytes(SIZE)), np.uint8) for _ in range(count)] or [[]]
            )
            leave = np.zeros(count, np.uint64)
            for i, port in enumerate(ports.tolist()):
                if port in waiting and len(waiting[port]) < limit:
                    after = waiting[port][-1][0] if waiting[port] else now
                    waiting[port].append(
                        (after + int(random.integers(0, 300)), bytes(data[i, FRAME_HEADER_BYTES:]))
                    )
                    # Within the microsecond that ends when it is due.
                    ticks = (waiting[port][-1][0] << 16) - int(random.integers(0, 1 << 16))
                    leave[i] = ticks % (1 << 64)
                elif port in waiting:
                    ports[i] = 2
            before = ports.copy()
            length = np.full(count, FRAME_HEADER_BYTES + SIZE, np.int32)
            if count:  # an array without rows has no stride
                hold(rings, rig.ports.sockets, data, length, ports, leave)
            assert (ports[before == 2] == 2).all()
            assert (ports[before != 2] == -1).all()
            soonest = min((queue[0][0] for queue in waiting.values() if queue), default=None)
            expected = NEVER if soonest is None else max(0, soonest - now, int(rings.paused_until[0]) - now)
            assert due_in(rings, now) == expected
            now += int(random.integers(0, 200))
            paused_until = int(rings.paused_until[0])
            assert release(rings, rig.ports.sockets, send_buffers, now) == -1
            some_due = any(at <= now for queue in waiting.values() for at, _ in queue)
            assert rings.paused_until[0] == (now + PAUSE_US if some_due else paused_until)
            for port, queue in waiting.items():
                due = [payload for at, payload in queue if at <= now]
                waiting[port] = queue[len(due) :]
                assert [bytes(row) for row in arrived(rig.hosts[port], len(due))] == due
        assert len(received(rig.hosts[2], SIZE)) == 0


def test_held_packets_keep_their_lengths():
    """Programs without lanes send packets of any length."""
    payloads = [b"a", bytes(range(100)), b"c" * 50]
    with rig_of() as rig:
        rig.ports.resize(packet_bytes(0))
        rings, count = new_rings([1], 4, 100, rig.ports.sockets), len(payloads)
        data = np.zeros((count, FRAME_HEADER_BYTES + 100), np.uint8)
        for row, payload in zip(data, map(frame, payloads), strict=True):
            row[: len(payload)] = np.frombuffer(payload, np.uint8)
        length = np.array([FRAME_HEADER_BYTES + len(payload) for payload in payloads], np.int32)
        hold(rings, rig.ports.sockets, data, length, np.ones(count, np.int32), np.zeros(count, np.uint64))
        assert release(rings, rig.ports.sockets, rig.ports.send_buffers_for(count), 1) == -1
        with socket.socket(fileno=os.dup(rig.hosts[1].fileno())) as host:
            assert [host.recv(200) for _ in payloads] == payloads


def test_an_error_of_the_wait_is_raised(rig):
    rig.plane.process_batch(0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))  # ppoll takes no more descriptors than that
    try:
        with pytest.raises(OSError, match="ports: wait or receive: Invalid argument"):
            rig.plane.process_batch(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    rig.plane.process_batch(0)
