"""Draws a program's graph: the parser's states, and the tables and conditions of ingress and egress.

`as_dot` writes it for Graphviz. `as_svg` needs no other program: it puts each node below all nodes that lead
to it, and orders the nodes of a row by where their neighbours are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from statistics import fmean

from peelsum.softswitch.inspection.observe import expression_text
from peelsum.softswitch.program import model
from peelsum.softswitch.program.model import Program
from peelsum.softswitch.program.operations import Expr, FieldRef

#: Lines and characters of a label that are drawn.
_MOST_LINES, _MOST_LETTERS = 5, 44
#: The name of a graph's end, which no state or table has.
_END = ""


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

    lines = [f"digraph {quoted(program.name)} {{", "  node [fontname=sans]; edge [fontname=sans];"]
    for graph in graphs(program):
        lines += [f"  subgraph cluster_{graph.name} {{", f"    label={graph.name};"]
        for name, (texts, shape) in graph.nodes.items():
            label = quoted("\n".join(texts))
            lines.append(f"    {quoted(f'{graph.name} {name}')} [label={label}, shape={shapes[shape]}];")
        for (start, end), labels in graph.edges.items():
            ends = " -> ".join(quoted(f"{graph.name} {name}") for name in (start, end))
            lines.append(f"    {ends} [label={quoted(chr(10).join(labels))}];")
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


# --- SVG ------------------------------------------------------------------------------------------

_LETTER, _LINE, _GAP, _ROW = 6.7, 15, 26, 52
_STYLE = (
    ".page{fill:#fff}.box{fill:#f4f6fb;stroke:#444}.text{fill:#222}.edge{stroke:#1f77b4;fill:none}"
    ".head{fill:#1f77b4}.label{fill:#444;stroke:#fff;paint-order:stroke;stroke-width:3}"
    "@media (prefers-color-scheme: dark){.page{fill:#131416}.box{fill:#22262d;stroke:#9198a1}"
    ".text{fill:#e6edf3}.edge{stroke:#79c0ff}.head{fill:#79c0ff}.label{fill:#9198a1;stroke:#131416}}"
)


class _Layout:
    """Where the nodes of a graph are drawn: centres by node, with places where long edges pass a row."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        order, self.back = _order(graph)
        forward = [edge for edge in graph.edges if edge not in self.back]
        rank = dict.fromkeys(order, 0)
        for name in order:
            for start, end in forward:
                if start == name:
                    rank[end] = max(rank[end], rank[name] + 1)
        self.rows: list[list[str]] = [[] for _ in range(max(rank.values()) + 1)]
        for name in order:
            self.rows[rank[name]].append(name)
        #: By edge, the nodes and places that it goes through.
        self.routes: dict[tuple[str, str], list[str]] = {}
        self._above: dict[str, list[str]] = {}
        self._below: dict[str, list[str]] = {}
        #: The width that a node needs, or the label of an edge to it.
        self._room = defaultdict(lambda: 50.0, {name: self.size(name)[0] for name in order})
        for name in {start for start, end in self.back if start == end}:
            self._room[name] += 110
        for start, end in forward:
            passed = [f"{start}\0{end}\0{row}" for row in range(rank[start] + 1, rank[end])]
            for row, place in enumerate(passed, rank[start] + 1):
                self.rows[row].append(place)
            self.routes[start, end] = route = [start, *passed, end]
            for first, second in pairwise(route):
                self._below.setdefault(first, []).append(second)
                self._above.setdefault(second, []).append(first)
            label_width = _LETTER * max(map(len, graph.edges[start, end]), default=0)
            self._room[route[1]] = max(self._room[route[1]], label_width)
        self._sort_rows()
        self._set_places()

    def size(self, name: str) -> tuple[float, float]:
        """Return the width and height of a node; a place where an edge passes has none."""
        lines, shape = self.graph.nodes.get(name, ([], "end"))
        margin = 44 if shape == "condition" else 18
        return _LETTER * max(map(len, lines), default=0) + margin, _LINE * len(lines) + 12

    def _sort_rows(self) -> None:
        """Sort each row by the mean position of its nodes' neighbours, from the top and from below."""
        for _ in range(6):
            for rows, neighbours in ((self.rows, self._above), (self.rows[::-1], self._below)):
                position = {name: float(place) for row in rows for place, name in enumerate(row)}
                for row in rows:
                    means = {
                        name: fmean(position[other] for other in neighbours.get(name, [name])) for name in row
                    }
                    row.sort(key=means.__getitem__)
                    position.update({name: float(place) for place, name in enumerate(row)})

    def _set_places(self) -> None:
        """Move nodes towards their neighbours, as far as their row's order allows; set the rows' heights."""
        self.x = {name: 200.0 * place for row in self.rows for place, name in enumerate(row)}
        for step in range(24):
            for row in self.rows if step % 2 else self.rows[::-1]:
                desired = []
                for name in row:
                    neighbours = [*self._above.get(name, ()), *self._below.get(name, ())] or [name]
                    desired.append(fmean(self.x[other] for other in neighbours))
                rooms = [self._room[name] for name in row]
                distances = [(first + second) / 2 + _GAP for first, second in pairwise(rooms)]
                from_left, from_right = desired[:1], desired[-1:]
                for place, distance in enumerate(distances, 1):
                    from_left.append(max(desired[place], from_left[-1] + distance))
                    from_right.append(min(desired[-1 - place], from_right[-1] - distances[-place]))
                both = zip(row, from_left, reversed(from_right), strict=True)
                self.x.update({name: (left + right) / 2 for name, left, right in both})
        left = min(x - self._room[name] / 2 for name, x in self.x.items())
        self.x = {name: x - left for name, x in self.x.items()}
        self.width = max(x + self._room[name] / 2 for name, x in self.x.items()) + (60 if self.back else 0)
        self.y: dict[str, float] = {}
        self.height = 0.0
        for row in self.rows:
            row_height = max(self.size(name)[1] for name in row)
            self.y.update(dict.fromkeys(row, self.height + row_height / 2))
            labels = [len(texts) for (start, _), texts in self.graph.edges.items() if start in row]
            self.height += row_height + _ROW + _LINE * min(max(labels, default=0), _MOST_LINES)

    def svg(self) -> Iterator[str]:
        """Yield the drawing's elements."""
        for edge, labels in self.graph.edges.items():
            path, x, y = self._back_path(*edge) if edge in self.back else self._path(self.routes[edge])
            yield f'<path class="edge" marker-end="url(#head)" d="{path}"/>'
            yield from _texts(_shortened(labels), x, y, "label")
        for name, (lines, shape) in self.graph.nodes.items():
            (width, height), x, y = self.size(name), self.x[name], self.y[name]
            left, top = x - width / 2, y - height / 2
            if shape == "condition":
                points = f"{left},{y} {left + 14},{top} {left + width - 14},{top} {left + width},{y} "
                points += f"{left + width - 14},{top + height} {left + 14},{top + height}"
                yield f'<polygon class="box" points="{points}"/>'
            elif shape != "end":
                radius = height / 2 if shape == "state" else 3
                place = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
                yield f'<rect class="box" {place} rx="{min(radius, 20)}"/>'
            yield from _texts(lines, x, y, "text")

    def _path(self, route: list[str]) -> tuple[str, float, float]:
        """Return an edge's path, and the place of its label: where it has parted from others."""
        margins = [self.size(name)[1] / 2 if name in self.graph.nodes else 0 for name in route]
        x, y = self.x[route[0]], self.y[route[0]] + margins[0]
        path = f"M{x:.1f} {y:.1f}"
        for name, margin in zip(route[1:], margins[1:], strict=True):
            next_x, next_y = self.x[name], self.y[name] - margin
            middle = (y + next_y) / 2
            path += f"C{x:.1f} {middle:.1f} {next_x:.1f} {middle:.1f} {next_x:.1f} {next_y:.1f}"
            if name == route[1]:
                label = x + 0.72 * (next_x - x), y + 0.62 * (next_y - y)
            x, y = next_x, next_y
        return path, *label

    def _back_path(self, start: str, end: str) -> tuple[str, float, float]:
        """Return the path of an edge that leads up, around the nodes' right sides, and its label's place."""
        x, end_x = (self.x[name] + self.size(name)[0] / 2 for name in (start, end))
        apart, right = (8, x + 50) if start == end else (0, self.width - 10)
        y, end_y = self.y[start] + apart, self.y[end] - apart
        path = f"M{x:.1f} {y:.1f}C{right:.1f} {y:.1f} {right:.1f} {end_y:.1f} {end_x:.1f} {end_y:.1f}"
        return path, right - 4, (y + end_y) / 2 - 2.75 * apart


