"""Rate of P4 programs: the softswitch and BMv2, on the same virtual Ethernet pairs.

The programs are the solutions of p4lang's tutorials with their own entries, and the aggregators of
`switch/rivals` with 32 lanes and jobs of one worker; the tutorials' controller loads all. The switch is
`peelsum simple-switch` or BMv2's `simple_switch_grpc`, with the same options. One process sends a program's
frames into port 1 again and again, and counts the frames that leave. Half a window is sent whenever as many
have come back; of windows of 32, 64 and 256 frames, a row has the fastest. The first frame's output must be
the same from both switches.

`peelsum`, with 32 lanes and a job of two workers, is measured as `peelsum bench switch` does: chunks are sent
into the workers' ports, and their results into the server's; the sums are compared.

It needs root, p4c-bm2-ss and BMv2 on PATH, and two variables: `P4LANG_TUTORIALS` names a checkout of
github.com/p4lang/tutorials, and `P4LANG_PYTHON` a Python with p4runtime and p4.tmp, for the controller.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from benchmarks import Experiment, Plot, Size, Value
from benchmarks.experiment import FOLDER, ExperimentError
from peelsum.bench.devices import cpu_s
from peelsum.bench.switch.rows import in_process, measure_switch
from peelsum.pipelines.artifacts import with_lanes
from peelsum.processes.children import Child
from peelsum.softswitch import Frames
from peelsum.softswitch.ports.interfaces import InterfacePorts
from peelsum.topology import namespaces
from peelsum.topology.bmv2 import reserved_tcp_port, wait_until_listening

_PORTS = range(1, 5)
_IPV4, _TCP, _UDP, _UDP_PORT = 0x800, 6, 17, 20563
_LANES = 32
_RIVALS = FOLDER.parents[1] / "switch" / "rivals"
#: Seconds until the first frame's output: the softswitch compiles the program first.
_PATIENCE_S = 300.0
#: Seconds of silence after which the frames in flight count as lost.
_SILENCE_S = 0.5
#: Frames in flight: BMv2's queues hold 64 per port.
_WINDOWS = (32, 64, 256)
_COMMANDS = {
    "softswitch": [sys.executable, "-m", "peelsum.cli", "simple-switch"],
    "bmv2": ["simple_switch_grpc"],
}
_WRITE_ENTRIES = """
import sys
sys.path.insert(0, sys.argv[1] + "/utils")
from p4runtime_lib.simple_controller import program_switch
address, runtime = sys.argv[2:]
folder = runtime.rpartition("/")[0]
program_switch(address, 0, open(runtime), folder, folder + "/requests.txt", runtime)
"""


class Program(NamedTuple):
    """A program: the folder of its exercise with the entries, or ""; and the frames for port 1, in turn."""

    entries: str
    frames: tuple[bytes, ...]
    outputs: int = 1
    """The number of frames that leave for each that enters."""
    times: slice = slice(0)
    """The bytes of a frame that leaves that depend on the time."""


def _ethernet(kind: int, content: bytes) -> bytes:
    return bytes.fromhex("080000000100 080000000111") + struct.pack(">H", kind) + content


#: A TCP segment with SYN.
_SYN = struct.pack(">HHIIBBHHH", 1234, 80, 1, 0, 5 << 4, 2, 8192, 0, 0) + bytes(100)


def _ipv4(destination: str, protocol: int = _TCP, segment: bytes = _SYN) -> bytes:
    """Return an IPv4 packet from 10.0.1.1."""
    addresses = socket.inet_aton("10.0.1.1") + socket.inet_aton(destination)
    header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(segment), 1, 0, 64, protocol, 0) + addresses
    total = sum(struct.unpack(">10H", header))
    checksum = ~(total % 0xFFFF) & 0xFFFF
    return header[:10] + struct.pack(">H", checksum) + header[12:] + segment


def _message(*, port: int = 0, version: int = 0, result: int = 0, extra: int = 0) -> bytes:
    """Return a packet of `switch/rivals/frame.p4inc` of job 1, which has one worker."""
    flags = result << 5 | version
    message = struct.pack(">BBBBHHII", 1, 1, flags, 0, 5, port, 9, extra) + bytes(4 * _LANES)
    datagram = struct.pack(">HHHH", _UDP_PORT, _UDP_PORT, 8 + len(message), 0) + message
    return _ethernet(_IPV4, _ipv4("10.0.2.2", _UDP, datagram))


#: A worker uses a slot's versions in turn.
_BOTH_VERSIONS = (_message(version=0), _message(version=1))
PROGRAMS = {
    "basic": Program("pod-topo", (_ethernet(_IPV4, _ipv4("10.0.2.2")),)),
    "basic_tunnel": Program(".", (_ethernet(0x1212, struct.pack(">HH", _IPV4, 2) + _ipv4("10.0.2.2")),)),
    "calc": Program(".", (_ethernet(0x1234, struct.pack(">2sBcIII", b"P4", 1, b"+", 40, 2, 0)),)),
    "ecn": Program(".", (_ethernet(_IPV4, _ipv4("10.0.2.2")),)),
    "firewall": Program("pod-topo", (_ethernet(_IPV4, _ipv4("10.0.3.3")),)),
    "link_monitor": Program("pod-topo", (_ethernet(0x812, bytes([0, 2])),), times=slice(27, 33)),
    "load_balance": Program(".", (_ethernet(_IPV4, _ipv4("10.0.0.1")),)),
    "multicast": Program("sig-topo", (b"\xff" * 6 + _ethernet(_IPV4, _ipv4("10.0.9.9"))[6:],), outputs=2),
    "qos": Program(".", (_ethernet(_IPV4, _ipv4("10.0.2.2")),)),
    "source_routing": Program(
        ".", (_ethernet(0x1234, struct.pack(">HH", 2, 1 << 15 | 3) + _ipv4("10.0.2.2")),)
    ),
    "switchml": Program("", _BOTH_VERSIONS),
    "omnireduce": Program("", _BOTH_VERSIONS),
    "thc": Program("", _BOTH_VERSIONS),
    "atp": Program("", (_message(port=2, extra=1), _message(port=2, extra=1, result=1))),
}


#: The program of `switch/p4`, which `peelsum bench switch` drives.
_OURS = "peelsum"


def measure(seed: int, program: str, seconds: float) -> list[dict[str, Value]]:
    """Measure a program on both switches; return a row for each. Raises ExperimentError."""
    checkout = os.environ.get("P4LANG_TUTORIALS")
    tools = ("p4c-bm2-ss", "simple_switch_grpc")
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing or not checkout or "P4LANG_PYTHON" not in os.environ:
        needs = ", ".join(missing) or "P4LANG_TUTORIALS and P4LANG_PYTHON"
        raise ExperimentError(f"programs: needs {needs}; see the experiment's description")
    if program == _OURS:
        return _with_ratio([_measure_ours(name, seconds) for name in _COMMANDS])
    with TemporaryDirectory(prefix="peelsum-") as folder:
        runtime = _compile(program, Path(checkout), Path(folder))
        rows = [in_process(_measure_switch, name, program, str(runtime), seconds) for name in _COMMANDS]
    outputs = [row.pop("output") for row in rows]
    if outputs[0] != outputs[1]:
        raise ExperimentError(f"{program}: the switches send other frames: {outputs}")
    return _with_ratio(rows)


def _with_ratio(rows: list[dict[str, Any]]) -> list[dict[str, Value]]:
    """Add to the rows of both switches the rate over BMv2's, the second row's."""
    bmv2 = rows[1]["frames_per_s"]
    return [{**row, "rate_to_bmv2": round(row["frames_per_s"] / bmv2, 1)} for row in rows]


def _measure_ours(name: str, seconds: float) -> dict[str, Any]:
    """Measure our own program on a switch; return the row. With two contributions, a result is sent in."""
    row = measure_switch("bmv2" if name == "bmv2" else "packet", _LANES, 2, seconds)
    frames = {f"frames_{per}": round(1.5 * row[f"packets_{per}"]) for per in ("per_s", "per_cpu_s")}
    return {"switch": name, **frames, "lost": 3 * row["lost_chunks"]}


def _compile(program: str, checkout: Path, folder: Path) -> Path:
    """Compile the program beside its entries; return the file with these."""
    entries = PROGRAMS[program].entries
    exercise, place = checkout / "exercises" / program, folder / entries
    source = _RIVALS / f"{program}.p4"
    if entries:
        shutil.copytree(exercise, folder, dirs_exist_ok=True)
        shutil.copytree(exercise / "solution", folder, dirs_exist_ok=True)
        source = folder / f"{program}.p4"
    (place / "build").mkdir()
    names = [f"build/{program}.p4.p4info.txtpb", f"build/{program}.json"]
    command = ["p4c-bm2-ss", "--Wdisable", "-I", str(source.parent), "--p4runtime-files", names[0]]
    subprocess.run([*command, "-o", names[1], str(source)], cwd=place, check=True)
    if not entries:
        compiled = place / names[1]
        compiled.write_text(json.dumps(with_lanes(json.loads(compiled.read_text()), _LANES)))
        group = {"multicast_group_id": 1, "replicas": [{"egress_port": 2, "instance": 1}]}
        runtime = {
            "target": "bmv2",
            "p4info": names[0],
            "bmv2_json": names[1],
            "multicast_group_entries": [group],
        }
        (place / "s1-runtime.json").write_text(json.dumps(runtime))
    return place / "s1-runtime.json"


def _measure_switch(name: str, program: str, runtime: str, seconds: float) -> dict[str, Any]:
    """Start a switch in namespaces of this process, write its entries, and measure it; return the row."""
    namespaces.enter_own_namespace()
    for port in _PORTS:
        namespaces.add_wire(f"switch{port}", f"host{port}")
    with reserved_tcp_port() as grpc_port:
        address = f"127.0.0.1:{grpc_port}"
        interfaces = [text for port in _PORTS for text in ("-i", f"{port}@switch{port}")]
        options = ["--no-p4", "--device-id", "0", *interfaces, "--log-level", "off"]
        switch = Child(name, [*_COMMANDS[name], *options, "--", "--grpc-server-addr", address], foreign=True)
        hosts = InterfacePorts({port: f"host{port}" for port in _PORTS}, method="packet")
        try:
            wait_until_listening(switch, program, address, _PATIENCE_S)
            _write_entries(address, runtime)
            output = _first_output(hosts, PROGRAMS[program])
            driven = [_drive(hosts, PROGRAMS[program], window, seconds, switch.pid) for window in _WINDOWS]
            fastest = max(driven, key=lambda figures: figures["frames_per_s"])
            return {"switch": name, "output": output, **fastest}
        finally:
            switch.stop()
            hosts.close()


def _write_entries(address: str, runtime: str) -> None:
    """Load the program and its entries by the tutorials' controller."""
    command = [os.environ["P4LANG_PYTHON"], "-c", _WRITE_ENTRIES, os.environ["P4LANG_TUTORIALS"], address]
    subprocess.run([*command, runtime], check=True, stdout=subprocess.DEVNULL)


