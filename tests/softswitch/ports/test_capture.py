"""Captures of a switch's ports: every frame's bytes, port, direction and time."""

import resource
import struct
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from patience import until
from softswitch_frames import StubSwitch, host_at

from peelsum.softswitch import Frames, SoftswitchError
from peelsum.softswitch.ports.capture import Capture
from peelsum.softswitch.ports.links import Links
from peelsum.softswitch.ports.udp import UdpPorts
from peelsum.softswitch.process import DataPlane, StartError, run
from peelsum.softswitch.runtime.device import Device
from peelsum.switch_settings import SwitchSettings
from peelsum.wire import packet_bytes

NOW_NS = 1_700_000_000_123_456_789
FRAMES = [(2, b"\1" * 60), (1, bytes(range(200))), (2, b"\7" * 61), (9, b"to no port")]


def records(path: Path) -> list[tuple[int, bytes]]:
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


def frames_in(folder: Path) -> dict[str, list[bytes]]:
    return {path.name: [frame for _, frame in records(path)] for path in folder.iterdir()}


def test_every_frame_is_written_down_by_port_and_way(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    capture = Capture([1, 2], folder, clock=lambda: NOW_NS)
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
def test_the_data_plane_captures_what_arrives_and_what_leaves(
    tmp_path: Path, delays: dict[int, float]
) -> None:
    size = packet_bytes(8)
    ports, device = UdpPorts([1]), Device()
    capture, links = Capture([1], tmp_path), Links([1], delays=delays)
    with (
        closing(ports),
        closing(device),
        DataPlane(device, ports, links=links, capture=capture) as plane,
        host_at(plane, ports.listening[1], size) as host,
    ):
        device.install(StubSwitch())  # type: ignore[arg-type]
        plane.process_batch(0)
        host.send(np.full((1, size), 7, np.uint8))
        until(lambda: plane.process_batch(0.01) or ports.ports[1].counts.sent)
    capture.close()
    written = frames_in(tmp_path)
    assert [len(frames) for frames in written.values()] == [1, 1]
    assert written["port1_in.pcap"] == written["port1_out.pcap"]


def test_a_capture_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "port2_in.pcap").write_bytes(b"precious")
    with pytest.raises(StartError, match=r"capture: .*port2_in.pcap: File exists; give a folder"):
        run(SwitchSettings(2, "127.0.0.1:0", capture=tmp_path))
    assert (tmp_path / "port2_in.pcap").read_bytes() == b"precious"


def test_a_folder_that_cannot_be_made_is_named() -> None:
    with pytest.raises(SoftswitchError, match="capture: /dev/null/here: Not a directory"):
        Capture([1], Path("/dev/null/here"))


def test_when_a_file_cannot_be_written_nothing_is_captured_any_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = Capture([1, 2], tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        for _ in range(100):  # more than a buffer holds
            capture.write("out", Frames.of(FRAMES))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert capsys.readouterr().err == "peelsum: capture: File too large; nothing is captured any more\n"
    capture.close()
