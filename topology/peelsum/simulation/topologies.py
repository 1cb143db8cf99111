"""The scenario's wires for rivals: hosts with one address each, at one switch or in racks below a spine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TypeVar

from peelsum.simulation.engine import Engine, Node
from peelsum.simulation.hosts import PORT
from peelsum.simulation.links import LinkSpec
from peelsum.simulation.scenario import NetworkSection, Scenario

#: The first port of a switch that leads to the spine.
UP_PORT = 2048
#: Packets that may wait in a host before its link: as many as it likes.
HOST_QUEUE = 1 << 17

Switch = TypeVar("Switch", bound=Node)


def host_links(network: NetworkSection, gbps: float | None = None) -> tuple[LinkSpec, LinkSpec]:
    """Return the link from a host to its switch, and the link back; `gbps` None is the network's rate."""
    rate_gbps = gbps or network.gbps
    changes = tuple((change.at_s, change.gbps * rate_gbps / network.gbps) for change in network.schedule)
    cross = network.cross if network.racks == 1 else 0.0
    down = LinkSpec(
        rate_gbps, network.delay_us * 1e-6, network.queue, network.mark_from, network.loss, cross, changes
    )
    return replace(down, queue=HOST_QUEUE, mark_from=HOST_QUEUE, cross=0.0), down


def switch_link(network: NetworkSection, hosts: int) -> LinkSpec:
    """Return the link between a rack of so many hosts and the spine, in either direction."""
    factor = hosts / network.oversubscription
    _, base = host_links(network)
    changes = tuple((at, gbps * factor) for at, gbps in base.changes)
    return replace(base, gbps=base.gbps * factor, changes=changes, cross=network.cross)


def attach(
    engine: Engine, network: NetworkSection, host: Node, to: Node, port: int, name: str, gbps: float | None
) -> None:
    """Add a host and connect it to a switch's port, both ways."""
    engine.add(host)
    up, down = host_links(network, gbps)
    engine.connect(host, PORT, to, port, up, f"host {name}")
    engine.connect(to, port, host, PORT, down, f"to {name}")


def connect_racks(
    engine: Engine,
    network: NetworkSection,
    spine: Node,
    leaves: Sequence[Node],
    hosts: Sequence[int],
    up: int,
) -> None:
    """Connect port `up` of each rack's switch to the spine, both ways; `hosts[rack]` are in the rack."""
    for rack, leaf in enumerate(leaves):
        spec = switch_link(network, hosts[rack])
        engine.connect(leaf, up, spine, 1 + rack, spec, f"uplink {rack} up")
        engine.connect(spine, 1 + rack, leaf, up, spec, f"uplink {rack} down")


def build(
    engine: Engine,
    scenario: Scenario,
    hosts: Sequence[Node],
    workers: int,
    switch: Callable[[], Switch],
    route: Callable[[Switch, int, int], None],
) -> None:
    """Add switches, hosts and links to `engine`. `route` tells a switch the port towards an address.

    A host's address is its place in `hosts`, and the port that it is at. The first are workers, divided over
    racks; the others are servers of one switch.
    """
    network, racks = scenario.network, range(scenario.network.racks)
    firsts = accumulate((job.workers for job in scenario.jobs), initial=0)
    odd = {
        first + straggler.worker: straggler.gbps
        for first, job in zip(firsts, scenario.jobs, strict=False)
        for straggler in job.stragglers
    }
    rack_of = [address * len(racks) // workers for address in range(workers)]
    spine, leaves = switch(), [switch() for _ in racks if len(racks) > 1]
    for node in (spine, *leaves):
        engine.add(node)
    connect_racks(engine, network, spine, leaves, [rack_of.count(rack) for rack in racks], UP_PORT)
    for address, host in enumerate(hosts):
        is_worker, home = address < workers, spine
        for rack, leaf in enumerate(leaves):
            if is_worker and rack == rack_of[address]:
                home = leaf
                route(spine, address, 1 + rack)
            else:
                route(leaf, address, UP_PORT)
        route(home, address, address)
        name = f"worker {address}" if is_worker else f"server {address}"
        attach(engine, network, host, home, address, name, odd.get(address))
