"""Draws a program's graph: the parser's states, and the tables and conditions of ingress and egress."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field

from peelsum.softswitch.errors import SoftswitchError
from peelsum.softswitch.inspection.text import expression_text
from peelsum.softswitch.program import model
from peelsum.softswitch.program.model import Program
from peelsum.softswitch.program.operations import Expr, FieldRef

#: Lines and characters of a label that are drawn.
_MOST_LINES, _MOST_LETTERS = 5, 44
#: The name of a graph's end, which no state or table has.
_END = ""


class GraphError(SoftswitchError):
    """Graphviz cannot draw a graph."""


@dataclass
class Graph:
    """A graph: lines of text and a shape (state, table, condition or end) by node, and labels by edge."""

    name: str
    nodes: dict[str, tuple[list[str], str]] = field(default_factory=dict)
    edges: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def node(self, name: str, lines: list[str], shape: str) -> None:
        """Add a node."""
        shown = [line if len(line) <= _MOST_LETTERS else f"{line[: _MOST_LETTERS - 1]}…" for line in lines]
        if shape != "condition":
            shown[0] = lines[0]  # a name
        self.nodes[name] = _shortened(shown), shape

    def edge(self, start: str, end: str | None, label: str) -> None:
        """Add an edge, or a label to it; None is the graph's end."""
        if end is None:
            self.nodes.setdefault(_END, ([f"end of {self.name}"], "end"))
        labels = self.edges.setdefault((start, end or _END), [])
        if label and label not in labels:
            labels.append(label)


def _shortened(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _MOST_LINES else [*lines[: _MOST_LINES - 1], "…"]


def graphs(program: Program) -> list[Graph]:
    """Return the graphs of the parser, and of the pipelines that have nodes."""
    pipelines = (_pipeline_graph(program, graph) for graph in (program.ingress, program.egress))
    return [_parser_graph(program), *(graph for graph in pipelines if graph.nodes)]


def _parser_graph(program: Program) -> Graph:
    graph, parser = Graph("parser"), program.parser
    for name in dict.fromkeys((parser.start, *parser.states)):
        state = parser.states[name]
        extracted = [f"extract {op.header}" for op in state.ops if isinstance(op, model.Extract)]
        extracted += [f"extract {op.stack}.next" for op in state.ops if isinstance(op, model.ExtractNext)]
        key = [f"select {', '.join(map(expression_text, state.key))}"] if state.key else []
        graph.node(name, [name, *extracted, *key], "state")
        for transition in state.transitions:
            graph.edge(name, transition.next_state, _transition_label(program, state.key, transition))
        if not state.transitions or not state.transitions[-1].is_default:
            graph.edge(name, None, "no match")
    return graph


def _transition_label(program: Program, key: Sequence[Expr], transition: model.Transition) -> str:
    """Return a transition's values; nothing for the only transition of a state."""
    if transition.condition is not None:
        return expression_text(transition.condition)
    if transition.values is None:
        return "default" if key else ""
    texts = []
    for part, value, mask in zip(key, transition.values, transition.masks or [None] * len(key), strict=True):
        field = program.headers[part.header].field(part.field) if isinstance(part, FieldRef) else None
        is_full = mask is None or (field is not None and mask == (1 << field.bits) - 1)
        texts.append(hex(value) if is_full else f"{value:#x} &&& {mask:#x}" if mask else "*")
    return ", ".join(texts)


def _pipeline_graph(program: Program, pipeline: model.PipelineGraph) -> Graph:
    graph, actions = Graph(pipeline.name), program.actions
    for name, node in pipeline.nodes.items():
        if isinstance(node, model.Conditional):
            graph.node(name, [expression_text(node.condition)], "condition")
            followers = [(node.if_true, "true"), (node.if_false, "false")]
        else:
            lines = [f"{key.name}: {key.kind}" for key in node.keys]
            if not node.keys and node.const_default:  # statements between tables, of which p4c makes a table
                numbers = range(len(actions[node.default_action].body))
                places = (program.sources.get((node.default_action, number)) for number in numbers)
                lines = list(dict.fromkeys(place.text for place in places if place is not None))
            graph.node(name, [name, *lines], "table")
            names = ((number, actions[number].name.rpartition(".")[2]) for number in node.actions)
            followers = [(node.next_by_action.get(number), label) for number, label in names]
            if node.next_by_hit is not None:
                followers = list(zip(node.next_by_hit, ("hit", "miss"), strict=True))
        is_choice = len({follower for follower, _ in followers}) > 1
        for follower, label in followers:
            graph.edge(name, follower, label if is_choice else "")
    return graph


def as_dot(program: Program) -> str:
    """Return the program's graph in Graphviz's language."""
    shapes = {"state": "ellipse", "table": "box", "condition": "diamond", "end": "plaintext"}

    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

    lines = [
        f"digraph {quoted(program.name)} {{",
        "  graph [fontname=sans]; node [fontname=sans]; edge [fontname=sans];",
    ]
    for graph in graphs(program):
        lines += [f"  subgraph cluster_{graph.name} {{", f"    label={graph.name};"]
        for name, (texts, shape) in graph.nodes.items():
            label = quoted("\n".join(texts))
            node = quoted(f"{graph.name} {name}")
            lines.append(f"    {node} [label={label}, shape={shapes[shape]}, class={shape}];")
        for (start, end), labels in graph.edges.items():
            ends = " -> ".join(quoted(f"{graph.name} {name}") for name in (start, end))
            lines.append(f"    {ends} [label={quoted(chr(10).join(labels))}];")
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


_STYLE = (
    ".graph>polygon{fill:#fff}.cluster>polygon{stroke:#9198a1}text{fill:#222}"
    ".node ellipse,.node polygon{fill:#f4f6fb;stroke:#444}.edge path,.edge polygon{stroke:#1f77b4}"
    ".edge polygon{fill:#1f77b4}.end polygon{fill:none;stroke:none}"
    "@media (prefers-color-scheme: dark){.graph>polygon{fill:#131416}text{fill:#e6edf3}"
    ".node ellipse,.node polygon{fill:#22262d;stroke:#9198a1}.edge path,.edge polygon{stroke:#79c0ff}"
    ".edge polygon{fill:#79c0ff}.end polygon{fill:none;stroke:none}}"
)


def as_svg(program: Program) -> str:
    """Return Graphviz's drawing of the program's graph, for light and dark pages.

    Raises GraphError if Graphviz's `dot` is missing, or refuses the graph.
    """
    try:
        done = subprocess.run(
            ["dot", "-Tsvg"], input=as_dot(program), capture_output=True, encoding="utf-8", check=True
        )
    except FileNotFoundError:
        raise GraphError("dot: not found on PATH; install graphviz, or write a .dot file") from None
    except subprocess.CalledProcessError as error:
        raise GraphError(f"dot: {error.stderr.strip()}; write a .dot file") from None
    return done.stdout.replace("<g id=", f"<style>{_STYLE}</style>\n<g id=", 1)
