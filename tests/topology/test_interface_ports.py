"""The softswitch's ports on interfaces: frames in and out, what is dropped, and what is refused."""

import json
import logging
import os
import select
import socket
import subprocess
import time
from logging.handlers import BufferingHandler

import networks
import numpy as np
import pytest
from command_line import peelsum
from numpy.testing import assert_array_equal, assert_equal
from patience import PATIENCE_S

from peelsum.options import OptionError
from peelsum.softswitch import Frames
from peelsum.softswitch.ports.interfaces import InterfacePorts, best_port_method
from peelsum.softswitch.ports.pacing import Pacer
from peelsum.softswitch.ports.ring_kernels import unsent
from peelsum.softswitch.ports.udp import frame_header
from peelsum.softswitch.process import StartError, run
from peelsum.softswitch.runtime.queues import Queues
from peelsum.switch_settings import SwitchSettings
from peelsum.topology import namespaces
from peelsum.wire import FRAME_HEADER_BYTES, packet_bytes

FRAME_BYTES = 1082
#: Seconds of silence after which frames count as lost.
LOST_AFTER_S = 10.0
#: The ports that are up after each change to an interface.
UP_AFTER = {
    "none": [1, 2],
    "host1 down": [2],
    "switch2 down": [],
    "host1 up": [1],
    "switch2 up": [1, 2],
    "switch1 delete": [2],
}


@pytest.fixture(scope="module")
def xdp_refusal():
    return str(alone("xdp_refusal")["why"])


@pytest.fixture
def needs_xdp(xdp_refusal):
    if xdp_refusal:
        pytest.skip(xdp_refusal)


@pytest.fixture(params=["xdp", "packet"])
def method(request, monkeypatch, xdp_refusal):
    """How frames reach the switch's ports in the scenes of a test."""
    if request.param == "xdp" and xdp_refusal:
        pytest.skip(xdp_refusal)
    monkeypatch.setenv("METHOD", request.param)
    return request.param


def alone(scene):
    """Run a function of this file in a process with its own namespace; return its result, if it has one."""
    return dict(networks.alone(__file__, scene) or {})


def frames(count, length=FRAME_BYTES, seed=1):
    return np.random.default_rng(seed).integers(0, 256, (count, length), np.uint8)


class Wired:
    """Ports 1 and 2 of a switch, and hosts at the other ends of their wires."""

    def __init__(self):
        for port in (1, 2):
            namespaces.add_wire(f"switch{port}", f"host{port}")
        self.ports = InterfacePorts({1: "switch1", 2: "switch2"}, batch=64, method=os.environ["METHOD"])
        self.ports.resize(0)  # every frame, whatever its headers
        self.hosts = {port: networks.RawInterface(f"host{port}") for port in (1, 2)}

    def make_room(self, length):
        """Receive any frames of up to `length` bytes."""
        self.ports.resize(length)
        for port in self.ports.ports.values():
            if port.xdp is not None:
                port.xdp.take(every_frame=True)

    def send(self, port, rows):
        """Send from a host, in pieces if the kernel has not delivered earlier frames yet."""
        while len(rows):
            assert select.select([], [self.hosts[port]], [], PATIENCE_S)[1]
            rows = rows[self.hosts[port].send(rows) :]

    def received(self, port, due, length=FRAME_BYTES, patience_s=PATIENCE_S):
        """Return `due` frames, which a busy kernel may deliver late, and any others that come."""
        into, count = np.zeros((256, length), np.uint8), 0
        while select.select([self.hosts[port]], [], [], patience_s if count < due else 0.05)[0]:
            count += self.hosts[port].receive_into(into[count:])
        return into[:count]


