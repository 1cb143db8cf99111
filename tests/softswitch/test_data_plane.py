"""The switch process: frames between ports, pipeline, controller and captures; start, stop, addresses."""

import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from patience import PATIENCE_S, until
from softswitch_frames import StubSwitch, host_at

from peelsum.options import OptionError
from peelsum.softswitch import Frames
from peelsum.softswitch.ports.capture import Capture
from peelsum.softswitch.ports.links import Links
from peelsum.softswitch.ports.udp import UdpPorts, frame_header
from peelsum.softswitch.process import DataPlane, StartError, run
from peelsum.softswitch.runtime.device import Device
from peelsum.switch_settings import SwitchSettings
from peelsum.wire import CPU_PORT, FRAME_HEADER_BYTES, packet_bytes
from peelsum.wire.datagrams import BatchSocket

LANES = 8
#: The CPU port of `rig`'s switch.
FROM_CONTROLLER = 510
SIZE = packet_bytes(LANES)


@pytest.fixture
def rig():
    ports = UdpPorts([1, 2], cpu_port=FROM_CONTROLLER)
    device = Device()
    with DataPlane(device, ports) as plane:
        yield SimpleNamespace(ports=ports, device=device, plane=plane)
    device.close()
    ports.close()


def at(rig, number):
    return host_at(rig.plane.process_batch, rig.ports.listening[number], SIZE)


def packets(count):
    return np.random.default_rng(count).integers(0, 256, (count, SIZE), np.uint8)


def crossed(port):
    return 3 - port


def test_frames_go_through_the_pipeline_at_a_rising_clock(rig):
    switch = StubSwitch(crossed)
    rig.device.install(switch)
    with at(rig, 1) as host_1, at(rig, 2) as host_2:
        for count in (3, 4):
            host_1.send(packets(count))
            rig.plane.process_batch(1)
            assert np.array_equal(host_2.receive().packets, packets(count))
        assert switch.ports == [[1] * 3, [1] * 4]
        assert switch.clock == sorted(switch.clock)
        assert 0 <= switch.clock[0] < 60_000_000


def test_a_committed_pipeline_sets_the_size_of_packets(rig):
    with at(rig, 1) as host_1, at(rig, 2) as host_2:
        for lanes in (LANES, 300):
            rig.device.install(StubSwitch(crossed, lanes))
            rig.plane.process_batch(1)
            sent = np.full((2, packet_bytes(lanes)), lanes % 256, np.uint8)
            for sock in (host_1, host_2):
                sock.resize(packet_bytes(lanes))
            host_1.send(sent)
            rig.plane.process_batch(1)
            assert np.array_equal(host_2.receive().packets, sent)


def test_controller_frames_enter_and_leave_at_the_cpu_port(rig):
    delivered = []
    rig.device.on_packet_in(delivered.extend)
    switch = StubSwitch(lambda port: np.where(port == FROM_CONTROLLER, 1, FROM_CONTROLLER))
    rig.device.install(switch)
    frame = bytes(frame_header(9, SIZE)) + bytes(packets(1)[0])
    with at(rig, 1) as host:
        rig.device.inject(frame)
        rig.plane.process_batch(1)
        assert bytes(host.receive().packets[0]) == frame[FRAME_HEADER_BYTES:]
        host.send(packets(2))
        rig.plane.process_batch(1)
    assert switch.ports == [[FROM_CONTROLLER], [1, 1]]
    assert delivered == [bytes(frame_header(1, SIZE)) + bytes(payload) for payload in packets(2)]


def test_frames_of_a_pipeline_that_was_replaced_do_not_reach_the_controller(rig):
    """The controller would read their headers as those of the new pipeline."""
    delivered = []
    rig.device.on_packet_in(delivered.extend)

    def route(port):
        rig.device.install(StubSwitch(crossed))
        return np.full_like(port, FROM_CONTROLLER)

    rig.device.install(StubSwitch(route))
    with at(rig, 1) as host:
        host.send(packets(1))
        rig.plane.process_batch(1)
    assert not delivered


