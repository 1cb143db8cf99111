"""The check that an assembly for Tofino has every part of its program.

It runs on excerpts of assembly that p4c made of this project's program, and on mutants of them that lack a
part. The excerpts in data/ have both parsers, the tables `jobs`, `permissions` and `overlap.arrivals`, and
the registers of the owner, the overlap and lane 0, compiled by p4c 1.2.5.16 with pull request 5753. They
leave out lines and fields that the check does not read. For Tofino 2, the entries of `overlap.arrivals` are
in a gateway.
"""

import json
import re
from pathlib import Path

import pytest

from peelsum.pipelines.artifacts import PipelineError
from peelsum.pipelines.assembly import missing
from peelsum.pipelines.tofino import check

DATA = Path(__file__).parent / "data"
DEVICES = ["tofino", "tofino2"]


def program(device):
    return json.loads((DATA / device / "frontend-ir.json").read_text())


def assembly(device):
    return (DATA / device / "peelsum.bfa").read_text()


def changed(device, pattern, by, times=1):
    """Return an excerpt in which a pattern, found so many times, is replaced."""
    text, found = re.subn(pattern, by, assembly(device), flags=re.MULTILINE)
    assert found == times
    return text


@pytest.mark.parametrize("device", DEVICES)
def test_a_whole_program_lacks_nothing(device):
    assert list(missing(program(device), assembly(device))) == []


@pytest.mark.parametrize("device", DEVICES)
def test_a_parser_of_wildcards_lacks_every_branch(device):
    """As p4c between pull requests 5063 and 5753 makes it."""
    parsers, tables = assembly(device).split("stage 0", 1)
    parsers = re.sub(r"^ +match: .*\n", "", parsers, flags=re.MULTILINE)
    parsers = re.sub(r"^( +)0[xob].*:$", r"\1*:", parsers, flags=re.MULTILINE)
    lacking = list(missing(program(device), f"{parsers}stage 0{tables}"))
    assert [re.search("parser (.*): `", line)[1] for line in lacking] == ["ingress"] * 6 + ["egress"] * 3
    assert lacking[0] == "a branch of parser ingress: `ETHERTYPE_IPV4 : parse_ipv4` (core/parser.p4, line 9)"


PORT = "a branch of parser ingress: `UDP_PORT : parse_peelsum` (core/parser.p4, line 23)"
LENGTH = "a branch of parser ingress: `(PACKET_UDP_LENGTH, VERSION, 0) : admit` (core/parser.p4, line 31)"
OVERLAP = "Ingress.aggregation.slot.bitmap.overlap"
LANE = "Ingress.aggregation.slot.lanes.lane_0.sums"
MUTANTS = {
    "no port": (r"0x5053:(?=\n +next: FrameParser)", "*:", PORT),
    "another port": (r"0x5053:(?=\n +next: FrameParser)", "0x5054:", PORT),
    "one bit of a port": (r"0x5053:(?=\n +next: FrameParser)", "0b010100000101001*:", PORT),
    "flags not compared": (r"(0x0[01][19]8010)\*:", r"\1**:", LENGTH),
    "table": (r"^    p4: .*admission\.jobs, .*\n", "", "table Ingress.aggregation.admission.jobs"),
    "first entry": (
        r"      - priority: 0\n(?:        .*\n)+(?=(?:      .*\n)+  stateful aggregation_owner)",
        "",
        "constant entries of table Ingress.aggregation.owner.permissions",
    ),
    "action": (
        r"^      aggregation_slot_lanes_lane_0_add_to_sum:\n(?:      - .*\n)+",
        "",
        f"action aggregation_slot_lanes_lane_0_add_to_sum of register {LANE}",
    ),
    "register": (
        r"^    p4: .*lane_0\.sums, .*\n",
        "",
        f"action aggregation_slot_lanes_lane_0_set_sum of register {LANE}",
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("pattern", "by", "lacking"), MUTANTS.values(), ids=MUTANTS)
def test_what_an_assembly_lacks_is_named(device, pattern, by, lacking):
    assert next(missing(program(device), changed(device, pattern, by))) == lacking


@pytest.mark.parametrize(
    ("pattern", "by"),
    [
        pytest.param(r"^      0x4\*01:\n(?:        .*\n)+", "", id="entry"),
        pytest.param(r"0x4\*01:", "0x***01:", id="key"),
        pytest.param(r"(match: \{ )12(: ig_md)", r"\g<1>8\2", id="place"),
    ],
)
def test_entries_in_a_gateway_are_compared(pattern, by):
    lacking = list(missing(program("tofino2"), changed("tofino2", pattern, by)))
    assert lacking == [f"constant entries of table {OVERLAP}.arrivals"]


def test_an_assembly_that_lacks_something_is_refused_in_one_line():
    text = changed("tofino", r"^    p4: .*(?:owner\.permissions|admission\.jobs), .*\n", "", times=2)
    with pytest.raises(PipelineError) as refused:
        check("tofino", program("tofino"), text)
    assert str(refused.value) == (
        "tofino: p4c-barefoot dropped table Ingress.aggregation.admission.jobs, and 1 more; "
        "use another version, see the Tofino page"
    )
