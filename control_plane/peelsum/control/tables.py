"""The rows of one job on one switch: check that they fit, write them, and remove them.

The switch's limits, and the bridge and routes of other traffic, outlive the job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from finsy.p4entity import P4MulticastGroupEntry, P4TableAction, P4TableEntry, P4TableMatch

from peelsum.control.drivers import driver_of
from peelsum.control.entries import (
    FLOOD_GROUP,
    PROBE_GROUP,
    bridge_entries,
    closed_job_entry,
    flood_entry,
    group_entry,
    group_of,
    host_entry,
    job_entry,
    participant_entries,
    route_entries,
)
from peelsum.control.errors import ControlError, DescriptionError, RefusedError
from peelsum.control.plan import SwitchPlan
from peelsum.control.sections import SwitchSection
from peelsum.control.session import Session, lanes, slots


def check(session: Session, plan: SwitchPlan) -> None:
    """Raise DescriptionError if pipeline or ports cannot hold the job, or another controller holds it.

    Two jobs may share a port, as packets carry the job's number, if they give the same address for the host
    behind it. They may not share a port with a secret, a UDP socket, behind which is one host of one job.
    """
    session.check_unheld(plan.job_id)
    _check_fits(plan, lanes(session), slots(session))
    driver_of(session).check(plan)
    _check_ports(session, plan)
    others = _ports_in_use(session, besides=plan.job_id)
    for port in set(plan.host_ports) & set(others) & (driver_of(session).secret_ports() or set()):
        raise DescriptionError(
            f"{plan.prefix}ports: {port}: belongs to job {others[port]}; use another, or evict that job first"
        )
    for entry in session.entries("hosts") if plan.hosts else ():
        port, action = entry["egress_port"], entry.action
        host = plan.hosts.get(port)
        if host is None or port not in others or not isinstance(action, P4TableAction):
            continue
        if (action.args["dst_mac"], action.args["dst_ip"]) != (host.mac, host.ip):
            raise DescriptionError(
                f"{plan.prefix}hosts.{port}: has another address for job {others[port]}; evict that job first"
            )


def known_generation(session: Session, job_id: int, *, closed: bool = True) -> int | None:
    """Return a job's last generation; None if the switch does not know the job.

    closed: whether a closed job counts as known.
    """
    for entry in session.entries("jobs", P4TableMatch(job_id=job_id)):
        action = entry.action
        if isinstance(action, P4TableAction) and (closed or action.args["expected_mask"]):
            generation: int = action.args["generation"]
            return generation
    return None


def prepare(session: Session, plan: SwitchPlan, secret: str) -> None:
    """Write all rows of a closed job except the one that opens it, and the switch's own tables.

    secret: the job's, for its hosts' ports if these are UDP sockets; empty for none.
    """
    driver = driver_of(session)
    driver.bring_up(plan.switch.tofino, plan.section)
    driver.set_secrets(plan.host_ports, secret)
    _set_hosts(session, plan)
    session.write([+entry for entry in participant_entries(plan)])
    session.write([+group_entry(plan)])
    set_limits(session, plan.switch.age_limit_ms, plan.switch.queue_depth)
    forward_others(session, plan.switch)


def open_job(session: Session, plan: SwitchPlan, generation: int) -> None:
    """Accept a prepared job's packets from now on."""
    session.write([~job_entry(plan, generation)])


def close_job(session: Session, job_id: int, generation: int) -> None:
    """Refuse a job's packets from now on, and remove its ports' secrets and its rows, except that in `jobs`.

    That row remembers the generation. If a generation were used twice, late packets of its first use would
    be accepted.
    """
    closed = closed_job_entry(job_id, generation)
    present = session.entries("jobs", P4TableMatch(job_id=job_id))
    session.write([~closed if present else +closed])
    stale: list[P4TableEntry] = []
    for table in ("members", "return_paths"):
        stale += [entry for entry in session.entries(table) if entry["job_id"] == job_id]
    others = _ports_in_use(session, besides=job_id)
    ports = {entry["ingress_port"] for entry in stale if "ingress_port" in (entry.match or {})}
    driver_of(session).set_secrets(ports - set(others), "")
    stale += [entry for entry in session.entries("hosts") if entry["egress_port"] not in others]
    for entry in stale:
        entry.action = None
    session.write([-entry for entry in stale])
    group = group_of(job_id)
    if list(session.read(P4MulticastGroupEntry(group))):
        session.write([-P4MulticastGroupEntry(group)])


