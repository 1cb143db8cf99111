"""`bench switch`: measurements that end correctly, and their comparison with BMv2."""

import os
import time

import pytest

from peelsum.bench.devices import cpu_s
from peelsum.bench.switch import planes, rates
from peelsum.bench.switch import rows as bench_switch
from peelsum.bench.switch.rows import Row
from peelsum.topology import TopologyError, bmv2


def test_contributions_in_memory_are_counted() -> None:
    rate = rates.in_memory(32, 2, 0.05)
    assert rate.packets_per_s > 0
    assert rate.lost_chunks == 0
    assert rate.slots_timed > 0
    assert 0 < rate.latency_p50_us <= rate.latency_p99_us


def test_contributions_over_udp_go_through_a_process_of_its_own() -> None:
    rate = rates.over_udp(32, 3, 0.05)  # lasts until its first chunk is back, however slow the machine
    assert rate.packets_per_s > 0
    assert 0 < rate.latency_p50_us <= rate.latency_p99_us


def test_planes_share_one_load_and_each_takes_processor_time() -> None:
    rows = planes.measure(2, 32, 2, 0.5)
    assert [(row.planes, row.lanes, row.workers) for row in rows] == [(1, 32, 2), (2, 32, 2)]
    for row in rows:
        assert row.packets_per_s > 0
        assert row.packets_per_cpu_s > row.packets_per_s / row.planes
        assert 0 < row.busy < 1.1
    one, two = rows
    assert (one.cpu_to_one, one.clock_to_one) == (1, 1)
    assert two.cpu_to_one == pytest.approx(two.packets_per_cpu_s / one.packets_per_cpu_s, abs=0.01)
    assert two.clock_to_one == pytest.approx(two.packets_per_s / one.packets_per_s, abs=0.01)


def test_the_time_of_a_process_is_its_own() -> None:
    before, process = time.process_time(), cpu_s(os.getpid())
    assert before <= process <= time.process_time()


def measured(monkeypatch: pytest.MonkeyPatch, *rows: Row) -> None:
    monkeypatch.setattr(bench_switch, "_first_packet_seconds", lambda lanes: (4.0, 0.5))
    by_ports = {row.ports: row for row in rows}
    monkeypatch.setattr(bench_switch, "measured", lambda ports, lanes, workers, seconds: by_ports[ports])


ROWS = (
    Row("embedded", "memory", 32, 4, 1_000_000, 6.0, 9.0, 100),
    Row("embedded", "udp", 32, 4, 150_000, 80.0, 90.0, 100),
    Row("bmv2", "veth", 32, 4, 10_000, 160.0, 200.0, 100),
)


def test_rows_have_ratios_to_bmv2(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, *ROWS)
    monkeypatch.setattr(bmv2, "available", lambda: True)
    rows = bench_switch.bench_switch(lanes=(32,))
    assert [(row.target, row.ports, row.lanes, row.workers) for row in rows] == [
        ("embedded", "memory", 32, 4),
        ("embedded", "udp", 32, 4),
        ("bmv2", "veth", 32, 4),
    ]
    assert [row.rate_to_bmv2 for row in rows] == [100.0, 15.0, 1.0]
    assert [row.latency_to_bmv2 for row in rows] == [0.037, 0.5, 1.0]
    assert [row.latency_p99_us for row in rows] == [9.0, 90.0, 200.0]
    assert {row.bmv2 for row in rows} == {"measured"}
    assert [row.first_packet_cold_s for row in rows] == [4.0, None, None]


def test_without_bmv2_there_are_no_ratios_and_every_row_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, *ROWS[:2])
    monkeypatch.setattr(bmv2, "available", lambda: False)
    rows = bench_switch.bench_switch(lanes=(32,))
    assert [(row.rate_to_bmv2, row.latency_to_bmv2) for row in rows] == [(None, None)] * 2
    assert {row.bmv2 for row in rows} == {"not on PATH"}


def test_a_bmv2_without_interfaces_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(ports: str, lanes: int, workers: int, seconds: float) -> Row:
        if ports == "veth":
            raise TopologyError("network namespace: refused (EPERM); run as root")
        return ROWS[0]

    measured(monkeypatch)
    monkeypatch.setattr(bench_switch, "measured", refused)
    monkeypatch.setattr(bmv2, "available", lambda: True)
    rows = bench_switch.bench_switch(lanes=(32,))
    assert [row.packets_per_s for row in rows] == [1_000_000, 1_000_000]
    assert {row.bmv2 for row in rows} == {"network namespace: refused (EPERM); run as root"}
