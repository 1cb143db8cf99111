"""`bench switch`: measurements that end correctly, and their comparison with BMv2."""

import os
import time

import networks
import pytest

from peelsum.bench.devices import cpu_s
from peelsum.bench.switch import rows as bench_switch
from peelsum.topology import TopologyError, bmv2


def test_contributions_in_memory_are_counted():
    rate = bench_switch.in_memory(32, 2, 0.05)
    assert rate["packets_per_s"] > 0
    assert rate["lost_chunks"] == 0
    assert rate["slots_timed"] > 0
    assert 0 < rate["latency_p50_us"] <= rate["latency_p99_us"]


@pytest.mark.system
def test_contributions_over_udp_go_through_a_process_of_its_own():
    rate = bench_switch.over_udp(32, 3, 0.05)  # lasts until its first chunk is back, however slow the machine
    assert rate["packets_per_s"] > 0
    assert 0 < rate["latency_p50_us"] <= rate["latency_p99_us"]


@pytest.mark.system
@pytest.mark.parametrize("method", ["xdp", "packet"])
def test_contributions_on_interfaces_take_processor_time_of_the_switch(method):
    if networks.REFUSAL:
        pytest.skip(networks.REFUSAL)
    try:
        rate = bench_switch.measure_switch(method, 32, 2, 0.2)
    except OSError as error:  # AF_XDP is refused
        pytest.skip(str(error))
    assert rate["packets_per_s"] > 0
    assert rate["packets_per_cpu_s"] > 0
    assert 0 < rate["latency_p50_us"] <= rate["latency_p99_us"]


def test_the_time_of_a_process_is_its_own():
    before, process = time.process_time(), cpu_s(os.getpid())
    assert before <= process <= time.process_time()


RATES = {
    "memory": (1_000_000, 6.0),
    "udp": (150_000, 80.0),
    "xdp": (120_000, 40.0),
    "packet": (90_000, 40.0),
    "bmv2": (10_000, 160.0),
}


def measured(monkeypatch, *, refused=""):
    """Let the switches have RATES; BMv2 is there, but interfaces may be refused."""

    def one(ports, *_):
        if ports in ("xdp", "packet", "bmv2") and refused:
            raise TopologyError(refused)
        packets, latency = RATES[ports]
        return {"ports": ports, "packets_per_s": packets, "latency_p50_us": latency, "bmv2": "measured"}

    monkeypatch.setattr(bench_switch, "_first_packet_seconds", lambda lanes: (4.0, 0.5))
    monkeypatch.setattr(bench_switch, "measure_switch", one)
    monkeypatch.setattr(bmv2, "available", lambda: True)


def test_rows_have_ratios_to_bmv2(monkeypatch):
    measured(monkeypatch)
    rows = bench_switch.measure_switches(32, 4, 0.0)
    assert [row["ports"] for row in rows] == list(RATES)
    assert [row["rate_to_bmv2"] for row in rows] == [100.0, 15.0, 12.0, 9.0, 1.0]
    assert [row["latency_to_bmv2"] for row in rows] == [0.037, 0.5, 0.25, 0.25, 1.0]
    assert {row["bmv2"] for row in rows} == {"measured"}
    assert [row.get("first_packet_cold_s") for row in rows] == [4.0] + 4 * [None]


def test_what_needs_interfaces_is_left_out_without_them(monkeypatch):
    why = "network namespace: refused (EPERM); run as root"
    measured(monkeypatch, refused=why)
    assert [row["bmv2"] for row in bench_switch.measure_switches(32, 4, 0.0)] == [why, why]
    measured(monkeypatch)
    monkeypatch.setattr(bmv2, "available", lambda: False)
    assert [row["bmv2"] for row in bench_switch.measure_switches(32, 4, 0.0)] == ["not on PATH"] * 4


if __name__ == "__main__":
    networks.main(globals())
