"""Graphs name every table and state once, in both languages, and their drawings are well-formed."""

import re
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest
from command_line import peelsum

from peelsum.pipelines.artifacts import ARTIFACTS
from peelsum.softswitch import load
from peelsum.softswitch.inspection.graph import as_dot, as_svg, graphs

P4 = Path(__file__).parents[1] / "p4"
FILES = sorted([*P4.glob("[a-l]*.json"), *P4.glob("[n-z]*.json"), *ARTIFACTS.glob("peelsum_*.json")])
FIGURE = Path(__file__).parents[3] / "docs" / "figures" / "program.svg"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_state_and_table_is_drawn_once(path):
    program = load(path)
    expected = [*program.parser.states, *program.tables]
    dot, svg = as_dot(program), ElementTree.fromstring(as_svg(program))
    labels = re.findall(r'\[label="(.*?)(?:\\n.*?)?", shape=(?:ellipse|box)\]', dot)
    assert sorted(labels) == sorted(expected)
    texts = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    for name in expected:
        assert texts.count(name) == 1
    edges = sum(len(graph.edges) for graph in graphs(program))
    assert dot.count(" -> ") == edges
    paths = [path for path in svg.iter("{http://www.w3.org/2000/svg}path") if path.get("class") == "edge"]
    assert len(paths) == edges


def test_nodes_of_a_drawing_do_not_overlap():
    svg = as_svg(load(P4 / "router.json"))
    for group in svg.split("<g ")[1:]:
        places = re.findall(r'x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', group)
        boxes = [tuple(map(float, place)) for place in places]
        for number, (x, y, width, height) in enumerate(boxes):
            for other_x, other_y, other_width, other_height in boxes[:number]:
                apart_x = x + width <= other_x or other_x + other_width <= x
                assert apart_x or y + height <= other_y or other_y + other_height <= y


def test_edges_have_the_values_that_select_them():
    (parser, ingress, _) = graphs(load(P4 / "router.json"))
    assert parser.edges["start", "parse_ipv4"] == ["0x800"]
    assert {"true", "false"} <= {label for labels in ingress.edges.values() for label in labels}


def test_the_command_writes_by_suffix(tmp_path):
    program = str(P4 / "router.json")
    dot = peelsum("switch", "graph", program).stdout
    for suffix, start in ((".dot", 'digraph "router" {'), (".svg", "<svg ")):
        path = tmp_path / f"x{suffix}"
        assert peelsum("switch", "graph", program, "--output", str(path)).returncode == 0
        assert path.read_text().startswith(start)
    assert (tmp_path / "x.dot").read_text() == dot
    done = peelsum("switch", "graph", program, "--output", "x.png")
    assert done.stderr == "peelsum: --output: x.png: ends in neither .svg nor .dot; give one of them\n"


def test_the_committed_picture_is_current():
    """Made by `peelsum switch graph --output docs/figures/program.svg`."""
    from peelsum.pipelines import pipeline
    from peelsum.wire import DEFAULT_LANES

    assert FIGURE.read_text() == as_svg(load(pipeline(DEFAULT_LANES).json_path))
    assert unescape(FIGURE.read_text()).count("PeelsumIngress.aggregation.admission.jobs") == 1
