"""The scenario's wires for rivals: hosts with one address each, at one switch or in racks below spines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from peelsum.simulation.engine import Engine, Node
from peelsum.simulation.hosts import PORT
from peelsum.simulation.links import LinkSpec
from peelsum.simulation.scenario import NetworkSection, Scenario

#: The first port of a switch that leads to a server, or to a spine.
UP_PORT = 2048
#: Packets that may wait in a host before its link: as many as it likes.
HOST_QUEUE = 1 << 17

Switch = TypeVar("Switch", bound=Node)


@dataclass(frozen=True)
class Attach:
    """A host and its address."""

    node: Node
    """The host."""
    is_worker: bool
    """Workers are divided over racks; servers are at the first spine."""
    address: int
    """Its address; workers are numbered from 0 on."""


def host_links(network: NetworkSection, gbps: float | None = None) -> tuple[LinkSpec, LinkSpec]:
    """Return the link from a host to its switch, and the link back; `gbps` None is the network's rate."""
    own = gbps or network.gbps
    changes = tuple((one.at_s, one.gbps * own / network.gbps) for one in network.schedule)
    cross = network.cross if network.racks == 1 else 0.0
    down = LinkSpec(
        own, network.delay_us * 1e-6, network.queue, network.mark_from, network.loss, cross, changes
    )
    return replace(down, queue=HOST_QUEUE, mark_from=HOST_QUEUE, cross=0.0), down


def switch_link(network: NetworkSection, hosts: int) -> LinkSpec:
    """Return the link between a rack of so many hosts and one spine, in either direction."""
    factor = hosts / (network.oversubscription * network.spines)
    _, base = host_links(network)
    changes = tuple((at, gbps * factor) for at, gbps in base.changes)
    return replace(base, gbps=base.gbps * factor, changes=changes, cross=network.cross)


def build(
    engine: Engine,
    scenario: Scenario,
    hosts: Sequence[Attach],
    switch: Callable[[], Switch],
    route: Callable[[Switch, int, int], None],
) -> None:
    """Add switches, hosts and links to `engine`. `route` tells a switch the port towards an address.

    A host's packets cross the spine that its number, modulo the number of spines, selects.
    """
    network, job = scenario.network, scenario.jobs[0]
    odd = {one.worker: one.gbps for one in job.stragglers}

    def attach(host: Attach, to: Switch, port: int) -> None:
        up, down = host_links(network, odd.get(host.address))
        name = f"worker {host.address}" if host.is_worker else f"server {host.address}"
        engine.add(host.node)
        engine.connect(host.node, PORT, to, port, up, f"host {name}")
        engine.connect(to, port, host.node, PORT, down, f"to {name}")
        route(to, host.address, port)

    if network.racks == 1:
        only = switch()
        engine.add(only)
        for host in hosts:
            attach(host, only, host.address)
        return
    rack_of = {host.address: host.address * network.racks // job.workers for host in hosts if host.is_worker}
    in_rack = Counter(rack_of.values())
    spines, leaves = _connected_switches(engine, network, switch, [in_rack[n] for n in range(network.racks)])
    for host in hosts:
        home = rack_of.get(host.address)
        # Servers hang on one spine, which all packets to them cross.
        n = host.address % network.spines if home is not None else 0
        for rack, leaf in enumerate(leaves):
            if rack != home:
                route(leaf, host.address, UP_PORT + n)
        if home is None:
            attach(host, spines[0], UP_PORT + host.address)
            continue
        for spine in spines:
            route(spine, host.address, home)
        attach(host, leaves[home], host.address)


def _connected_switches(
    engine: Engine, network: NetworkSection, switch: Callable[[], Switch], hosts: Sequence[int]
) -> tuple[list[Switch], list[Switch]]:
    """Add spines, and a leaf for each rack of `hosts[rack]` hosts; connect each leaf to each spine."""
    spines, leaves = [switch() for _ in range(network.spines)], [switch() for _ in hosts]
    for node in (*spines, *leaves):
        engine.add(node)
    for rack, leaf in enumerate(leaves):
        spec = switch_link(network, hosts[rack])
        for n, spine in enumerate(spines):
            engine.connect(leaf, UP_PORT + n, spine, rack, spec, f"uplink {rack}.{n} up")
            engine.connect(spine, rack, leaf, UP_PORT + n, spec, f"uplink {rack}.{n} down")
    return spines, leaves