def there_and_back():
    """More frames than a batch holds, both ways; the sender's own copies do not come back.

    If other processes have filled the kernel's queue of received frames, it drops ours: "lost".
    """
    wired = Wired()
    sent = frames(150)
    wired.send(1, sent)
    got = []
    while len(batch := wired.ports.receive([1, 2])) or sum(map(len, got)) < 150:
        if not len(batch):
            if not select.select([wired.ports.ports[1].socket], [], [], LOST_AFTER_S)[0]:
                return {"lost": 150 - sum(map(len, got))}
            continue
        assert set(batch.port.tolist()) == {1}
        assert set(batch.length.tolist()) == {FRAME_BYTES}
        got.append(batch.data[:, :FRAME_BYTES].copy())
        wired.ports.send(Frames(batch.data, batch.length, np.full(len(batch), 2, np.int32)))
    counts = {port: wired.ports.ports[port].counts for port in (1, 2)}
    out = wired.received(2, 150, patience_s=LOST_AFTER_S)
    if len(out) < 150:
        return {"lost": 150 - len(out)}
    assert_array_equal(np.concatenate(got), sent)
    assert_array_equal(out, sent)
    assert_equal(len(wired.received(1, 0)), 0)
    assert_equal([counts[1].received, counts[2].sent, counts[2].received], [150, 150, 0])
    return {"lost": 0}


def fair_shares():
    """Ports share a batch."""
    wired = Wired()
    for port in (1, 2):
        wired.send(port, frames(100))
    assert_equal(np.bincount(wired.ports.receive([1, 2]).port).tolist(), [0, 32, 32])


def rows_out_of_order():
    """Lengths and ports differ from row to row; each frame leaves by its port with its length."""
    wired = Wired()
    data = frames(6)
    length = np.array([60, 1082, 60, 1082, 60, 100], np.int32)
    wired.ports.send(Frames(data, length, np.array([1, 2, 1, 2, 2, 9], np.int32)))
    assert_array_equal(wired.received(1, 2, length=60), data[[0, 2], :60])
    assert_array_equal(wired.received(2, 2), data[[1, 3]])
    assert_equal(wired.ports.unsent_frames["unknown_port"], 1)


def after_a_wait():
    """Through a queue: 50 frames a millisecond apart, given to their port whenever some may leave."""
    wired, sent = Wired(), frames(50)
    pacer = Pacer(Queues({2: 8.0}, limit=50), wired.ports.send)
    leave = (np.arange(1, 51, dtype=np.uint64) * 1000) << 16
    rest = pacer.hold(Frames(sent, np.full(50, FRAME_BYTES, np.int32), np.full(50, 2, np.int32), leave), 0)
    assert_equal(len(rest), 0)
    for now, count in ((0, 0), (20_000, 20), (50_000, 50)):
        pacer.release(now)
        assert_equal(wired.ports.ports[2].counts.sent, count)
    assert_array_equal(wired.received(2, 50), sent)


def too_long():
    """Frames longer than the pipeline takes are dropped."""
    wired = Wired()
    wired.make_room(packet_bytes(32))
    sent = frames(3, 2000)
    wired.send(1, frames(1))
    wired.send(1, sent)
    wired.send(1, frames(1, seed=2))
    got = wired.ports.receive([1])
    assert_array_equal(got.data[:, :FRAME_BYTES], np.concatenate([frames(1), frames(1, seed=2)]))
    assert_equal(wired.ports.ports[1].counts.long, 3)


def long_frames():
    """Frames of one to three chunks, in bursts of which each fills less and less of the rings' ends."""
    wired = Wired()
    wired.make_room(9014)
    sent = 0
    for length in (60, 3840, 3841, 4096, 4097, 7680, 7681, 8254, 9014):
        for seed in range(25):
            burst, out = frames(29, length, seed), []
            wired.send(1, burst)
            while len(out) < 29:
                batch = wired.ports.receive([1])
                wired.ports.send(Frames(batch.data, batch.length, np.full(len(batch), 2, np.int32)))
                out += list(wired.received(2, len(batch), length))
            assert_array_equal(np.array(out), burst, f"frames of {length} bytes")
            sent += 29
    counts = [wired.ports.ports[port].counts for port in (1, 2)]
    assert_equal([counts[0].received, counts[1].sent], [sent, sent])


def changed_mtu():
    """What is said about the MTU of port 2, which shrinks and grows."""
    wired, said = Wired(), BufferingHandler(1000)
    logging.getLogger("peelsum").addHandler(said)
    wired.make_room(FRAME_BYTES - FRAME_HEADER_BYTES)
    for mtu in (1500, FRAME_BYTES - 15, FRAME_BYTES - 14):
        subprocess.run(["ip", "link", "set", "switch2", "mtu", str(mtu)], check=True)
        time.sleep(1.1)  # it is looked at once a second
        wired.ports.receive([])
    lines = [record.getMessage().partition(" of")[0] for record in said.buffer]
    assert_equal(lines, ["port 2: interface switch2: MTU 1067, but packets"])