def _check_fits(plan: SwitchPlan, lanes: int, slots: int) -> None:
    wanted = plan.switch.pipeline_lanes
    if wanted != lanes:
        raise DescriptionError(
            f"{plan.section}.pipeline_lanes: {wanted}: the switch runs {lanes} lanes; "
            f"load that pipeline or ask for {lanes}"
        )
    if 2 * plan.window > slots:
        raise DescriptionError(
            f"job.window: {plan.window}: at most half of the switch's {slots} slots; use {slots // 2} or less"
        )


def _check_ports(session: Session, plan: SwitchPlan) -> None:
    """Raise DescriptionError for ports that the switch refuses. BMv2 refuses none.

    P4Runtime has no list of ports, but a switch may refuse to put a missing port into a multicast group.
    """
    missing: dict[int, str] = {}
    for port in plan.ports:
        probe = P4MulticastGroupEntry(PROBE_GROUP, replicas=[port])
        try:
            session.write([+probe, -P4MulticastGroupEntry(PROBE_GROUP)])
        except RefusedError as error:
            missing[port] = error.reason
    if missing:
        ports, reason = ", ".join(map(str, missing)), next(iter(missing.values()))
        raise DescriptionError(
            f"{plan.prefix}ports: {ports}: {plan.switch.p4runtime} refuses them ({reason}); use its own"
        )


def _ports_in_use(session: Session, besides: int) -> dict[int, int]:
    """Return each port that jobs other than `besides` use, with one of those jobs."""
    return {
        entry["ingress_port"]: entry["job_id"]
        for entry in session.entries("members")
        if entry["job_id"] != besides
    }


def _set_hosts(session: Session, plan: SwitchPlan) -> None:
    present = {entry["egress_port"] for entry in session.entries("hosts")} if plan.hosts else set()
    updates = []
    for port, host in plan.hosts.items():
        assert plan.switch.address is not None  # the description's own check
        entry = host_entry(port, host, plan.switch.address)
        updates.append(~entry if port in present else +entry)
    session.write(updates)


def set_limits(session: Session, age_limit_ms: float | None, queue_depth: int | None) -> None:
    """Change limits; None keeps one. Raises ControlError for a negative age limit."""
    if age_limit_ms is not None and not age_limit_ms >= 0:
        raise ControlError(f"age_limit_ms: {age_limit_ms}: must be 0 or more, or infinite")
    driver_of(session).set_limits(age_limit_ms, queue_depth)


def forward_others(session: Session, switch: SwitchSection) -> None:
    """Replace the switch's bridge and its routes, each if the description gives one."""
    if switch.bridge:
        _set_bridge(session, switch.bridge)
    if switch.routes:
        assert switch.address is not None  # the description's own check
        _replace(session, "routes", route_entries(switch.routes, switch.address.mac))


def _set_bridge(session: Session, bridge: Mapping[int, int]) -> None:
    group = flood_entry(bridge)
    known = list(session.read(P4MulticastGroupEntry(FLOOD_GROUP)))
    session.write([~group if known else +group])
    _replace(session, "bridge", bridge_entries(bridge))


def _replace(session: Session, table: str, wanted: Sequence[P4TableEntry]) -> None:
    """Make `wanted` a table's rows. A row that stays is modified, and never missing in between."""
    present = {_key(session, entry): entry for entry in session.entries(table)}
    keys = [_key(session, entry) for entry in wanted]
    stale = [entry for key, entry in present.items() if key not in keys]
    for entry in stale:
        entry.action = None
    session.write([-entry for entry in stale])
    session.write([~entry if key in present else +entry for key, entry in zip(keys, wanted, strict=True)])


def _key(session: Session, entry: P4TableEntry) -> str:
    """Return a text that is equal for equal matches. The default route's match is empty in P4Runtime."""
    return str(entry.encode(session.loaded()).table_entry.match)
