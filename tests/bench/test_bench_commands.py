"""The commands of `peelsum bench` print the rows that benches return; a wrong sum ends them with status 1."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import pytest
from command_line import peelsum

from peelsum.bench import soak
from peelsum.bench.allreduce import rows as allreduce
from peelsum.bench.codec import recovery
from peelsum.bench.codec import rows as codec
from peelsum.bench.endpoint import rows as endpoint
from peelsum.bench.fairness import port_rate
from peelsum.bench.fairness import rows as fairness
from peelsum.bench.loss import rows as loss
from peelsum.bench.methods import measured
from peelsum.bench.switch import planes, profile, tofino_variants
from peelsum.bench.switch import rows as switch


@dataclass(frozen=True)
class Played:
    """A command whose bench returns a row of ours."""

    owner: Any
    """Module of the bench."""
    name: str
    """Its function."""
    row: Any
    printed: tuple[str, ...]
    """Parts of the command's text."""
    keys: set[str]
    """Keys of the JSON objects, as they are promised."""
    returned: Callable[[Any], Any] = lambda row: [row]
    """What the function returns for a row."""


def generated(row: Any) -> Iterator[Any]:
    yield row


PLAYED = {
    "switch": Played(
        switch,
        "bench_switch",
        switch.Row(
            "embedded", "udp", 32, 4, 1_234_567, 80.04, 90.0, 100, "not on PATH", None, None, 4.0, 0.5
        ),
        ("embedded, udp", "1,234,567", "not on PATH", "80.0", "4.00 s with nothing compiled, 0.50 s"),
        {
            *("target", "ports", "lanes", "workers", "packets_per_s", "latency_p50_us", "latency_p99_us"),
            *("slots_timed", "bmv2", "rate_to_bmv2", "latency_to_bmv2"),
            *("first_packet_cold_s", "first_packet_cached_s", "lost_chunks"),
        },
    ),
    "endpoint": Played(
        endpoint,
        "bench_endpoint",
        endpoint.Row("sockets", 32, 123_456, 65_432, 0.504),
        ("endpoint and sockets", "32", "123,456", "0.50", "65,432"),
        {"way", "lanes", "packets_per_core_s", "packets_per_s", "share_of_bare"},
    ),
    "loss": Played(
        loss,
        "bench_loss",
        loss.Row(0.5, 2, 32, 1000, 3, 9, 0, 200.04, 100, 500, 0.126, 0.333, 7, 1234, 5, 0.988),
        (
            "2 workers, 1,000 words per sum, 32 lanes, seed 3",
            "50.0%",
            "200.0",
            "0.13",
            "33.3%",
            "98.8%",
            "1,234",
        ),
        {
            *("loss", "workers", "lanes", "elements", "seed", "sums", "wrong", "step_ms", "step_least_ms"),
            *("step_most_ms", "rate_gbit_s", "share_lost", "lost_packets", "resends", "window_cuts"),
            "summed_in_switch",
        },
    ),
    "plan": Played(
        measured,
        "measure",
        measured.MeasuredRow("all_gather", 3, 20.0, 2.5, 1_000, 2.61, 0.0191, 5.91, 6.42, -0.079, 0),
        ("all_gather", "2.5", "1,000", "2.61", "5.9", "6.4", "-8%", "error: 7.9%"),
        {
            *("collective", "workers", "mbit", "delay_ms", "words", "latency_ms", "gbps"),
            *("predicted_ms", "measured_ms", "error", "wrong"),
        },
    ),
    "fairness": Played(
        fairness,
        "bench_fairness",
        fairness.Row("virtual", 2, 3, 32, 20.0, 64, (1000.0, 2000.0), 0.9, 0.987, 12.0, 70, 8, 0),
        ("3 workers per job, 32 lanes", "virtual", "0.900", "98.7%", "1,000", "2,000", "12", "70", "8"),
        {
            *("ports", "jobs", "workers", "lanes", "mbit", "mark_from", "chunks_per_s", "fairness", "used"),
            *("queue_mean", "queue_deepest", "queue_dropped", "wrong"),
        },
    ),
    "port-rate": Played(
        port_rate,
        "measure_port_rate",
        port_rate.Row(1000.0, 32, 997.62, 878.1, 1129.4, 12_345),
        ("1,000", "32", "997.6", "878", "1,129", "12,345"),
        {"mbit", "lanes", "got_mbit", "least_10ms_mbit", "most_10ms_mbit", "dropped"},
        lambda row: row,
    ),
    "allreduce": Played(
        allreduce,
        "bench_allreduce",
        allreduce.Row(8192, 2048, "float", 0.1, "sketch", 12.34, 1.5, 2.5, 0, 5120, 0.25, 1, 2, 3, 2, 32),
        ("# 4 workers over the softswitch, 256 lanes", "busbw", "8192", "sketch", "12.3", "0.250"),
        {
            *("size_bytes", "elements", "type", "density", "form", "time_us", "algbw", "busbw", "wrong"),
            *("wire_bytes", "ratio_to_dense", "encode_us", "network_us", "decode_us", "workers", "lanes"),
        },
        generated,
    ),
    "codec": Played(
        codec,
        "bench_codec",
        codec.Row(
            2**20,
            0.1,
            "rows",
            "sketch",
            "bitmap",
            "cpu",
            7.5,
            1.25,
            0.998,
            9,
            3.14,
            2.71,
            23.1,
            None,
            0.5,
            0.75,
        ),
        ("#", "x bound", "1048576", "bitmap", "7.500", "99.80%", "3.1", "2.7", "0.750"),
        {
            *("elements", "density", "support", "form", "index", "device", "bits_per_element"),
            *("over_lower_bound", "recovered_by_peeling", "rounds", "encode_gbps", "decode_gbps"),
            *("codec_ms", "cells_per_non_zero", "time_ratio_to_best", "size_ratio_to_best"),
            *("time_ratio_to_published", "size_ratio_to_published"),
        },
        generated,
    ),
    "recovery": Played(
        recovery,
        "measure_recovery",
        recovery.LeftOver("table", "rows", 256, 1.3, 5, 0.5, 19.0, 0.0, 11.0),
        ("| rows | 256 | 1.30 | 50.00% | 0 | 11 |",),
        {
            *("part", "support", "lanes", "cells_per_candidate", "seeds"),
            *("kept", "kept_rounds", "rotated", "rotated_rounds"),
        },
        generated,
    ),
    "tofino-variants": Played(
        tofino_variants,
        "compile_variants",
        tofino_variants.Row("tofino2", 64, True, 21),
        ("tofino2: 64 lanes in pairs take 21 stages",),
        {"device", "lanes", "pairs", "stages"},
        generated,
    ),
}