def cut_wire():
    """A lost interface takes only its own frames."""
    wired = Wired()
    subprocess.run(["ip", "link", "del", "host1"], check=True)
    batch = Frames(frames(2), np.full(2, FRAME_BYTES, np.int32), np.array([1, 2], np.int32))
    wired.ports.send(batch)
    wired.ports.receive([1])
    assert_equal((wired.ports.ports[1].counts.down, len(wired.received(2, 1))), (1, 1))


def packets(count, lanes=32):
    """Frames of packets of peelsum's."""
    load = np.zeros((count, packet_bytes(lanes)), np.uint8)
    load[:, -1] = np.arange(count)
    headers = np.broadcast_to(frame_header(1, load.shape[1]), (count, FRAME_HEADER_BYTES))
    return np.concatenate([headers, load], axis=1)


def _changed(frame, at, *values):
    """A frame with other bytes from `at` on."""
    other = frame.copy()
    other[at : at + len(values)] = values
    return other


def what_is_no_packet():
    """Frames with one header that is not a packet's, before and after packets, and shorter ones.

    They are the kernel's; AF_PACKET has a copy of every frame, which the program drops.
    """
    wired = Wired()
    wired.ports.resize(packet_bytes(32))
    good = packets(2)
    others = [
        _changed(good[0], 12, 0x08, 0x06),  # ARP
        _changed(good[0], 12, 0x86, 0xDD),  # IPv6
        _changed(good[0], 14, 0x46),  # IPv4 with an option
        _changed(good[0], 23, 6),  # TCP
        _changed(good[0], 36, 0, 53),  # another port
        _changed(good[0], 20, 0x20, 0),  # the first fragment
        _changed(good[0], 20, 0, 1),  # a later fragment
        good[0][:41],
        good[0][:14],
    ]
    wired.send(1, good[:1])
    for frame in others:
        wired.send(1, frame[np.newaxis])
    wired.send(1, good[1:])
    got = wired.ports.receive([1])
    assert_equal(len(got), 2 if os.environ["METHOD"] == "xdp" else 2 + len(others))
    assert_array_equal(got.data[[0, len(got) - 1], : good.shape[1]], good)


def up():
    """Which of ports 1 to 3 are up, after changes to the interfaces at both ends of two wires.

    The kernel reports a change of a link up to a second later.
    """
    wired = Wired()
    for change, expected in UP_AFTER.items():
        name, _, state = change.partition(" ")
        if state:
            command = ["delete", name] if state == "delete" else ["set", name, state]
            subprocess.run(["ip", "link", *command], check=True)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            are_up = [port for port in (1, 2, 3) if wired.ports.is_up(port)]
            if are_up == expected or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        assert_equal(are_up, expected, change)


def tagged():
    """Frames with one VLAN tag or two, of both types, between two without."""
    wired = Wired()
    good = packets(2)
    inner, outer = np.array([[0x81, 0, 0x60, 5], [0x88, 0xA8, 0x01, 0x23]], np.uint8)
    tagged = [np.concatenate([good[0][:12], *tags, good[0][12:]]) for tags in ([inner], [outer, inner])]
    frames = [good[0], *tagged, good[1]]
    for frame in frames:
        wired.send(1, frame[np.newaxis])
    got = wired.ports.receive([1])
    rows = [row[:length].tobytes() for row, length in zip(got.data, got.length, strict=True)]
    assert_equal(rows, [frame.tobytes() for frame in frames])