def _receive(hosts: InterfacePorts, patience_s: float) -> Frames:
    """Return the frames that have arrived, or that arrive first within `patience_s`."""
    select.select([port.socket for port in hosts.ports.values()], [], [], patience_s)
    return hosts.receive(list(_PORTS))


def _send(hosts: InterfacePorts, frames: Sequence[bytes], number: int) -> None:
    """Send `number` frames into port 1, taking `frames` in turn; all have the same length."""
    data = np.resize(np.frombuffer(b"".join(frames), np.uint8), (number, len(frames[0])))
    hosts.send(Frames(data, np.full(number, data.shape[1], np.int32), np.ones(number, np.int32)))


def _first_output(hosts: InterfacePorts, program: Program) -> list[tuple[int, bytes]]:
    """Send the program's frame once; return the ports and bytes of the frames that leave."""
    output: list[tuple[int, bytes]] = []
    _send(hosts, program.frames, 1)
    deadline = time.monotonic() + _PATIENCE_S
    while len(output) < program.outputs and time.monotonic() < deadline:
        frames = _receive(hosts, 1.0)
        frames.data[:, program.times] = 0
        output += frames.pairs()
    if len(output) != program.outputs:
        raise ExperimentError(f"programs: {len(output)} frames came back, not {program.outputs}")
    return sorted(output)


