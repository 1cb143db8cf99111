"""What a job and the switch's limits look like in the pipeline's tables. Builds entities, sends none."""

from __future__ import annotations

from finsy.p4entity import (
    P4MulticastGroupEntry,
    P4TableAction,
    P4TableEntry,
    P4TableMatch,
)

from peelsum.control.description import HostAddress, JobDescription

#: One tick of the slots' clock.
TICK_US = 64
#: The age limit that never expires.
NEVER_TICKS = 1 << 30
#: Odd, so that neighbouring job ids start at slots far apart and no two jobs at the same one.
_SALT_FACTOR = 0x9E3779B1
_WORD = 0xFFFFFFFF


def salt(job_id: int) -> int:
    """Where a job's chunk 0 goes: spreads jobs over the slots."""
    return job_id * _SALT_FACTOR & _WORD


def group_of(job_id: int) -> int:
    """The multicast group of a job's workers."""
    return job_id


def job_entry(description: JobDescription, generation: int) -> P4TableEntry:
    """The row that lets a job's packets in; it goes last."""
    job = description.job
    action = P4TableAction(
        "admit_job",
        generation=generation,
        job_salt=salt(job.id),
        expected_mask=description.expected_mask,
        up_port=description.ports.server,
        group=group_of(job.id),
    )
    return P4TableEntry("jobs", match=P4TableMatch(job_id=job.id), action=action)


def closed_job_entry(job_id: int, generation: int) -> P4TableEntry:
    """The row of a job that is let in no more, or not yet: nobody is expected, and nobody is a member."""
    action = P4TableAction(
        "admit_job", generation=generation, job_salt=0, expected_mask=0, up_port=0, group=0
    )
    return P4TableEntry("jobs", match=P4TableMatch(job_id=job_id), action=action)


def participant_entries(description: JobDescription) -> list[P4TableEntry]:
    """Who is behind which port, and the way back to each worker."""
    job_id = description.job.id
    server = P4TableMatch(job_id=job_id, ingress_port=description.ports.server)
    entries = [P4TableEntry("members", match=server, action=P4TableAction("admit_server"))]
    for worker_id, port in enumerate(description.ports.workers):
        admit = P4TableAction("admit_worker", worker_mask=1 << worker_id, worker_id=worker_id)
        member = P4TableMatch(job_id=job_id, ingress_port=port)
        entries.append(P4TableEntry("members", match=member, action=admit))
        way = P4TableMatch(job_id=job_id, sender=worker_id)
        entries.append(P4TableEntry("return_paths", match=way, action=P4TableAction("return_to", port=port)))
    return entries


def group_entry(description: JobDescription) -> P4MulticastGroupEntry:
    """The ports that a result for everyone is copied to."""
    return P4MulticastGroupEntry(group_of(description.job.id), replicas=list(description.ports.workers))


def host_entry(port: int, host: HostAddress, switch: HostAddress) -> P4TableEntry:
    """The addresses of every packet that leaves by a port."""
    action = P4TableAction(
        "readdress", src_mac=switch.mac, dst_mac=host.mac, src_ip=switch.ip, dst_ip=host.ip
    )
    return P4TableEntry("hosts", match=P4TableMatch(egress_port=port), action=action)


def age_limit_entry(ticks: int) -> P4TableEntry:
    """How long a slot that nobody touches keeps its chunk."""
    action = P4TableAction("set_age_limit", ticks=ticks)
    return P4TableEntry("limits", action=action, is_default_action=True)


def queue_limit_entry(depth: int) -> P4TableEntry:
    """From how many queued packets on the later ones are marked."""
    action = P4TableAction("mark_from", depth=depth)
    return P4TableEntry("congestion", action=action, is_default_action=True)


def age_limit_ticks(age_limit_ms: float) -> int:
    """Ticks of an age limit in milliseconds; what exceeds the clock's reach, infinity included, is never."""
    ticks = age_limit_ms * 1000 / TICK_US
    return NEVER_TICKS if ticks >= NEVER_TICKS else round(ticks)