def traffic_of_the_kernel():
    """The interface has an address; a program of the kernel's stack receives on it beside the switch."""
    wired = Wired()
    wired.ports.resize(packet_bytes(32))
    subprocess.run(["ip", "address", "add", "10.0.0.1/24", "dev", "switch1"], check=True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("10.0.0.1", 53))
        other.settimeout(PATIENCE_S)
        mac = bytes.fromhex(_mac("switch1"))
        frame = packets(1)[0]
        frame[:6] = np.frombuffer(mac, np.uint8)
        frame[26:34] = [10, 0, 0, 2, 10, 0, 0, 1]
        frame[36:38] = [0, 53]
        frame[24:26] = 0
        words = frame[14:34].view(">u2").astype(np.uint64)
        total = int(words.sum())
        checksum = 0xFFFF - ((total & 0xFFFF) + (total >> 16))
        frame[24:26] = [checksum >> 8, checksum & 0xFF]
        wired.send(1, frame[np.newaxis])
        wired.send(1, packets(1))
        heard = other.recv(4096)
    got = wired.ports.receive([1])
    mine = [row for row in got.data if row[36:38].tobytes() == frame_header(1, 32)[36:38].tobytes()]
    assert_equal((heard, len(mine)), (frame[42:].tobytes(), 1))


def _mac(name):
    shown = subprocess.run(["ip", "link", "show", name], check=True, capture_output=True, text=True).stdout
    return shown.split("link/ether ")[1].split()[0].replace(":", "")


def down_and_up(length=FRAME_BYTES):
    """An interface goes down, frames are sent to it, and it comes back."""
    wired = Wired()
    wired.make_room(length)
    wired.ports.send(Frames(frames(1, length), np.full(1, length, np.int32), np.full(1, 1, np.int32)))
    assert_equal(len(wired.received(1, 1, length)), 1)
    subprocess.run(["ip", "link", "set", "switch1", "down"], check=True)
    for count in (5, 3000):  # more than the rings hold
        port = np.full(count, 1, np.int32)
        wired.ports.send(Frames(frames(count, length), np.full(count, length, np.int32), port))
    quiet = len(wired.ports.receive([1]))
    readable = bool(select.select([wired.ports.ports[1].socket], [], [], 0)[0])
    subprocess.run(["ip", "link", "set", "switch1", "up"], check=True)
    namespaces.wait_until_up("switch1", "host1")
    late = len(wired.received(1, 0, length))
    assert_equal([quiet, readable, wired.ports.ports[1].counts.down, late], [0, False, 3005, 0])
    wired.ports.send(Frames(frames(3, length, seed=3), np.full(3, length, np.int32), np.full(3, 1, np.int32)))
    assert_array_equal(wired.received(1, 3, length), frames(3, length, seed=3))
    wired.send(1, frames(1, length, seed=4))
    select.select([wired.ports.ports[1].socket], [], [], PATIENCE_S)
    back = wired.ports.receive([1])
    assert_array_equal(back.data[:1, :length], frames(1, length, seed=4))


def long_down_and_up():
    """The same with frames of three chunks."""
    down_and_up(8254)


def more_than_the_rings_hold():
    """Five times the rings' frames through a port, in bursts: all are received, sent, and nothing is lost."""
    wired, sent, got, out = Wired(), 5 * 2048 + 7, 0, 0
    burst = frames(64)
    while got < sent:
        want = min(64, sent - got)
        wired.send(1, burst[:want])
        while want:
            batch = wired.ports.receive([1])
            wired.ports.send(Frames(batch.data, batch.length, np.full(len(batch), 2, np.int32)))
            got, want = got + len(batch), want - len(batch)
        out += len(wired.received(2, 0))
    while (more := len(wired.received(2, sent - out))) and out < sent:
        out += more
    counts = [wired.ports.ports[port].counts for port in (1, 2)]
    assert_equal([out, counts[0].received, counts[1].sent], [sent, sent, sent])


def best():
    """`best_port_method` of a free interface, of one that a port has, and of a name that no interface has."""
    namespaces.add_wire("switch1", "host1")
    assert_equal(best_port_method("switch1"), ("xdp", "native"))
    ports = InterfacePorts({1: "switch1"}, method="xdp")
    method, reason = best_port_method("switch1")
    assert_equal((method, bool(reason)), ("packet", True))
    with pytest.raises(OSError, match="interface nowhere: No such device; use one of "):
        best_port_method("nowhere")
    ports.close()
    assert_equal(best_port_method("switch1"), ("xdp", "native"))


