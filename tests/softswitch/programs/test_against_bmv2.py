"""The programs next to these tests, compared with BMv2 packet for packet."""

import itertools
import json
import os
import random
import shutil
import struct

import pytest
from bmv2_files import PORTS as FILE_PORTS
from bmv2_files import outputs_of
from program_frames import GROUPS, MADE, P4, PORTS, SESSIONS, TAIL, by_port, for_bmv2, switch_of
from random_frames import Generator
from rare_programs import LOGS, option_frames, with_declared_length, with_deparser

from peelsum.softswitch import Frames, Switch
from peelsum.softswitch.compiler.loading import parse

pytestmark = [
    pytest.mark.skipif(
        shutil.which("simple_switch_grpc") is None, reason="simple_switch_grpc is not on PATH"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="BMv2's ports need root"),
]


#: For each program, a frame that leaves once.
MARKERS = {"stack": bytes(8), "again": bytes(8), "hashes": bytes([9]) + bytes(47)}


@pytest.mark.parametrize("name", MADE)
def test_a_program_does_what_bmv2_makes_it_do(name, tmp_path):
    from bmv2_frames import Bmv2Frames

    switch = switch_of(name, "python")
    program = for_bmv2(json.loads((P4 / f"{name}.json").read_text()))
    bmv2 = Bmv2Frames(json.dumps(program).encode(), PORTS, tmp_path / "bmv2.log")
    try:
        for number, replicas in GROUPS.items():
            bmv2.set_group(number, replicas)
        for number, replicas in SESSIONS.items():
            bmv2.set_session(number, replicas)
        for turn, made in enumerate(MADE[name](random.Random(1))):
            raw = MARKERS[name] + b"marker%06d" % turn + TAIL
            ((back, answer),) = switch.process(Frames.of([(7, raw)]), 0).pairs()
            frame = made + TAIL
            expected = switch.process(Frames.of([(8, frame)]), 0).pairs()
            got = bmv2.exchange(8, frame, len(expected), (7, raw, back, answer))
            assert got == by_port(expected), made.hex()
    finally:
        bmv2.close()


needs_bmv2 = pytest.mark.skipif(shutil.which("simple_switch") is None, reason="simple_switch is not on PATH")


def compared(document, seed, folder, broken):
    """Compare what BMv2 and the softswitch send, by port, but not the order of packets' copies."""
    rng = random.Random(seed)
    switch = Switch(parse(document, "random"), "python")
    # BMv2 keeps 64 frames for a port, and drops further ones if the port is slower than the program.
    frames = [(rng.randrange(1, 5), frame) for frame in Generator(switch, rng).frames(60, broken)]
    same_frames(document, frames, folder)


def same_frames(document, frames, folder):
    """Compare what BMv2 and the softswitch send of these frames, (port, bytes) each."""
    switch = Switch(parse(document, "random"), "python")
    sent = by_port(switch.process(Frames.of(frames), 0).pairs())
    expected = {port: sorted(frames) for port, frames in sent.items() if port in FILE_PORTS}
    path = folder / "program.json"
    path.write_text(json.dumps(for_bmv2(document)))
    got = outputs_of(path, frames, sum(map(len, expected.values())), folder)
    assert {port: sorted(frames) for port, frames in got.items()} == expected


@needs_bmv2
@pytest.mark.parametrize("algorithm", ["round_robin", "round_robin_consistent"])
def test_hashes_that_count_as_bmv2_does(algorithm, tmp_path):
    document = json.loads((P4 / "hashes.json").read_text())
    document["calculations"][0]["algo"] = algorithm
    rng = random.Random(1)
    frames = [
        bytes(2) + struct.pack(">QQ", 5, 1000) + bytes([rng.randrange(6)]) + bytes(43) for _ in range(40)
    ]
    same_frames(document, [(1, frame) for frame in frames], tmp_path)


@needs_bmv2
@pytest.mark.parametrize("empty", [0, 2])
def test_lengths_that_headers_declare_as_bmv2_reads_them(empty, tmp_path):
    """Only with whole frames, and up to the largest size: BMv2 reads further."""
    document = with_declared_length(json.loads((P4 / "variable.json").read_text()), empty)
    frames = list(option_frames(random.Random(1)))[:9]
    same_frames(document, [(1, frame) for frame in frames], tmp_path)


@needs_bmv2
@pytest.mark.parametrize("wide_register", [[], [{"name": "wide", "id": 999, "size": 1, "bitwidth": 65}]])
def test_ranges_of_72_bits_as_bmv2_compares_them(wide_register, tmp_path):
    """With the register, the program is interpreted with numbers of any width."""
    document = json.loads((P4 / "lookups.json").read_text())
    (table,) = (item for item in document["pipelines"][0]["tables"] if item["name"] == "I.masked_wide")
    (action,) = (item["id"] for item in document["actions"] if item["name"] == "I.in_masked_wide")
    table["match_type"] = table["key"][0]["match_type"] = "range"
    ends = [1, 2**64 - 1, 2**64 + 7, 2**65 + 3, 2**71]
    table["entries"] = [
        {
            "match_key": [
                {"match_type": "range", "start": f"0x{low:018x}", "end": f"0x{high:018x}"},
                {"match_type": "exact", "key": "0x00"},
            ],
            "action_entry": {"action_id": action, "action_data": [hex(number + 1)]},
            "priority": number + 1,
        }
        for number, (low, high) in enumerate(itertools.pairwise(ends))
    ]
    document["register_arrays"] += wide_register
    probes = [bytes(7) + (end + more).to_bytes(9, "big") + bytes(78) for end in ends for more in (-1, 0, 1)]
    same_frames(document, [(1, probe) for probe in probes], tmp_path)


@needs_bmv2
def test_a_deparser_shortens_as_in_bmv2(tmp_path):
    document = json.loads((P4 / "lanes.json").read_text())
    with_deparser(document, LOGS, ("truncate", {"type": "hexstr", "value": "0x14"}))
    compared(document, 1, tmp_path, 0)


@needs_bmv2
@pytest.mark.parametrize(
    "name", ["arithmetic", "banks", "lanes", "limbs", "lookups", "registers", "replicate", "wide", "widths"]
)
def test_a_program_does_what_bmv2_makes_it_do_with_random_frames(name, tmp_path):
    """Only with whole frames: these programs read headers that are not valid, which in BMv2 are not 0."""
    compared(json.loads((P4 / f"{name}.json").read_text()), 1, tmp_path, 0)
