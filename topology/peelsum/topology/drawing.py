"""Draw a described network as a tree in text. The server's switch is the root."""

from __future__ import annotations

from collections.abc import Iterator

from peelsum.topology.description import Topology, switch_port, worker_numbers


def as_text(topology: Topology) -> str:
    """Return a tree with a line for each switch and host, with the ports and properties of links.

    Each group of connected switches is a tree. The tree with the job's server is the first.
    """
    first = [topology.attachments[topology.job.server][0]] if topology.job else []
    seen: set[str] = set()
    lines: list[str] = []
    for name in [*first, *topology.switches]:
        if name not in seen:
            lines += [f"{name} (switch)", *_below(topology, name, "", seen)]
    return "\n".join(lines)


def _below(topology: Topology, switch: str, indent: str, seen: set[str]) -> Iterator[str]:
    """Yield a line for each host and switch below a switch, recursively. Add visited switches to `seen`."""
    seen.add(switch)
    branches = []
    for port, link, end in topology.cables(switch):
        text = f", {link.rate_mbit:g} Mbit/s" if link.rate_mbit is not None else ""
        text += f", {link.latency_ms:g} ms" if link.latency_ms else ""
        text += f", loses {link.loss:.3g}" if link.loss else ""
        text += f" in bursts of {link.loss_burst:g}" if link.loss_burst else ""
        text += f", {link.late:.3g} late" if link.late else ""
        far = (switch_port(end) or (end,))[0]
        if far not in seen:
            branches.append((port, far, text))
    for number, (port, far, properties) in enumerate(branches, 1):
        last = number == len(branches)
        yield f"{indent}{'└─ ' if last else '├─ '}p{port}{properties}: {far}{_role(topology, far)}"
        if far in topology.switches:
            yield from _below(topology, far, indent + ("   " if last else "│  "), seen)


def _role(topology: Topology, node: str) -> str:
    """Return the role of a node in parentheses: switch, worker or server."""
    job = topology.job
    if node in topology.switches:
        return " (switch)"
    if job is not None and node in job.workers:
        return f" (worker {worker_numbers(topology, job)[node]})"
    return " (aggregation server)" if job is not None and node == job.server else ""
