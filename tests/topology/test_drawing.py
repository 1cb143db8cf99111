"""Networks are drawn as text and as SVG, with every switch, host and link once."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from command_line import peelsum

from peelsum.topology.description import read
from peelsum.topology.drawing import as_svg, as_text

EXAMPLES = Path(__file__).parents[2] / "examples/topologies"
SVG = "{http://www.w3.org/2000/svg}"


def test_racks_are_drawn_below_their_spine() -> None:
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
def test_everything_is_drawn_once(source: str, tmp_path: Path) -> None:
    topology = read(source)
    lines = as_text(topology).splitlines()
    nodes = [*topology.hosts, *topology.switches]
    assert len(lines) == len(nodes)
    assert peelsum("topo", "draw", source, "--svg", str(tmp_path / "a.svg")).returncode == 0
    assert (tmp_path / "a.svg").read_text() == as_svg(topology)
    drawing = ElementTree.parse(tmp_path / "a.svg").getroot()
    boxes = drawing.findall(f"{SVG}rect")[1:]
    assert len(boxes) == len(nodes) == len({(box.get("x"), box.get("y")) for box in boxes})
    assert len(drawing.findall(f"{SVG}line")) == len(topology.links)
    texts = [one.text for one in drawing.findall(f"{SVG}text")]
    assert [texts.count(name) for name in nodes] == [1] * len(nodes)
    width, height = (float(drawing.get(name, "0")) for name in ("width", "height"))
    for box in boxes:
        x, y = float(box.get("x", "0")), float(box.get("y", "0"))
        assert 0 <= x <= width - 90
        assert 0 <= y <= height - 36


def test_links_are_drawn_with_their_properties(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    path.write_text(
        '{"hosts": {"a": {}, "b": {}}, "switches": {"s1": {}, "s2": {}},'
        ' "links": [["a", "s1-p1", "5ms", 100], ["b", "s2-p7"]]}'
    )
    assert as_text(read(str(path))).splitlines() == [
        "s1 (switch)",
        "└─ p1, 100 Mbit/s, 5 ms: a",
        "s2 (switch)",
        "└─ p7: b",
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(("ring",), "ring: "), (("star", "--svg", "/no/where.svg"), "--svg: /no/where.svg: No such file")],
)
def test_errors_are_one_line(arguments: tuple[str, ...], told: str) -> None:
    done = peelsum("topo", "draw", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert told in line
