"""Admit a job to one or several switches, in an order in which no packet meets a half-configured job."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from finsy.p4entity import P4MulticastGroupEntry

from peelsum.control.description import AnyDescription, SwitchPlan
from peelsum.control.drivers import driver_of
from peelsum.control.errors import ControlError, DescriptionError, UpdateRefusedError
from peelsum.control.session import Session, lanes_and_slots
from peelsum.control.tables import (
    FLOOD_GROUP,
    PROBE_GROUP,
    TableSnapshot,
    action_args,
    bridge_entries,
    close_job,
    close_update,
    host_entries,
    job_entry,
    participant_entries,
    read_jobs,
    route_entries,
    row_updates,
)
from peelsum.wire import SECRET_BYTES

_GENERATIONS = 1 << 16
#: The first generation of a job that no switch remembers is the time, in units of so many seconds, modulo
#: _GENERATIONS. It repeats after 4.5 hours.
_GENERATION_S = 0.25


@dataclass(frozen=True)
class JobAdmission:
    """An admitted job, as its workers and its server need to know it."""

    job_id: int
    """The job's number."""
    generation: int
    """The number of this admission, which every packet carries."""
    workers: int
    """Number of workers."""
    window: int
    """Chunks that a worker keeps in flight."""
    lanes: int
    """32-bit values per packet."""
    slots: int
    """Slots of the switch; of several switches, the smallest number."""
    server_port: int
    """The aggregation server's port, at its switch."""
    worker_ports: tuple[int, ...]
    """The workers' ports, each at its own switch, in the order of the workers' numbers."""
    racks: tuple[int, ...] = ()
    """Workers per rack; empty for one switch."""
    secret: str = field(default="", repr=False)
    """The secret that the job's hosts must prove to have at UDP ports: 16 bytes in hexadecimal."""


class Placement:
    """One job on one switch, and the steps of its admission, each with one Write request."""

    def __init__(self, session: Session, plan: SwitchPlan) -> None:
        """session: a primary's session with the switch."""
        self.session, self.plan = session, plan

    def check(self) -> int | None:
        """Check that the switch can run the job; return its last generation there, None if there is none.

        Raises DescriptionError if the pipeline or the ports do not fit, LeaseHeldError if another controller
        holds the lease. Two jobs may use the same port, because packets carry the job's number, if they
        give the same address for the host behind it. They cannot both use a UDP port with a secret, which
        belongs to one host of one job.
        """
        session, plan = self.session, self.plan
        session.check_lease_is_free(plan.job_id)
        self.lanes, self.slots = lanes_and_slots(session)
        if plan.switch.pipeline_lanes != self.lanes:
            raise DescriptionError(
                f"{plan.section}.pipeline_lanes: {plan.switch.pipeline_lanes}: the switch runs {self.lanes} "
                f"lanes; load that pipeline or ask for {self.lanes}"
            )
        if 2 * plan.window > self.slots:
            raise DescriptionError(
                f"job.window: {plan.window}: at most half of the switch's {self.slots} slots; "
                f"use {self.slots // 2} or less"
            )
        self._driver = driver_of(session)
        self._driver.check(plan)
        self._check_ports()
        self._snapshot, self._secret_ports = TableSnapshot(session), self._driver.secret_ports()
        others = self._snapshot.other_ports(plan.job_id)
        for port in set(plan.host_ports) & others.keys() & (self._secret_ports or set()):
            raise DescriptionError(
                f"{plan.prefix}ports: {port}: belongs to job {others[port]}; use another, or evict that job "
                "first"
            )
        for row in self._snapshot.rows["hosts"]:
            port = row["egress_port"]
            host = plan.hosts.get(port)
            if (
                host
                and port in others
                and (action_args(row)["dst_mac"], action_args(row)["dst_ip"]) != (host.mac, host.ip)
            ):
                raise DescriptionError(
                    f"{plan.prefix}hosts.{port}: has another address for job {others[port]}; evict that job "
                    "first"
                )
        return self._snapshot.generations.get(plan.job_id)

    def close(self, generation: int) -> None:
        """Close the job: the switch drops its packets from now on."""
        self.session.write([close_update(self._snapshot, self.plan.job_id, generation)])

    def free_slots(self) -> None:
        """Free the slots of the job's earlier generations. Raises SwitchError."""
        self._driver.free_slots(self.plan)

    def prepare(self, secret: str) -> None:
        """Write all rows of the closed job except the one that opens it, and the switch's settings.

        secret: what the job's hosts must prove to have, if its ports are UDP sockets; empty for no secret.
        """
        session, plan, snapshot = self.session, self.plan, self._snapshot
        self._driver.bring_up(plan.switch.tofino, plan.section)
        hosts = [row for row in snapshot.rows["hosts"] if row["egress_port"] in plan.hosts]
        present = [*snapshot.participants(plan.job_id), *snapshot.exclusive_hosts(plan.job_id), *hosts]
        updates = row_updates(session, present, [*participant_entries(plan), *host_entries(plan)])
        group = P4MulticastGroupEntry(plan.job_id, replicas=list(plan.group))
        updates.append(~group if plan.job_id in snapshot.groups else +group)
        secrets = dict.fromkeys(snapshot.exclusive_ports(plan.job_id), "")
        if secret:
            secrets |= dict.fromkeys(plan.host_ports, secret)
        updates += self._driver.secret_updates(secrets, self._secret_ports)
        updates += self._driver.limit_updates(plan.switch.age_limit_ms, plan.switch.queue_depth)
        bridge, routes = plan.switch.bridge, plan.switch.routes
        if bridge:  # the group for broadcasts, from which the program excludes the ingress port
            group = P4MulticastGroupEntry(FLOOD_GROUP, replicas=sorted(set(bridge.values())))
            updates.append(~group if FLOOD_GROUP in snapshot.groups else +group)
            updates += row_updates(session, session.entries("bridge"), bridge_entries(bridge))
        if routes:
            assert plan.switch.address is not None  # the description's own check
            entries = route_entries(routes, plan.switch.address.mac)
            updates += row_updates(session, session.entries("routes"), entries)
        session.write(updates)

    def open(self, generation: int) -> None:
        """Open the job: the switch accepts its packets from now on."""
        self.session.write([~job_entry(self.plan, generation)])

    def _check_ports(self) -> None:
        """Raise DescriptionError for ports that the switch does not have.

        P4Runtime has no list of ports. But the softswitch, unlike BMv2, refuses a multicast group with a
        missing port.
        """
        plan = self.plan

        def refusal(*ports: int) -> str:
            """Return why the switch refuses a group of these ports; an empty string if it does not."""
            group = P4MulticastGroupEntry(PROBE_GROUP, replicas=ports)
            try:
                self.session.write([+group, -P4MulticastGroupEntry(PROBE_GROUP)])
            except UpdateRefusedError as error:
                return error.reason
            return ""

        refused: dict[int, str] = {}
        if refusal(*plan.ports):
            refused = {port: reason for port in plan.ports if (reason := refusal(port))}
        if refused:
            ports, reason = ", ".join(map(str, refused)), next(iter(refused.values()))
            raise DescriptionError(
                f"{plan.prefix}ports: {ports}: {plan.switch.p4runtime} refuses them ({reason}); use others"
            )


