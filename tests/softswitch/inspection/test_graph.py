"""Graphs name every table and state once, and Graphviz draws them."""

import re
import shutil
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from command_line import peelsum

from peelsum.pipelines import pipeline
from peelsum.pipelines.artifacts import ARTIFACTS
from peelsum.softswitch import load
from peelsum.softswitch.inspection.graph import GraphError, as_dot, as_svg, graphs
from peelsum.wire import DEFAULT_LANES

P4 = Path(__file__).parents[1] / "p4"
FILES = sorted([*P4.glob("[a-l]*.json"), *P4.glob("[n-z]*.json"), *ARTIFACTS.glob("peelsum_*.json")])
FIGURE = Path(__file__).parents[3] / "docs" / "figures" / "program.svg"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_state_and_table_is_drawn_once(path):
    program = load(path)
    expected = [*program.parser.states, *program.tables]
    dot = as_dot(program)
    labels = re.findall(r'\[label="(.*?)(?:\\n.*?)?", shape=(?:ellipse|box), ', dot)
    assert sorted(labels) == sorted(expected)
    assert dot.count(" -> ") == sum(len(graph.edges) for graph in graphs(program))


@pytest.mark.skipif(shutil.which("dot") is None, reason="dot: not on PATH; install graphviz")
def test_graphviz_draws_every_node_and_edge():
    program = load(P4 / "router.json")
    svg = ElementTree.fromstring(as_svg(program))
    drawn = Counter(group.get("class").split()[0] for group in svg.iter("{http://www.w3.org/2000/svg}g"))
    assert drawn["node"] == sum(len(graph.nodes) for graph in graphs(program))
    assert drawn["edge"] == sum(len(graph.edges) for graph in graphs(program))


def test_a_drawing_needs_graphviz(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(GraphError, match=r"^dot: not found on PATH; install graphviz"):
        as_svg(load(P4 / "router.json"))


def test_edges_have_the_values_that_select_them():
    (parser, ingress, _) = graphs(load(P4 / "router.json"))
    assert parser.edges["start", "parse_ipv4"] == ["0x800"]
    assert {"true", "false"} <= {label for labels in ingress.edges.values() for label in labels}


def test_the_command_writes_a_file(tmp_path):
    program, path = str(P4 / "router.json"), tmp_path / "x.dot"
    dot = peelsum("switch", "graph", program).stdout
    assert peelsum("switch", "graph", program, "--output", str(path)).returncode == 0
    assert path.read_text() == dot
    assert dot.startswith('digraph "router" {')
    for output, problem in (
        ("x.png", "ends in neither .svg nor .dot; give one of them"),
        (f"{tmp_path}/y/x.dot", "No such file or directory; give a file that can be written"),
    ):
        done = peelsum("switch", "graph", program, "--output", output)
        assert done.stderr == f"peelsum: --output: {output}: {problem}\n"


def test_the_committed_picture_has_the_program():
    """Made by `peelsum switch graph --output docs/figures/program.svg`."""
    svg = ElementTree.parse(FIGURE).iter("{http://www.w3.org/2000/svg}g")
    titles = [group.find("{http://www.w3.org/2000/svg}title").text for group in svg if group.get("class")]
    drawn = sorted(title for title in titles if not title.startswith(("peelsum_", "cluster_")))
    expected = []
    for graph in graphs(load(pipeline(DEFAULT_LANES).json_path)):
        expected += [f"{graph.name} {name}" for name in graph.nodes]
        expected += [f"{graph.name} {start}->{graph.name} {end}" for start, end in graph.edges]
    assert drawn == sorted(expected)