def _drive(
    hosts: InterfacePorts, program: Program, window: int, seconds: float, pid: int
) -> dict[str, float]:
    """Send the program's frame for `seconds`; return the figures."""
    half = window // 2
    done = lost = in_flight = 0  # counted in frames that leave
    began_cpu_s, began = cpu_s(pid), time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        while in_flight + half * program.outputs <= window * program.outputs:
            _send(hosts, program.frames, half)
            in_flight += half * program.outputs
        count = len(_receive(hosts, _SILENCE_S))
        if not count:
            lost, in_flight = lost + in_flight, 0
        done, in_flight = done + count, max(0, in_flight - count)
    done, lost = done // program.outputs, lost // program.outputs
    return {
        "frames_per_s": round(done / (now - began)),
        "frames_per_cpu_s": round(done / (cpu_s(pid) - began_cpu_s)),
        "lost": lost,
    }


def by_ratio(medians: Any) -> str:
    """Return the least and the largest ratio of the softswitch's rate to BMv2's."""
    (ratios,) = (programs.values() for programs in medians.by_series.values())
    return f"The softswitch takes {min(ratios):.1f} to {max(ratios):.0f} times BMv2's frames per second"


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "switch": "`softswitch` for `peelsum simple-switch`, or `bmv2`",
        "frames_per_s": "frames per second that were sent in and came back",
        "frames_per_cpu_s": "the same per second of the switch process's processor time",
        "lost": "frames that the load gave up after a silence",
        "rate_to_bmv2": "`frames_per_s` over BMv2's",
    },
    keys=("switch",),
    sizes={
        "quick": Size([{"program": ("basic", "calc"), "seconds": 0.5}], 1),
        "usual": Size([{"program": (*PROGRAMS, _OURS), "seconds": 1.0}], 3),
    },
    choices={"program": (*PROGRAMS, _OURS)},
    ranges={"seconds": (0.1, 3600)},
    plots=[
        Plot(
            "rates",
            x="program",
            y="rate_to_bmv2",
            where={"switch": "softswitch"},
            kind="bars",
            finding=by_ratio,
            setting="One process that sends and receives on virtual Ethernet, on two cores. Measured.",
            xlabel="Program",
            ylabel="Frames per second, over BMv2's",
        )
    ],
)