def admit(
    description: AnyDescription,
    placements: Sequence[Placement],
    now: float,
    *,
    free: bool = True,
    known: Sequence[int] = (),
    secret: str | None = None,
) -> JobAdmission:
    """Admit a job to all its switches in a new generation.

    The steps are: close the job, from the workers' switches to the server's; free its slots; write its rows;
    open it, from the server's switch to the workers'. If a switch fails in between, the job stays closed on
    some switches, and has to be admitted again.
    placements: one for each switch, the server's switch first. now: seconds since the epoch.
    free: whether to free slots; False is for switches that have just started.
    known: generations that the job had earlier, according to the caller's records.
    secret: the job's secret in hexadecimal, by default a random one. If it is empty, any host can use the
    job's ports, if the switch permits that.
    Raises DescriptionError before anything is changed, SwitchError if a switch refuses a request.
    """
    previous_generations = [placement.check() for placement in placements]
    generation = next_generation(
        [*known, *(number for number in previous_generations if number is not None)], now
    )
    secret = secrets.token_hex(SECRET_BYTES) if secret is None else secret
    _configure(placements, generation, secret, free)
    return JobAdmission(
        description.job.id,
        generation,
        description.job.workers,
        description.job.window,
        placements[0].lanes,
        min(placement.slots for placement in placements),
        description.server_port,
        description.worker_ports,
        description.rack_sizes,
        secret,
    )


def restore(placement: Placement, generation: int, secret: str, *, free: bool = True) -> None:
    """Write a running job to a switch that has lost its tables. Raises ControlError.

    The workers and the server continue in the same `generation` with the same `secret`, and retransmit the
    chunks that were in slots. If the switch fails in between, call this again.
    free: whether to free the job's slots; False is for a switch on which all slots are free.
    """
    placement.check()
    _configure([placement], generation, secret, free)


def _configure(placements: Sequence[Placement], generation: int, secret: str, free: bool) -> None:
    """Close a job, free its slots, write its rows and open it, on all its switches."""
    for placement in reversed(placements):
        placement.close(generation)
    if free:
        for placement in placements:
            placement.free_slots()
    for placement in placements:
        placement.prepare(secret)
    for placement in placements:
        placement.open(generation)


def evict(session: Session, job_id: int) -> None:
    """Evict a job from one switch. Raises ControlError if it is not admitted there."""
    admitted = {job.job_id: job.generation for job in read_jobs(session)}
    if job_id not in admitted:
        admitted_ids = ", ".join(map(str, admitted)) or "none"
        raise ControlError(f"job: {job_id}: is not admitted; admitted: {admitted_ids}")
    close_job(session, job_id, admitted[job_id])


def next_generation(known: Sequence[int], now: float) -> int:
    """Return the generation after all known ones, modulo 2^16; if none is known, one from the time `now`."""
    if not known:
        return int(now / _GENERATION_S) % _GENERATIONS
    candidates = (max(known) + 1 + step for step in range(len(known) + 1))
    return next(candidate % _GENERATIONS for candidate in candidates if candidate % _GENERATIONS not in known)
