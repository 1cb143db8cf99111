"""Captures of a switch's ports: every frame's bytes, port, direction and time."""

import struct
from pathlib import Path

import pytest

from peelsum.softswitch import Frames, SoftswitchError
from peelsum.softswitch.ports.capture import CapturedPorts
from peelsum.softswitch.ports.udp import UdpPorts
from peelsum.softswitch.process import StartError, run

NOW_NS = 1_700_000_000_123_456_789
FRAMES = [(2, b"\1" * 60), (1, bytes(range(200))), (2, b"\7" * 61), (9, b"to no port")]


class StubPorts(UdpPorts):
    """Ports 1 and 2: they receive the frames in `arriving` and send nothing."""

    def __init__(self) -> None:
        super().__init__([1, 2])
        self.arriving: list[tuple[int, bytes]] = []

    def receive(self, ready: object) -> Frames:
        arrived, self.arriving = Frames.of(self.arriving), []
        return arrived

    def send(self, frames: Frames) -> None:
        self.sent = frames.pairs()


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


def test_every_frame_is_written_down_by_port_and_way(tmp_path: Path) -> None:
    inner = StubPorts()
    ports = CapturedPorts(inner, tmp_path / "a" / "b", clock=lambda: NOW_NS)
    inner.arriving = FRAMES[:3]
    assert ports.receive([1, 2]).pairs() == FRAMES[:3]
    assert not len(ports.receive([1, 2]))
    ports.send(Frames.of(FRAMES))
    assert inner.sent == FRAMES
    ports.send_by(1, Frames.of(FRAMES[1:2]))
    ports.close()
    captured = {path.name: [frame for _, frame in records(path)] for path in (tmp_path / "a" / "b").iterdir()}
    of = {port: [frame for at, frame in FRAMES if at == port] for port in (1, 2)}
    assert captured == {
        "port1_in.pcap": of[1],
        "port1_out.pcap": of[1] * 2,
        "port2_in.pcap": of[2],
        "port2_out.pcap": of[2],
    }
    assert {at for at, _ in records(tmp_path / "a" / "b" / "port2_in.pcap")} == {NOW_NS}


def test_a_capture_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "port2_in.pcap").write_bytes(b"precious")
    with pytest.raises(StartError, match=r"capture: .*port2_in.pcap: File exists; give a folder"):
        run(2, grpc_address="127.0.0.1:0", capture=tmp_path)
    assert (tmp_path / "port2_in.pcap").read_bytes() == b"precious"


def test_a_folder_that_cannot_be_made_is_named() -> None:
    inner = StubPorts()
    with pytest.raises(SoftswitchError, match="capture: /dev/null/here: Not a directory"):
        CapturedPorts(inner, Path("/dev/null/here"))
    inner.close()


def test_the_switch_goes_on_when_a_file_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = StubPorts()
    ports = CapturedPorts(inner, tmp_path)
    with Path("/dev/full").open("wb", buffering=0) as full:
        ports._files[1, "out"] = full
        for _ in range(2):
            ports.send(Frames.of(FRAMES))
    assert inner.sent == FRAMES
    assert capsys.readouterr().err == (
        "peelsum: capture: No space left on device; nothing is captured any more\n"
    )
    ports.close()
