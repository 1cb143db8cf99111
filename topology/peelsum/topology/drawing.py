"""Drawings of a described network: as text, and as SVG. The server's switch is the root."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from peelsum.topology.description import Link, Topology, switch_port
from peelsum.topology.jobs import worker_numbers

#: Pixels between neighbours, and between levels.
_WIDTH, _HEIGHT, _MARGIN = 110, 90, 60


@dataclass
class _Node:
    """A switch or a host, with its branches."""

    name: str
    role: str
    """The text after the name: "switch", "worker 0", "aggregation server", or ""."""
    link: str = ""
    """The link to the node above: its port there, and rate, latency and loss."""
    below: list[_Node] = field(default_factory=list)


def as_text(topology: Topology) -> str:
    """Return a tree of switches and hosts, a line for each, with the links' ports and properties."""
    return "\n".join(line for root in _roots(topology) for line in _lines(root, "", ""))


def as_svg(topology: Topology) -> str:
    """Return a drawing of the same tree as an SVG document."""
    parts, width, depth = [], 0, 0
    for root in _roots(topology):
        drawn, used, levels = _drawn(root, width, 0)
        parts += drawn.parts
        width, depth = width + used, max(depth, levels)
    size = f'width="{width * _WIDTH + _MARGIN}" height="{depth * _HEIGHT + _MARGIN}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"])


def _roots(topology: Topology) -> Iterator[_Node]:
    """Yield a tree for each group of connected switches, the job's first."""
    job = topology.job
    first = [topology.attachments[job.server][0]] if job else []
    seen: set[str] = set()
    for name in [*first, *topology.switches]:
        if name not in seen:
            yield _switch(topology, name, "", seen)


def _switch(topology: Topology, name: str, link: str, seen: set[str]) -> _Node:
    seen.add(name)
    node = _Node(name, "switch", link)
    for port, far, properties in _neighbours(topology, name):
        if far in topology.hosts:
            node.below.append(_Node(far, _role(topology, far), f"p{port}{properties}"))
        elif far not in seen:
            node.below.append(_switch(topology, far, f"p{port}{properties}", seen))
    return node


def _neighbours(topology: Topology, switch: str) -> list[tuple[int, str, str]]:
    """Return port, neighbour and the link's properties, by port."""
    found = []
    for link in topology.links:
        for end, other in (link.ends, link.ends[::-1]):
            if (port := switch_port(end)) and port[0] == switch:
                far = switch_port(other)
                found.append((port[1], far[0] if far else other, _properties(link)))
    return sorted(found)


def _properties(link: Link) -> str:
    said = [f"{link.rate_mbit:g} Mbit/s"] if link.rate_mbit is not None else []
    said += [f"{link.latency_ms:g} ms"] if link.latency_ms else []
    said += [f"loses {link.loss:.3g}"] if link.loss else []
    return "".join(f", {one}" for one in said)


def _role(topology: Topology, host: str) -> str:
    job = topology.job
    if job is None:
        return ""
    roles = [f"worker {worker_numbers(topology, job)[host]}"] if host in job.workers else []
    return ", ".join(roles + (["aggregation server"] if host == job.server else []))


def _lines(node: _Node, before: str, below: str) -> Iterator[str]:
    said = f"{node.name} ({node.role})" if node.role else node.name
    yield f"{before}{node.link}: {said}" if node.link else f"{before}{said}"
    for child in node.below:
        last = child is node.below[-1]
        yield from _lines(child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))


@dataclass
class _Drawing:
    x: float
    parts: list[str]


def _drawn(node: _Node, left: int, level: int) -> tuple[_Drawing, int, int]:
    """Return a node's drawing from column `left` on, its columns, and the levels down to its deepest."""
    children, used, deepest = [], 0, level + 1
    for child in node.below:
        drawn, columns, levels = _drawn(child, left + used, level + 1)
        children.append((child, drawn))
        used, deepest = used + columns, max(deepest, levels)
    ends = [drawn.x for _, drawn in children]
    x = (ends[0] + ends[-1]) / 2 if ends else _MARGIN / 2 + (left + 0.5) * _WIDTH
    y = _MARGIN / 2 + (level + 0.5) * _HEIGHT
    parts = [part for child, drawn in children for part in _line(x, y, child, drawn.x)]
    parts += [part for _, drawn in children for part in drawn.parts]
    return _Drawing(x, [*parts, *_box(node, x, y)]), max(used, 1), deepest


def _line(x: float, y: float, child: _Node, below: float) -> Iterator[str]:
    at = y + _HEIGHT
    yield f'<line x1="{x:g}" y1="{y:g}" x2="{below:g}" y2="{at:g}" stroke="#888"/>'
    said = escape(child.link)
    yield f'<text x="{below:g}" y="{at - 24:g}" text-anchor="middle" fill="#555" font-size="9">{said}</text>'


def _box(node: _Node, x: float, y: float) -> Iterator[str]:
    fill = "#cfe2f3" if node.role == "switch" else "#f3f3f3"
    box = f'x="{x - 45:g}" y="{y - 18:g}" width="90" height="36" rx="4"'
    yield f'<rect {box} fill="{fill}" stroke="#444"/>'
    yield f'<text x="{x:g}" y="{y - 2:g}" text-anchor="middle">{escape(node.name)}</text>'
    role = escape(node.role)
    yield f'<text x="{x:g}" y="{y + 11:g}" text-anchor="middle" font-size="8">{role}</text>'