def shaped():
    """Fifty frames at once to an interface with a rate of which its queue takes a few."""
    wired = Wired()
    rate = ["root", "tbf", "rate", "100kbit", "burst", "3kb", "latency", "10ms"]
    command = ["tc", "qdisc", "add", "dev", "switch1", *rate]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        return {"refused": done.stderr.strip()}
    wired.ports.send(Frames(frames(50), np.full(50, FRAME_BYTES, np.int32), np.full(50, 1, np.int32)))
    return {"came": len(wired.received(1, 1))}


def bursts():
    """Bursts that fill the ring, while nobody reads at the other end; the kernel takes all in the end."""
    wired, port = Wired(), np.full(1000, 1, np.int32)
    for _ in range(4):
        wired.ports.send(Frames(frames(1000), np.full(1000, FRAME_BYTES, np.int32), port))
    ends_at = time.monotonic() + PATIENCE_S
    while unsent(wired.ports.wires) and time.monotonic() < ends_at:
        pass
    counts = wired.ports.ports[1].counts
    assert_equal((counts.sent + counts.full, bool(unsent(wired.ports.wires))), (4000, False))


def busy_queue():
    """Long frames to an interface whose queue is full now and then: the kernel gives chunks of some back."""
    namespaces.add_wire("switch1", "host1")
    ports = InterfacePorts({1: "switch1"}, batch=1024, method="xdp")
    host = InterfacePorts({2: "host1"}, batch=1024, method="xdp")
    # The other end then takes frames in a thread of its own. /sys has to be this namespace's.
    threaded = "mount -t sysfs sysfs /sys && echo 1 > /sys/class/net/host1/threaded"
    subprocess.run(["unshare", "--mount", "sh", "-c", threaded], check=True)
    queue = ["root", "pfifo"]  # veth then stops, instead of dropping
    done = subprocess.run(["tc", "qdisc", "add", "dev", "switch1", *queue], check=False, capture_output=True)
    if done.returncode:
        return {"refused": done.stderr.read().strip()}
    for one in (ports, host):
        one.resize(packet_bytes(2048))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    whole, given, slowest = packets(250, 2048), 0, 0.0
    batch = Frames(whole, np.full(250, whole.shape[1], np.int32), np.full(250, 1, np.int32))
    ends_at = time.monotonic() + 3.0
    while time.monotonic() < ends_at or unsent(ports.wires):
        if time.monotonic() < ends_at:
            began = time.monotonic()
            ports.send(batch)
            given, slowest = given + 250, max(slowest, time.monotonic() - began)
        while len(got := host.receive([2])):
            assert (got.length == whole.shape[1]).all()
    counts = ports.ports[1].counts
    assert_equal(counts.sent + counts.full, given)
    assert slowest <= 1.0, f"a send took {slowest:.1f} s"
    return {}


def nobody_reads():
    """More long frames than the rings hold: they are lost as the switch is slow, not as they are long."""
    wired = Wired()
    wired.make_room(8254)
    for _ in range(10):
        wired.send(1, frames(512, 8254))
    counts = wired.ports.ports[1].counts
    assert_equal((counts.overrun > 500, counts.long), (True, 0))


def pipeline_after_deletion():
    """A pipeline comes after the interface has gone."""
    wired = Wired()
    subprocess.run(["ip", "link", "del", "switch1"], check=True)
    wired.ports.resize(packet_bytes(32))
    wired.ports.resize(0)
    assert_equal(len(wired.ports.receive([1, 2])), 0)


def many_ports():
    """Twenty ports with frames, and batches of 40: none waits for the others."""
    names = {port: f"switch{port}" for port in range(1, 21)}
    for port, name in names.items():
        namespaces.add_wire(name, f"host{port}")
    ports = InterfacePorts(names, batch=40, method=os.environ["METHOD"])
    ports.resize(0)
    for port in names:
        host = networks.RawInterface(f"host{port}")
        assert host.send(frames(10)) == 10
    got = ports.receive(list(names))
    assert_equal(np.bincount(got.port).tolist(), [0, *20 * [2]])


