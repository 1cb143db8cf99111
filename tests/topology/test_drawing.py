"""Networks are drawn as text, with every switch, host and link once."""

import json
from pathlib import Path

import pytest
from command_line import peelsum

from peelsum.topology.description import read
from peelsum.topology.drawing import as_text

EXAMPLES = Path(__file__).parents[2] / "examples/topologies"


def test_racks_are_drawn_below_their_spine():
    assert peelsum("topo", "draw", str(EXAMPLES / "racks.toml")).stdout.splitlines() == [
        "s3 (switch)",
        "├─ p1, loses 0.01: s1 (switch)",
        "│  ├─ p1: h1 (worker 0)",
        "│  └─ p2: h2 (worker 1)",
        "├─ p2, loses 0.01: s2 (switch)",
        "│  ├─ p1: h3 (worker 32)",
        "│  ├─ p2: h4 (worker 33)",
        "│  └─ p3: h5 (worker 34)",
        "└─ p3: h6 (aggregation server)",
    ]


@pytest.mark.parametrize(
    "source",
    ["star", "two_racks", *sorted(str(path) for path in EXAMPLES.iterdir())],
    ids=lambda s: Path(s).stem,
)
def test_everything_is_drawn_once(source):
    topology = read(source)
    lines = [line.partition(" (")[0].rpartition(" ")[2] for line in as_text(topology).splitlines()]
    assert sorted(lines) == sorted([*topology.hosts, *topology.switches])


def test_links_are_drawn_with_their_properties(tmp_path):
    path = tmp_path / "net.json"
    links = [["a", "s1-p1", "5ms", 100], ["b", "s2-p7"]]
    path.write_text(
        json.dumps({"hosts": {"a": {}, "b": {}}, "switches": {"s1": {}, "s2": {}}, "links": links})
    )
    expected = ["s1 (switch)", "└─ p1, 100 Mbit/s, 5 ms: a", "s2 (switch)", "└─ p7: b"]
    assert as_text(read(str(path))).splitlines() == expected


def test_errors_are_one_line():
    done = peelsum("topo", "draw", "ring")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "ring: " in line