def test_frames_injected_before_a_pipeline_are_dropped(rig):
    rig.device.inject(bytes(100))
    rig.plane.process_batch(1)
    switch = StubSwitch(crossed)
    rig.device.install(switch)
    rig.plane.process_batch(1)
    assert switch.ports == []


def test_stop_ends_a_loop_that_waits(rig):
    loop = threading.Thread(target=rig.plane.run)
    loop.start()
    rig.plane.stop()
    loop.join(PATIENCE_S)
    assert not loop.is_alive()


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_signal_ends_the_process_and_frees_every_port(number):
    script = """
from peelsum.softswitch.process import run
from peelsum.switch_settings import SwitchSettings
show = lambda at: print(at.grpc_port, *at.udp_ports.values(), flush=True)
counts = run(SwitchSettings(2, "127.0.0.1:0"), announce=show)
print(sorted(counts.ports))
"""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", script], text=True, **pipes)
    grpc_port, *udp_ports = map(int, process.stdout.readline().split())
    socket.create_connection(("127.0.0.1", grpc_port), timeout=PATIENCE_S).close()
    assert len(udp_ports) == 2
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out.strip(), err) == (0, "[1, 2]", "")
    for port in udp_ports:
        BatchSocket.bind(("127.0.0.1", port), SIZE).close()
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", grpc_port))


@pytest.mark.parametrize(
    ("ports", "options", "message"),
    [
        *((count, {}, f"ports: {count} is out of range; use 1 to 254") for count in (0, -1, CPU_PORT, 1000)),
        *(
            (2, {"udp_base": base}, f"udp-base: {base} is out of range; use 0 to 655")
            for base in (-1, 65534, 70000)
        ),
        (1, {"loss": 2.0}, "loss: 2 is out of range; use 0 to 1"),
        (2, {"peer_addresses": {3: ("127.0.0.1", 9)}}, "join: .*port 3 is out of range; use 1 to 2"),
        (1, {"p4runtime": "nonsense"}, "nonsense"),
        (1, {"program": Path("/nowhere.json")}, "/nowhere.json: No such file or directory; give the JSON"),
        (1, {"capture": Path("/dev/null/here")}, "capture: /dev/null/here: Not a directory"),
        (8, {"cpu_port": 8}, "cpu-port: 8: is a port of the switch; choose another number"),
        (8, {"interfaces": {511: "eth0"}}, "interface: 511@eth0: port 511 is out of range; use 0 to 510"),
    ],
)
def test_what_is_out_of_range_is_named(ports, options, message):
    with pytest.raises((StartError, OptionError), match=message):
        run(SwitchSettings(ports, **{"p4runtime": "127.0.0.1:0", **options}))