def killed():
    """A switch is killed, and another one started on the same interface at once."""
    namespaces.add_wire("switch1", "host1")
    for _ in range(2):
        command = [*networks.PEELSUM, "switch", "run", "--interface", "1@switch1", "--json"]
        with subprocess.Popen([*command, "--p4runtime", "127.0.0.1:0"], stdout=subprocess.PIPE) as switch:
            assert_equal(json.loads(switch.stdout.readline())["port_method"], {"1": "AF_XDP, native"})
            switch.kill()
    assert_equal(best_port_method("switch1"), ("xdp", "native"))


def no_such_interface():
    with pytest.raises(StartError, match=r"^interface 3@nowhere: No such device; use one of lo$"):
        run(SwitchSettings(1, "127.0.0.1:0", interfaces={3: "nowhere"}))


def test_frames_pass_whole_and_in_order_and_are_counted(method):
    assert any(alone("there_and_back") == {"lost": 0} for _ in range(8))


#: Scenes that are played by both methods in `make test`, and those that are played in `make test-system`.
SCENES = [what_is_no_packet, up]
LONG_SCENES = [changed_mtu, tagged]
#: Scenes that are each played by one of the methods.
EITHER = [fair_shares, rows_out_of_order, too_long, nobody_reads, cut_wire, traffic_of_the_kernel]
LONG_EITHER = [
    *(after_a_wait, long_frames, down_and_up, long_down_and_up, more_than_the_rings_hold, bursts),
    *(pipeline_after_deletion, many_ports),
]


def parameters(scenes, long_scenes):
    """Return scenes as parameters; `system` tests play the long ones."""
    names = [scene.__name__ for scene in scenes]
    return [*names, *(pytest.param(scene.__name__, marks=pytest.mark.system) for scene in long_scenes)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("scene", parameters(EITHER, LONG_EITHER))
def test_what_ports_do_by_either_method(method, scene):
    alone(scene)


@pytest.mark.parametrize("scene", parameters(SCENES, LONG_SCENES))
def test_what_ports_do_by_both_methods(method, scene):
    alone(scene)


@pytest.mark.system
@pytest.mark.parametrize("scene", ["best", "busy_queue", "killed"])
def test_what_ports_do_by_af_xdp(needs_xdp, scene):
    if refused := alone(scene).get("refused"):
        pytest.skip(str(refused))


@pytest.mark.system
def test_only_af_packet_keeps_to_the_rates_of_an_interface(method):
    seen = alone("shaped")
    if "refused" in seen:
        pytest.skip(str(seen["refused"]))
    came = seen["came"]
    assert came == 50 if method == "xdp" else 0 < int(str(came)) < 10


def test_an_interface_that_is_not_there_is_named_with_those_that_are():
    alone("no_such_interface")


def test_missing_privilege_is_named(monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(OSError, match=r"interface 1@lo: Operation not permitted; raw sockets need root"):
        InterfacePorts({1: "lo"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interfaces": {255: "lo"}}, "--cpu-port: 255: is a port of the switch"),
        ({"interfaces": {1: "a", 2: "a"}}, "interface: a, a: give each to one port"),
        ({"interfaces": {1: "lo"}, "loss": 0.1}, "loss: 0.1 is for UDP ports; lose packets on the link"),
        ({"interfaces": {1: "lo"}, "late": 0.1}, "late: 0.1 is for UDP ports; use netem for an interface"),
        ({"loss_burst": 4.0}, "loss-burst: 4 needs a --loss above 0 and up to 0.8, not 0; change one"),
        ({"loss_burst": 1.0, "loss": 0.6}, "needs a --loss above 0 and up to 0.5, not 0.6; change one"),
    ],
)
def test_options_that_do_not_go_together_are_named(options, message):
    with pytest.raises(OptionError, match=message):
        SwitchSettings(1, **options)


@pytest.mark.parametrize(
    ("option", "message"),
    [("eth0", "interface: eth0: give PORT@VALUE"), ("1@", "interface: 1@: give PORT@VALUE")],
)
def test_the_command_line_names_what_it_cannot_read(option, message):
    done = peelsum("switch", "run", "--interface", option)
    assert (done.returncode, message in done.stderr) == (2, True)


if __name__ == "__main__":
    networks.main({**globals(), "xdp_refusal": networks.xdp_refusal})
