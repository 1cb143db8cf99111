"""Make the job description of a network, for one switch or for racks below a spine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from peelsum.topology.description import JobNode, Topology
from peelsum.wire import MAX_WORKERS


def worker_numbers(topology: Topology, job: JobNode) -> dict[str, int]:
    """Return the number of each worker's host: with racks, rack * MAX_WORKERS + its position in the rack."""
    racks = _racks(topology, job)
    if not racks:
        return {host: number for number, host in enumerate(job.workers)}
    return {
        host: rack * MAX_WORKERS + place
        for rack, hosts in enumerate(racks.values())
        for place, host in enumerate(hosts)
    }


def description(
    topology: Topology, job: JobNode, p4runtime: Mapping[str, str], window: int, *, addressed: bool
) -> str:
    """Return the job description for `peelsum job admit`, in TOML.

    p4runtime: the address of each switch. window: chunks in flight. addressed: whether switches must write
    the hosts' addresses into packets, because hosts are in networks of their own.
    """
    text = f"[job]\nid = {job.id}\nworkers = {len(job.workers)}\nwindow = {window}\n"
    text += f"timeout_s = {job.timeout_s}\n"
    spine = topology.attachments[job.server][0]
    server = topology.attachments[job.server][1]

    def switch(name: str, section: str, hosts: Iterable[str]) -> str:
        """Return the lines of a section for a switch and the hosts behind it."""
        lines = f'p4runtime = "{p4runtime[name]}"\npipeline_lanes = {job.lanes}\n'
        lines += f"device_id = {list(topology.switches).index(name) + 1}\n"
        if topology.rates(name):
            lines += f"queue_depth = {topology.switches[name].mark_from}\n"
        return lines + (_addresses(topology, name, section, hosts) if addressed else "")

    racks = _racks(topology, job)
    if not racks:
        text += f"[ports]\nserver = {server}\nworkers = {_ports(topology, job.workers)}\n"
        return text + "[switch]\n" + switch(spine, "", (*job.workers, job.server))
    text += f"[spine]\nserver = {server}\n" + switch(spine, "spine.", [job.server])
    for rack, hosts in racks.items():
        uplink, spine_port = topology.trunks[rack, spine]
        text += (
            f"[[racks]]\nuplink = {uplink}\nspine_port = {spine_port}\nworkers = {_ports(topology, hosts)}\n"
        )
        text += switch(rack, "racks.", hosts)
    return text


def _racks(topology: Topology, job: JobNode) -> dict[str, list[str]]:
    """Return the workers' hosts by their switch; nothing if that is the server's switch."""
    racks: dict[str, list[str]] = {}
    for host in job.workers:
        racks.setdefault(topology.attachments[host][0], []).append(host)
    return {} if topology.attachments[job.server][0] in racks else racks


def _ports(topology: Topology, hosts: Iterable[str]) -> list[int]:
    return [topology.attachments[host][1] for host in hosts]


def _addresses(topology: Topology, switch: str, section: str, hosts: Iterable[str]) -> str:
    """Return the lines of a section with the addresses of a switch and its hosts, and its bridge."""
    mac, ip = topology.address_of(switch)
    text = f'address = {{ mac = "{mac}", ip = "{ip.partition("/")[0]}" }}\n'
    bridge = ", ".join(f'"{mac}" = {port}' for mac, port in topology.bridge(switch).items())
    text += f"bridge = {{ {bridge} }}\n"
    for host in hosts:
        mac, ip = topology.address_of(host)
        port = topology.attachments[host][1]
        text += f'[{section}hosts.{port}]\nmac = "{mac}"\nip = "{ip.partition("/")[0]}"\n'
    return text
