"""Build the rows and multicast groups of a job, of the switch's limits and of other traffic."""

from __future__ import annotations

from collections.abc import Mapping

from finsy.p4entity import (
    P4MulticastGroupEntry,
    P4TableAction,
    P4TableEntry,
    P4TableMatch,
)

from peelsum.control.plan import Member, SwitchPlan
from peelsum.control.sections import HostAddress, NextHop, Prefix

#: An odd factor gives every job another start; a large one puts neighbouring job ids far apart.
_SALT_FACTOR = 0x9E3779B1
_WORD = 0xFFFFFFFF
_BROADCAST = 0xFFFFFFFFFFFF
#: Multicast groups that no job has: one to probe ports with, one for broadcasts.
PROBE_GROUP = 1 << 8
FLOOD_GROUP = PROBE_GROUP + 1


def salt(job_id: int) -> int:
    """Return the slot, before reduction, of a job's chunk 0; it spreads jobs over the slots."""
    return job_id * _SALT_FACTOR & _WORD


def group_of(job_id: int) -> int:
    """Return the multicast group of a job's workers."""
    return job_id


def job_entry(plan: SwitchPlan, generation: int) -> P4TableEntry:
    """Return the row that lets a job's packets in, to be written last."""
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
    """Return the row of a closed job, which expects no worker."""
    action = P4TableAction("admit_job", generation=generation, salt=0, expected_mask=0, up_port=0, group=0)
    return P4TableEntry("jobs", match=P4TableMatch(job_id=job_id), action=action)


def participant_entries(plan: SwitchPlan) -> list[P4TableEntry]:
    """Return the rows that say which participant is behind which port, and each worker's return port."""
    up = P4TableMatch(job_id=plan.job_id, ingress_port=plan.up_port)
    entries = [P4TableEntry("members", match=up, action=P4TableAction("admit_server"))]
    for member in plan.members:
        port = P4TableMatch(job_id=plan.job_id, ingress_port=member.port)
        entries.append(P4TableEntry("members", match=port, action=_admission(member)))
    for worker_id, return_port in plan.return_ports.items():
        match = P4TableMatch(job_id=plan.job_id, sender=worker_id)
        action = P4TableAction("return_to", port=return_port)
        entries.append(P4TableEntry("return_paths", match=match, action=action))
    return entries


def _admission(member: Member) -> P4TableAction:
    if member.is_rack:
        return P4TableAction("admit_rack", rack_mask=member.mask, first_worker=member.first_worker)
    return P4TableAction("admit_worker", worker_mask=member.mask, worker_id=member.first_worker)


def group_entry(plan: SwitchPlan) -> P4MulticastGroupEntry:
    """Return the multicast group that a result for all workers is copied to."""
    return P4MulticastGroupEntry(group_of(plan.job_id), replicas=list(plan.group))


def host_entry(port: int, host: HostAddress, switch: HostAddress) -> P4TableEntry:
    """Return the row that gives packets leaving by a port their addresses."""
    action = P4TableAction(
        "readdress", src_mac=switch.mac, dst_mac=host.mac, src_ip=switch.ip, dst_ip=host.ip
    )
    return P4TableEntry("hosts", match=P4TableMatch(egress_port=port), action=action)


def bridge_entries(bridge: Mapping[int, int]) -> list[P4TableEntry]:
    """Return the rows that forward frames by MAC address, and broadcasts to FLOOD_GROUP."""
    actions = {mac: P4TableAction("forward", port=port) for mac, port in bridge.items()}
    actions[_BROADCAST] = P4TableAction("flood", group=FLOOD_GROUP)
    return [
        P4TableEntry("bridge", match=P4TableMatch(dst_mac=mac), action=action)
        for mac, action in actions.items()
    ]


def flood_entry(bridge: Mapping[int, int]) -> P4MulticastGroupEntry:
    """Return the multicast group of broadcasts. The program leaves out the ingress port."""
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
    """Return the row with the age from which another chunk may take a slot over."""
    action = P4TableAction("set_age_limit", ticks=ticks)
    return P4TableEntry("limits", action=action, is_default_action=True)


def queue_limit_entry(depth: int) -> P4TableEntry:
    """Return the row with the queue depth from which packets get an ECN mark."""
    action = P4TableAction("mark_from", depth=depth)
    return P4TableEntry("congestion", action=action, is_default_action=True)
