"""`bench switch`: measurements that end right, and what is printed of them."""

import json

import pytest

from peelsum.cli import bench_switch
from peelsum.cli.bench_switch import Row
from peelsum.topology import TopologyError, bmv2, rates


def test_contributions_in_memory_are_counted() -> None:
    rate = rates.in_memory(32, 0.05)
    assert rate.packets_per_s > 0
    assert rate.lost_chunks == 0


def test_contributions_over_udp_go_through_a_process_of_its_own() -> None:
    assert rates.over_udp(32, 0.05).packets_per_s > 0


def measured(monkeypatch: pytest.MonkeyPatch, *rows: Row) -> None:
    monkeypatch.setattr(bench_switch, "_first_packet_seconds", lambda lanes: (4.0, 0.5))
    by_ports = {row.ports: row for row in rows}
    monkeypatch.setattr(bench_switch, "_row", lambda ports, lanes, seconds: by_ports[ports])


ROWS = (
    Row("embedded", "memory", 32, 1_000_000),
    Row("embedded", "udp", 32, 150_000),
    Row("bmv2", "veth", 32, 10_000),
)


def test_json_is_one_list_with_ratios(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(monkeypatch, *ROWS)
    monkeypatch.setattr(bmv2, "available", lambda: True)
    bench_switch.bench_switch(json=True, lanes=(32,))
    rows = json.loads(capsys.readouterr().out)
    assert [(row["target"], row["ports"], row["lanes"]) for row in rows] == [
        ("embedded", "memory", 32),
        ("embedded", "udp", 32),
        ("bmv2", "veth", 32),
    ]
    assert [row["ratio_to_bmv2"] for row in rows] == [100.0, 15.0, 1.0]
    assert rows[0]["first_packet_cold_s"] == 4.0


def test_without_bmv2_there_are_no_ratios_and_a_line_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(monkeypatch, *ROWS[:2])
    monkeypatch.setattr(bmv2, "available", lambda: False)
    bench_switch.bench_switch(json=True, lanes=(32,))
    out, err = capsys.readouterr()
    assert [row["ratio_to_bmv2"] for row in json.loads(out)] == [None, None]
    assert "bmv2: left out, simple_switch_grpc is not on PATH" in err


def test_a_bmv2_without_interfaces_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(ports: str, lanes: int, seconds: float) -> Row:
        if ports == "veth":
            raise TopologyError("network namespace: refused (EPERM); run as root")
        return ROWS[0]

    measured(monkeypatch)
    monkeypatch.setattr(bench_switch, "_row", refused)
    monkeypatch.setattr(bmv2, "available", lambda: True)
    bench_switch.bench_switch(json=False, lanes=(32,))
    out, err = capsys.readouterr()
    assert "1,000,000" in out
    assert "bmv2: left out, network namespace: refused (EPERM); run as root" in err