def _order(graph: Graph) -> tuple[list[str], set[tuple[str, str]]]:
    """Return the nodes so that edges lead forward, and the edges that lead back, which loops have."""
    followers: dict[str, list[str]] = {name: [] for name in graph.nodes}
    for start, end in graph.edges:
        followers[start].append(end)
    done: list[str] = []
    back: set[tuple[str, str]] = set()
    for root in graph.nodes:
        path = [] if root in done else [(root, iter(followers[root]))]
        open_nodes = {root}
        while path:
            name, rest = path[-1]
            for end in rest:
                if end in open_nodes:
                    back.add((name, end))
                elif end not in done:
                    open_nodes.add(end)
                    path.append((end, iter(followers[end])))
                    break
            else:
                path.pop()
                open_nodes.discard(name)
                done.append(name)
    return done[::-1], back


def _texts(lines: list[str], x: float, y: float, style: str) -> Iterator[str]:
    """Yield centred lines of text around a point."""
    for number, line in enumerate(lines):
        line_y = y + _LINE * (number - (len(lines) - 1) / 2) + 4.5
        yield f'<text class="{style}" text-anchor="middle" x="{x:.1f}" y="{line_y:.1f}">{escape(line)}</text>'


def as_svg(program: Program) -> str:
    """Return a drawing of the program's graphs, side by side, for light and dark pages."""
    layouts = list(map(_Layout, graphs(program)))
    width = sum(layout.width + 40 for layout in layouts) + 20
    height = max(layout.height for layout in layouts) + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
        f' height="{height:.0f}" font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="11.5">',
        f"<title>{escape(program.name)}: parser, ingress and egress</title><style>{_STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>',
        f'<rect class="page" width="{width:.0f}" height="{height:.0f}" rx="6"/>',
    ]
    left = 30.0
    for layout in layouts:
        lines.append(f'<g transform="translate({left:.1f} 44)">')
        lines.append(f'<text class="text" font-weight="bold" y="-20">{layout.graph.name}</text>')
        lines += [*layout.svg(), "</g>"]
        left += layout.width + 40
    return "\n".join([*lines, "</svg>", ""])