def test_too_few_descriptors_are_told_of_with_a_remedy():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The lowest free descriptor, and five more, are too few for eight ports.
    with Path("/dev/null").open() as lowest:
        few = lowest.fileno() + 6
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, limits[1]))
    try:
        with pytest.raises(
            StartError, match=r"^Too many open files; allow more by `ulimit -n`, or give fewer"
        ):
            run(SwitchSettings(8, "127.0.0.1:0"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_taken_grpc_port_is_named_and_the_udp_ports_are_freed():
    with BatchSocket.bind(("127.0.0.1", 0), SIZE) as probe:
        free = probe.address[1]
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        with pytest.raises(StartError, match=f"127.0.0.1:{taken}"):
            run(SwitchSettings(1, f"127.0.0.1:{taken}", udp_base=free - 1))
    BatchSocket.bind(("127.0.0.1", free), SIZE).close()


def test_an_injected_frame_meets_the_pipeline_that_it_is_for(rig):
    """A commit and a frame for it, which come while the loop takes frames, are for the next turn."""
    old, new = StubSwitch(crossed), StubSwitch(crossed)
    rig.device.install(old)
    take = rig.device.take_injected

    def commit():
        rig.device.install(new)
        rig.device.inject(bytes(60))

    def take_later():
        rig.device.take_injected = take
        committing.start()
        committing.join(0.5)  # times out
        return take()

    committing = threading.Thread(target=commit)
    rig.device.take_injected = take_later
    rig.plane.process_batch(1)
    committing.join(PATIENCE_S)
    rig.plane.process_batch(1)
    assert (old.ports, new.ports) == ([], [[FROM_CONTROLLER]])


NOW_NS = 1_700_000_000_123_456_789
FRAMES = [(2, b"\1" * 60), (1, bytes(range(200))), (2, b"\7" * 61), (9, b"to no port")]


def records(path):
    """Return time in nanoseconds and bytes of each frame in a pcap file."""
    data = path.read_bytes()
    assert struct.unpack_from("<IHHiIII", data) == (0xA1B23C4D, 2, 4, 0, 0, 1 << 18, 1)
    found, at = [], 24
    while at < len(data):
        seconds, nanoseconds, kept, length = struct.unpack_from("<4I", data, at)
        assert kept == length
        found.append((seconds * 10**9 + nanoseconds, data[at + 16 : at + 16 + kept]))
        at += 16 + kept
    return found


def frames_in(folder):
    return {path.name: [frame for _, frame in records(path)] for path in folder.iterdir()}


def test_every_frame_is_written_down_by_port_and_way(tmp_path):
    folder = tmp_path / "a" / "b"
    capture = Capture({1: "port1", 2: "port2"}, folder, clock=lambda: NOW_NS)
    capture.write("in", Frames.of(FRAMES[:3]))
    capture.write("out", Frames.of(FRAMES))
    capture.write("out", Frames.of(FRAMES[1:2]))
    capture.close()
    of = {port: [frame for at, frame in FRAMES if at == port] for port in (1, 2)}
    assert frames_in(folder) == {
        "port1_in.pcap": of[1],
        "port1_out.pcap": of[1] * 2,
        "port2_in.pcap": of[2],
        "port2_out.pcap": of[2],
    }
    assert {at for at, _ in records(folder / "port2_in.pcap")} == {NOW_NS}


@pytest.mark.parametrize("delays", [{}, {1: 0.01}])
def test_the_data_plane_captures_what_arrives_and_what_leaves(tmp_path, delays):
    size = packet_bytes(8)
    ports, device = UdpPorts([1]), Device()
    capture, links = Capture({1: "port1"}, tmp_path), Links([1], delays=delays)
    with (
        closing(ports),
        closing(device),
        DataPlane(device, ports, links=links, capture=capture) as plane,
        host_at(plane.process_batch, ports.listening[1], size) as host,
    ):
        device.install(StubSwitch())
        plane.process_batch(0)
        host.send(np.full((1, size), 7, np.uint8))
        until(lambda: plane.process_batch(0.01) or ports.ports[1].counts.sent)
    capture.close()
    written = frames_in(tmp_path)
    assert [len(frames) for frames in written.values()] == [1, 1]
    assert written["port1_in.pcap"] == written["port1_out.pcap"]


def test_a_capture_that_is_there_is_kept(tmp_path):
    (tmp_path / "port2_in.pcap").write_bytes(b"precious")
    with pytest.raises(StartError, match=r"capture: .*port2_in.pcap: File exists; give a folder"):
        run(SwitchSettings(2, "127.0.0.1:0", capture=tmp_path))
    assert (tmp_path / "port2_in.pcap").read_bytes() == b"precious"


def test_when_a_file_cannot_be_written_nothing_is_captured_any_more(tmp_path, capsys):
    capture = Capture({1: "port1", 2: "port2"}, tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        for _ in range(100):  # more than a buffer holds
            capture.write("out", Frames.of(FRAMES))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert capsys.readouterr().err == "peelsum: capture: File too large; nothing is captured any more\n"
    capture.close()