def run(monkeypatch: pytest.MonkeyPatch, command: str, *options: str, **changes: Any) -> Any:
    """Run a command whose bench returns its row with changes; `port-rate` measures one."""
    one = PLAYED[command]
    returned = one.returned(replace(one.row, **changes))
    monkeypatch.setattr(one.owner, one.name, lambda *_, **__: returned)
    return peelsum("bench", command, *(["100@256"] if command == "port-rate" else []), *options)


@pytest.mark.parametrize("command", PLAYED)
def test_text_shows_the_rows(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    done = run(monkeypatch, command)
    assert (done.returncode, done.stderr) == (0, "")
    said = " ".join(done.stdout.split())
    assert [part for part in PLAYED[command].printed if part not in said] == []


@pytest.mark.parametrize("command", PLAYED)
def test_json_is_a_list_of_rows_with_the_promised_keys(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    done = run(monkeypatch, command, "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row == json.loads(json.dumps(asdict(PLAYED[command].row)))
    assert row.keys() == PLAYED[command].keys


def test_planes_are_measured_beside_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        planes.PlanesRow(1, 256, 4, 2_000_000, 1_900_000, 0.95, 1.0, 1.0),
        planes.PlanesRow(2, 256, 4, 3_456_789, 2_345_678, 0.601, 1.73, 1.23, 7),
    ]
    asked = []
    monkeypatch.setattr(
        planes, "bench_planes", lambda count, **options: asked.append((count, options)) or rows
    )
    done = peelsum("bench", "switch", "--planes", "2", "--lanes", "256", "--seconds", "5")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 256 4 3,456,789 1.73 2,345,678 1.23 60% 7" in " ".join(done.stdout.split())
    assert asked == [(2, {"lanes": [256], "workers": [4], "seconds": 5.0})]
    done = peelsum("bench", "switch", "--planes", "2", "--json")
    assert json.loads(done.stdout) == [asdict(row) for row in rows]
    done = peelsum("bench", "switch", "--planes", "1")
    assert (done.returncode, "--planes: 1 is out of range; use 2 to 64" in done.stderr) == (2, True)


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.parametrize("command", ["loss", "fairness", "allreduce"])
def test_a_wrong_sum_is_printed_and_ends_in_status_1(
    monkeypatch: pytest.MonkeyPatch, command: str, options: tuple[str, ...]
) -> None:
    done = run(monkeypatch, command, *options, wrong=54321)
    assert done.returncode == 1
    assert "54321" in done.stdout


def report(**changes: Any) -> soak.Report:
    return soak.Report(**{field.name: 1000 for field in fields(soak.Report)} | {"wrong": 0} | changes)


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_soak_prints_its_report(monkeypatch: pytest.MonkeyPatch, wrong: int) -> None:
    monkeypatch.setattr(soak, "soak", lambda *_, **__: report(wrong=wrong))
    done = peelsum("bench", "soak")
    assert done.returncode == wrong
    assert done.stdout.splitlines()[:2] == ["            chunks 1,000", f"             wrong {wrong}"]
    done = peelsum("bench", "soak", "--json")
    assert done.returncode == wrong
    assert json.loads(done.stdout) == asdict(report(wrong=wrong))


def test_a_profile_prints_both_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    program = profile.ProgramRow(32, 4, {"parse": 12.3, "lanes": 4.0}, 16.3, 15.0)
    loop = profile.LoopRow(32, 4, 1_234_567, 0.9, {"system calls": 56.7, "program and loop": 8.0})
    monkeypatch.setattr(profile, "profile", lambda *_: profile.Profile([program], [loop]))
    done = peelsum("bench", "profile")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "lanes workers parse lanes sum unstamped" in said
    assert "32 4 12 4 16 15" in said
    assert "32 4 57 8 1,234,567" in said
    assert json.loads(peelsum("bench", "profile", "--json").stdout) == {
        "program": [
            {
                "lanes": 32,
                "workers": 4,
                "parts_ns": {"parse": 12.3, "lanes": 4.0},
                "sum_of_parts_ns": 16.3,
                "without_stamps_ns": 15.0,
            }
        ],
        "loop": [
            {
                "lanes": 32,
                "workers": 4,
                "packets_per_s": 1234567,
                "busy": 0.9,
                "parts_ns": {"system calls": 56.7, "program and loop": 8.0},
            }
        ],
    }


def test_recovery_counts_the_sketches_that_did_not_peel(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        recovery.NotPeeled("aim", support, density, 256, 100, failed)
        for density, counts in ((0.001, (0, 1)), (0.05, (2, 3)))
        for support, failed in zip(("uniform", "rows"), counts, strict=True)
    ]
    monkeypatch.setattr(recovery, "measure_recovery", lambda seeds: iter(rows))
    assert peelsum("bench", "recovery").stdout.splitlines()[3:] == [
        "| density | uniform | rows |",
        "|---|---|---|---|",
        "| 0.1% | 0 of 100 | 1 of 100 |",
        "| 5.0% | 2 of 100 | 3 of 100 |",
    ]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("port-rate", "fast@256"), "'fast@256': give a rate and lanes as MBIT@LANES, e.g. 100@256"),
        (("port-rate", "100"), "'100': give a rate and lanes as MBIT@LANES"),
        (("port-rate", "100@33"), "--lanes: no pipeline of 33 lanes is compiled"),
        (("port-rate", "0@32"), "MBIT: 0 is out of range; use 1 to 10000"),
        (("soak", "--loss", "0.6"), "--loss: 0.6 is out of range; use 0 to 0.5"),
        (("profile", "--workers", "33"), "--workers: 33 is out of range; use 1 to 32"),
        (("recovery", "--seeds", "0"), "--seeds: 0 is out of range; use 1 to 1000"),
        (("tofino-variants", "--pairs", "1"), "--pairs: 1 is out of range; use 2 to 1024"),
    ],
)
def test_invalid_options_are_one_line(arguments: tuple[str, ...], error: str) -> None:
    done = peelsum("bench", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert error in line


def test_without_the_tofino_compiler_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    done = peelsum("bench", "tofino-variants")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "peelsum: p4c-barefoot: not found on PATH; build p4c with its Tofino back end\n"


def test_on_another_machine_one_line_says_that_the_profile_needs_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile.platform, "machine", lambda: "riscv64")
    done = peelsum("bench", "profile")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "peelsum: profile: needs the cycle counter of x86-64; this is riscv64\n"
