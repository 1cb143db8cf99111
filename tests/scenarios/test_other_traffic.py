"""Hosts of a running network exchange traffic that belongs to no job."""

import json
import sys
from pathlib import Path

import pytest
from networks import PEELSUM, exec_in, own_folder, said, switch, up

__all__ = ["own_folder", "switch"]

SCENARIOS = Path(__file__).parent
WORKER = str(SCENARIOS.parent / "support" / "scenario_worker.py")
#: Says when it listens; then what it heard, and from whom, which it answers.
LISTENER = """
import socket
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("0.0.0.0", 5000))
sock.settimeout(20)
print("listening", flush=True)
words, address = sock.recvfrom(2000)
sock.sendto(words[::-1], address)
print(words.decode(), address[0])
"""
#: Sends until somebody answers: while a switch is without its tables, nobody does.
ASKER = """
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.settimeout(0.5)
for _ in range(40):
    sock.sendto(b"hello", (sys.argv[1], 5000))
    try:
        print(sock.recv(2000).decode())
        break
    except TimeoutError:
        pass
"""
#: Sends an ICMP echo request, says what came back: a reply (type 0) with the same words.
PING = """
import socket, struct, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
sock.settimeout(20)
words = struct.pack("!BBHHH", 8, 0, ~(0x0800 + 0x1234 + 1) & 0xFFFF, 0x1234, 1)
sock.sendto(words, (sys.argv[1], 0))
reply = sock.recv(2000)[20:]
print(reply[0], reply[4:] == words[4:])
"""

pytestmark = [pytest.mark.usefixtures("own_folder"), pytest.mark.system]


def asked(host, other, address):
    """A datagram to `other`, and its answer, neither of them on a job's UDP port."""
    listener = exec_in(other, sys.executable, "-c", LISTENER)
    assert listener.stdout.readline() == "listening\n"
    assert said(exec_in(host, sys.executable, "-c", ASKER, address)) == "olleh"
    assert said(listener).startswith("hello 10.0.0.")


def forget(host, address):
    """Have a host ask around for an address (ARP) before it sends there."""
    said(exec_in(host, "ip", "neighbour", "del", address, "dev", "eth0"))


def forwarded(p4runtime):
    status = said(exec_in("s1", *PEELSUM, "status", "--p4runtime", p4runtime, "--json"))
    return json.loads(status)["verdicts"].get("forwarded", 0)


def test_hosts_of_a_star_talk_beside_a_job_and_after_a_restart_of_the_switch(switch):
    with up("star", "veth", switch, "--restart") as network:
        workers = [exec_in(f"h{n}", sys.executable, WORKER, "1", "5", "100") for n in range(1, 5)]
        assert said(exec_in("h5", sys.executable, "-c", PING, "10.0.0.2")) == "0 True"
        asked("h1", "h2", "10.0.0.2")
        assert [said(worker) for worker in workers] == ["exact"] * 4
        assert "has finished" in network.hear()["news"]
        forget("h1", "10.0.0.2")
        forget("h2", "10.0.0.1")
        asked("h1", "h2", "10.0.0.2")
        network.kill_part("s1")
        assert network.hear()["news"].startswith("s1: ended by SIGKILL")
        asked("h3", "h5", "10.0.0.5")


def test_broadcasts_cross_racks_once(switch):
    """From rack to rack over the spine: the requested host answers, and no frame loops."""
    with up("two_racks", "veth", switch) as network:
        for host, other in (("h1", "10.0.0.3"), ("h3", "10.0.0.1")):
            forget(host, other)
        asked("h1", "h3", "10.0.0.3")
        # The first rack's switch: who has 10.0.0.3, the answer, the question and its answer; perhaps who has
        # 10.0.0.1. A frame that goes round would be counted thousands of times a second.
        assert 4 <= forwarded(network.said["p4runtime"]["s1"]) <= 20
