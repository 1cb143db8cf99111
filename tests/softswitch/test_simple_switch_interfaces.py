"""`peelsum simple-switch` on network interfaces: the program from the start, captures, rates of `tc`."""

import os
import select
import signal
import socket
import struct
import subprocess
from pathlib import Path

import networks
import pytest
from patience import PATIENCE_S

from peelsum.softswitch.ports.interfaces import shaped_rate
from peelsum.topology import namespaces

pytestmark = pytest.mark.system
#: A program that sends every frame back, 10 bytes longer.
ECHO, GROWTH = Path(__file__).parent / "p4/hashes.json", 10
LOGGER = Path(__file__).parent / "p4runtime/p4/externs.json"


def shaped_rates():
    """Limit an interface's rate in three ways."""
    namespaces.add_wire("switch1", "host1")
    commands = [
        "qdisc add dev switch1 root handle 5: htb default 1",
        "class add dev switch1 parent 5:0 classid 5:1 htb rate 0.5Mbit burst 15k",
        "qdisc replace dev switch1 root tbf rate 2gbit burst 1mb latency 10ms",
        "qdisc del dev switch1 root",
    ]
    rates = []
    for command in commands:
        subprocess.run(["tc", *command.split()], check=True)
        rates.append(shaped_rate("switch1"))
    return rates


def test_a_ports_rate_is_that_of_tc():
    assert networks.alone(__file__, "shaped_rates") == [None, 0.5, 2000, None]


def echoes():
    """Send frames of up to the MTU to port 0, whose interface has one of 9000 bytes."""
    namespaces.add_wire("switch1", "host1")
    for name in ("switch1", "host1"):
        subprocess.run(["ip", "link", "set", name, "mtu", "9000"], check=True)
    options = ["-i", "0@switch1", "--pcap", os.environ["FOLDER"], str(ECHO), "--log-console"]
    command = [*networks.PEELSUM, "simple-switch", *options, "--", "--grpc-server-addr", "127.0.0.1:0"]
    frames = [bytes(12) + b"\x81\0\0\7" + bytes(100), bytes(9000)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as switch,
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as host,
    ):
        lines = [switch.stdout.readline() for _ in range(2)]
        host.bind(("host1", 3))
        lengths = []
        for frame in frames:
            host.send(frame)
            assert select.select([host], [], [], PATIENCE_S)[0]
            lengths.append(len(host.recv(1 << 16)))
        captured = {path.name: path.stat().st_size for path in Path(os.environ["FOLDER"]).iterdir()}
        switch.send_signal(signal.SIGTERM)
        lines += switch.stdout.readlines()
    return {"lengths": lengths, "captured": captured, "status": switch.returncode, "lines": lines}


def test_frames_pass_as_long_as_the_mtu_and_are_captured(tmp_path, monkeypatch):
    monkeypatch.setenv("FOLDER", str(tmp_path))
    (tmp_path / "switch1_in.pcap").write_text("of an earlier run")
    told = networks.alone(__file__, "echoes")
    size = 24 + 2 * 16 + 116 + 9000
    assert told["captured"] == {"switch1_in.pcap": size, "switch1_out.pcap": size + 2 * GROWTH}
    assert (told["lengths"], told["status"]) == ([116 + GROWTH, 9000 + GROWTH], 0)
    assert told["lines"][1] == "port 0 at switch1 (AF_PACKET, as asked)\n"


def logged_line():
    """Return the line that a program from the command line logs for a frame, while it runs."""
    namespaces.add_wire("switch1", "host1")
    options = ["-i", "1@switch1", "--log-console", str(LOGGER), "--", "--grpc-server-addr", "127.0.0.1:0"]
    command = [*networks.PEELSUM, "simple-switch", *options]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as switch,
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as host,
    ):
        lines = iter(switch.stdout.readline, "")
        next(line for line in lines if "runs a program without lanes" in line)
        host.bind(("host1", 3))
        host.send(struct.pack(">BBHIIQ", 5, 0, 7, 0, 0, 9))  # the program's command 5
        line = next(lines)
        switch.send_signal(signal.SIGTERM)
    return line.partition("] program: ")[2]


def test_a_program_from_the_command_line_writes_its_log():
    assert networks.alone(__file__, "logged_line") == "flow 7 of {9}\n"


if __name__ == "__main__":
    networks.main({"shaped_rates": shaped_rates, "echoes": echoes, "logged_line": logged_line})
