"""`bench switch`: measurements that end correctly, and their comparison with BMv2."""

import os
import select
import time
from typing import Any

import networks
import numpy as np
import pytest
from patience import PATIENCE_S

from benchmarks.experiments import switch as forwarder
from peelsum.bench.devices import cpu_s
from peelsum.bench.switch import rows as bench_switch
from peelsum.softswitch import Frames
from peelsum.softswitch.ports.interfaces import InterfacePorts
from peelsum.softswitch.ports.udp import frame_header
from peelsum.topology import TopologyError, bmv2, namespaces
from peelsum.wire import FRAME_HEADER_BYTES, packet_bytes


def test_contributions_in_memory_are_counted() -> None:
    rate = bench_switch.in_memory(32, 2, 0.05)
    assert rate["packets_per_s"] > 0
    assert rate["lost_chunks"] == 0
    assert rate["slots_timed"] > 0
    assert 0 < rate["latency_p50_us"] <= rate["latency_p99_us"]


@pytest.mark.system
def test_contributions_over_udp_go_through_a_process_of_its_own() -> None:
    rate = bench_switch.over_udp(32, 3, 0.05)  # lasts until its first chunk is back, however slow the machine
    assert rate["packets_per_s"] > 0
    assert 0 < rate["latency_p50_us"] <= rate["latency_p99_us"]


@pytest.mark.system
@pytest.mark.parametrize("method", ["xdp", "packet"])
def test_contributions_on_interfaces_take_processor_time_of_the_switch(method: str) -> None:
    if networks.REFUSAL:
        pytest.skip(networks.REFUSAL)
    try:
        rate = bench_switch.measure_switch(method, 32, 2, 0.2)
    except OSError as error:  # AF_XDP is refused
        pytest.skip(str(error))
    assert rate["packets_per_s"] > 0
    assert rate["packets_per_cpu_s"] > 0
    assert 0 < rate["latency_p50_us"] <= rate["latency_p99_us"]


def returned(method: str) -> dict[str, object]:
    """Send frames of one to three chunks to a forwarder, three times what its rings hold; compare them."""
    namespaces.add_wire("switch1", "host1")
    with forwarder.forwarding("switch1", method):
        host = InterfacePorts({1: "host1"}, method=method)
        host.resize(packet_bytes(2048))
        same = []
        for seed, lanes in enumerate((32, 1024, 2048) * 40):
            load = np.random.default_rng(seed).integers(0, 256, (60, packet_bytes(lanes)), np.uint8)
            headers = np.broadcast_to(frame_header(1, load.shape[1]), (60, FRAME_HEADER_BYTES))
            sent, got = np.concatenate([headers, load], axis=1), []
            host.send(Frames(sent, np.full(60, sent.shape[1], np.int32), np.ones(60, np.int32)))
            while len(got) < 60 and select.select([host.ports[1].socket], [], [], PATIENCE_S)[0]:
                batch = host.receive([1])
                got += [row[:length] for row, length in zip(batch.data.copy(), batch.length, strict=True)]
            same.append(np.array_equal(np.array(got), sent))
        return {"bursts": len(same), "same": sum(same)}


def by_xdp() -> dict[str, object]:
    return returned("xdp")


def by_packet() -> dict[str, object]:
    return returned("packet")


@pytest.mark.system
@pytest.mark.parametrize("scene", ["by_xdp", "by_packet"])
def test_a_forwarder_returns_every_frame(scene: str) -> None:
    if networks.REFUSAL:
        pytest.skip(networks.REFUSAL)
    assert networks.alone(__file__, scene) == {"bursts": 120, "same": 120}


def test_the_time_of_a_process_is_its_own() -> None:
    before, process = time.process_time(), cpu_s(os.getpid())
    assert before <= process <= time.process_time()


RATES = {
    "memory": (1_000_000, 6.0),
    "udp": (150_000, 80.0),
    "xdp": (120_000, 40.0),
    "packet": (90_000, 40.0),
    "xdp_forwarder": (200_000, None),
    "packet_forwarder": (100_000, None),
    "bmv2": (10_000, 160.0),
}


def measured(monkeypatch: pytest.MonkeyPatch, *, refused: str = "") -> None:
    """Let the switches have RATES; BMv2 is there, but interfaces may be refused."""

    def one(ports: str, *_: object) -> dict[str, Any]:
        if ports in ("xdp", "packet", "bmv2") and refused:
            raise TopologyError(refused)
        packets, latency = RATES[ports]
        return {"ports": ports, "packets_per_s": packets, "latency_p50_us": latency, "bmv2": "measured"}

    monkeypatch.setattr(bench_switch, "_first_packet_seconds", lambda lanes: (4.0, 0.5))
    monkeypatch.setattr(bench_switch, "measure_switch", one)
    monkeypatch.setattr(bmv2, "available", lambda: True)


def test_rows_have_ratios_to_bmv2(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch)
    rows = forwarder.measure(0, 32, 4, 0.0)
    assert [row["ports"] for row in rows] == list(RATES)
    assert [row["rate_to_bmv2"] for row in rows] == [100.0, 15.0, 12.0, 9.0, 20.0, 10.0, 1.0]
    assert [row["latency_to_bmv2"] for row in rows] == [0.037, 0.5, 0.25, 0.25, None, None, 1.0]
    assert {row["bmv2"] for row in rows} == {"measured"}
    assert [row.get("first_packet_cold_s") for row in rows] == [4.0] + 6 * [None]


def test_what_needs_interfaces_is_left_out_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "network namespace: refused (EPERM); run as root"
    measured(monkeypatch, refused=why)
    assert [row["bmv2"] for row in bench_switch.measure_switches(32, 4, 0.0)] == [why, why]
    measured(monkeypatch)
    monkeypatch.setattr(bmv2, "available", lambda: False)
    assert [row["bmv2"] for row in bench_switch.measure_switches(32, 4, 0.0)] == ["not on PATH"] * 4


if __name__ == "__main__":
    networks.main(globals())
