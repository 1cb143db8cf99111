"""A drawing of a described network in text. The server's switch is the root."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from peelsum.topology.description import Link, Topology, switch_port
from peelsum.topology.jobs import worker_numbers


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
