"""Build the table entries and multicast groups of a job, of the switch's limits and of other traffic."""

from __future__ import annotations

from collections.abc import Mapping

from finsy.p4entity import (
    P4MulticastGroupEntry,
    P4TableAction,
    P4TableEntry,
    P4TableMatch,
)

from peelsum.control.plan import SwitchMember, SwitchPlan
from peelsum.control.sections import HostAddress, NextHop, Prefix

#: Because the factor is odd, all jobs get different salts; because it is large, consecutive job numbers get
#: distant ones.
_SALT_FACTOR = 0x9E3779B1
_WORD = 0xFFFFFFFF
_BROADCAST = 0xFFFFFFFFFFFF
#: Multicast groups that are no job's: one to test whether ports exist, one for broadcasts.
PROBE_GROUP = 1 << 8
FLOOD_GROUP = PROBE_GROUP + 1


def salt(job_id: int) -> int:
    """Return the slot of a job's chunk 0, before reduction modulo the number of slots."""
    return job_id * _SALT_FACTOR & _WORD


def group_of(job_id: int) -> int:
    """Return the multicast group of a job's workers."""
    return job_id


def job_entry(plan: SwitchPlan, generation: int) -> P4TableEntry:
    """Return the row that opens a job: the switch accepts its packets from then on. It is written last."""
    action = P4TableAction(
        plan.level.value,
        generation=generation,
        salt=salt(plan.job_id),
        expected_mask=plan.expected_mask,
        up_port=plan.up_port,
        group=group_of(plan.job_id),
    )
    return P4TableEntry("jobs", match=P4TableMatch(job_id=plan.job_id), action=action)


def closed_job_entry(job_id: int, generation: int) -> P4TableEntry:
    """Return the row that closes a job: with an empty expected mask, the switch accepts no packet of it."""
    action = P4TableAction("admit_job", generation=generation, salt=0, expected_mask=0, up_port=0, group=0)
    return P4TableEntry("jobs", match=P4TableMatch(job_id=job_id), action=action)


def participant_entries(plan: SwitchPlan) -> list[P4TableEntry]:
    """Return the rows that map ports to workers, racks or server, and workers to return ports."""
    up = P4TableMatch(job_id=plan.job_id, ingress_port=plan.up_port)
    entries = [P4TableEntry("members", match=up, action=P4TableAction("admit_server"))]
    for member in plan.members:
        port = P4TableMatch(job_id=plan.job_id, ingress_port=member.port)
        entries.append(P4TableEntry("members", match=port, action=_member_action(member)))
    for worker_id, return_port in plan.return_ports.items():
        match = P4TableMatch(job_id=plan.job_id, sender=worker_id)
        action = P4TableAction("return_to", port=return_port)
        entries.append(P4TableEntry("return_paths", match=match, action=action))
    return entries


def _member_action(member: SwitchMember) -> P4TableAction:
    if member.is_rack:
        return P4TableAction("admit_rack", rack_mask=member.mask, first_worker=member.first_worker)
    return P4TableAction("admit_worker", worker_mask=member.mask, worker_id=member.first_worker)


def group_entry(plan: SwitchPlan) -> P4MulticastGroupEntry:
    """Return the multicast group for results: all ports with workers of the job."""
    return P4MulticastGroupEntry(group_of(plan.job_id), replicas=list(plan.group))


def host_entry(port: int, host: HostAddress, switch: HostAddress) -> P4TableEntry:
    """Return the row with the addresses of packets that leave by a port: from the switch to the host."""
    action = P4TableAction(
        "readdress", src_mac=switch.mac, dst_mac=host.mac, src_ip=switch.ip, dst_ip=host.ip
    )
    return P4TableEntry("hosts", match=P4TableMatch(egress_port=port), action=action)


def bridge_entries(bridge: Mapping[int, int]) -> list[P4TableEntry]:
    """Return the rows that forward frames to the port of their MAC address, and broadcasts to FLOOD_GROUP."""
    actions = {mac: P4TableAction("forward", port=port) for mac, port in bridge.items()}
    actions[_BROADCAST] = P4TableAction("flood", group=FLOOD_GROUP)
    return [
        P4TableEntry("bridge", match=P4TableMatch(dst_mac=mac), action=action)
        for mac, action in actions.items()
    ]


def flood_entry(bridge: Mapping[int, int]) -> P4MulticastGroupEntry:
    """Return the multicast group for broadcasts. The program excludes the ingress port."""
    return P4MulticastGroupEntry(FLOOD_GROUP, replicas=sorted(set(bridge.values())))


def route_entries(routes: Mapping[Prefix, NextHop], src_mac: int) -> list[P4TableEntry]:
    """Return the rows that route IPv4 packets by prefix."""
    return [
        P4TableEntry(
            "routes",
            match=P4TableMatch(dst_ip=prefix),
            action=P4TableAction("route", port=hop.port, src_mac=src_mac, dst_mac=hop.mac),
        )
        for prefix, hop in routes.items()
    ]


def age_limit_entry(ticks: int) -> P4TableEntry:
    """Return the row with the age limit of slots, after which another chunk may take over a slot."""
    action = P4TableAction("set_age_limit", ticks=ticks)
    return P4TableEntry("limits", action=action, is_default_action=True)


def queue_limit_entry(depth: int) -> P4TableEntry:
    """Return the row with the queue depth from which packets get an ECN mark (CE)."""
    action = P4TableAction("mark_from", depth=depth)
    return P4TableEntry("congestion", action=action, is_default_action=True)
