"""`peelsum job` and `peelsum status`: admit, serve, list and evict jobs, and show a switch's state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING, Annotated

import typer

from peelsum.cli.controller import Controllers, Token, admit_there, evict_there, show_cluster
from peelsum.cli.job_serve import serve
from peelsum.cli.options import LOOK_EVERY_S, Json, Service, Tls, identity, job_values, reporting
from peelsum.cli.settings import with_settings
from peelsum.options import Option, Settings
from peelsum.processes import Signalled, end_with_parent, say
from peelsum.processes.progress import taking_time
from peelsum.processes.reports import told

if TYPE_CHECKING:
    from peelsum.control import AdmittedJob, SwitchStatus
    from peelsum.control.cluster import JobController
    from peelsum.control.description import AnyDescription
    from peelsum.wire import Verdict

app = typer.Typer(help="Admit, serve and evict jobs.", no_args_is_help=True)
app.command()(serve)

#: How long to wait while another controller is primary, e.g. to admit or restore a job.
_PATIENCE_S = 10.0


@dataclass(frozen=True)
class _Switch(Settings):
    """The switch that is asked."""

    p4runtime: Annotated[str, Option("The switch's P4Runtime address.")] = "127.0.0.1:9559"
    device_id: Annotated[int, Option("P4Runtime's device_id.", 0, 2**64 - 1)] = 1


@app.command()
@with_settings
def admit(
    description: Annotated[Path, typer.Argument(help="The job's description, TOML.")],
    hold: Annotated[
        bool,
        typer.Option(help="Stay until Ctrl-C, restore the tables of restarted switches, then evict the job."),
    ] = False,
    controller: Controllers = None,
    token: Token = None,
    *,
    service: Service,
) -> None:
    """Load the pipeline into switches that do not run it yet, and admit a job in a new generation.

    With --controller, a cluster's controller does so, and holds the job until it is evicted.
    """
    from peelsum.control import ControlError, read_description
    from peelsum.control.cluster import Event, JobController

    follow = {"--metrics": service.metrics, "--log-format": service.log_format}
    if controller:
        if hold or any(follow.values()):
            raise typer.BadParameter(
                "--hold: a controller holds the job itself; leave --hold, --metrics and --log-format out"
            )
        _show(admit_there(controller, description, service.tls, token), service)
        return
    _without_controller(token)
    for name, value in follow.items():
        if value is not None and not hold:
            raise typer.BadParameter(f"{name}: {value}: applies to --hold only; give that too")
    if service.child:
        end_with_parent()
    tell = told(child=service.child)
    with reporting(), ExitStack() as stack:
        job = read_description(description)
        show: Callable[[Event], None] | None = None

        def tell_event(event: Event) -> None:
            if event.kind == "ended":
                raise ControlError(str(event))
            if show is not None:
                show(event)

        jobs = stack.enter_context(JobController(identity=service.identity, tell=tell_event))
        switches = _connecting(*(plan.switch.p4runtime for plan in job.plans()))
        with taking_time(f"{switches}, loading a pipeline that it does not run yet", tell):
            jobs.hold(job)
        with taking_time("freeing the job's slots, filling tables", tell):
            admission = jobs.admit_job(job)
        _show(admission, service)
        if hold:
            show = service.event_teller(job=job.job.id, generation=admission["generation"])
            service.serve_metrics(stack, "controller", partial(job_values, jobs, job.job.id))
            _hold(jobs, job, service)


def _hold(jobs: JobController, job: AnyDescription, service: Service) -> None:
    """Check the job's switches until a signal comes, then evict the job. Raises ControlError."""
    from peelsum.control import ControlError

    ended = Signalled(SIGINT, SIGTERM)
    while not ended.wait(LOOK_EVERY_S):
        jobs.poll()
    total: Counter[Verdict] = Counter()
    for verdicts in jobs.verdicts(job):
        total.update(verdicts)
    if waiting := jobs.evict(job.job.id)["waiting"]:
        raise ControlError(f"job: {job.job.id}: is still on {', '.join(waiting)}, which is away")
    if service.json:
        say(verdicts=_named(total))


def _connecting(*addresses: str) -> str:
    return f"connecting to {', '.join(addresses)}"


def _show(admission: Mapping[str, object], service: Service) -> None:
    lines = (f"{name} = {value}" for name, value in admission.items() if name != "secret")
    service.announce("\n".join(lines), **admission)


def _without_controller(token: Path | None) -> None:
    if token is not None:
        raise typer.BadParameter(f"--token: {token}: applies to --controller only; give that too")


@app.command()
@with_settings
def evict(
    job_id: Annotated[int, typer.Argument(help="The job's number.")],
    switch: _Switch,
    controller: Controllers = None,
    token: Token = None,
    tls: Tls = None,
) -> None:
    """Evict a job: its switch, or with --controller each of its switches, drops its packets from now on."""
    from peelsum.control import evict as evict_job
    from peelsum.control import open_session

    if controller:
        evict_there(controller, job_id, tls, token)
        return
    _without_controller(token)
    with reporting(), ExitStack() as stack:
        with taking_time(_connecting(switch.p4runtime), told()):
            session = stack.enter_context(
                open_session(switch.p4runtime, switch.device_id, identity=identity(tls))
            )
            session.become_primary(patience_s=_PATIENCE_S)
        evict_job(session, job_id)


@with_settings
def status(
    switch: _Switch,
    controller: Controllers = None,
    tls: Tls = None,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Print a Grafana dashboard of all metrics instead.")
    ] = False,
    json: Json = False,
) -> None:
    """Show a switch's jobs and its packets by verdict; with --controller, a cluster's jobs and switches."""
    from peelsum.control import open_session, read_status

    if dashboard:
        from peelsum.metrics.dashboard import dashboard as grafana

        print(grafana(), end="")
        return
    if controller:
        with reporting():
            show_cluster(controller, tls, json)
        return
    with reporting():
        with taking_time(_connecting(switch.p4runtime), told()):
            session = open_session(switch.p4runtime, switch.device_id, identity=identity(tls))
        with session:
            seen = read_status(session)
    if json:
        say(**{**asdict(seen), "verdicts": _named(seen.verdicts)})
    else:
        _print_status(seen)


def _print_status(seen: SwitchStatus) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    in_use = "" if seen.slots_in_use is None else f", {sum(seen.slots_in_use.values())} in use"
    console.print(f"{seen.address}: {seen.lanes} lanes, {seen.slots} slots{in_use}")
    jobs = Table("job", "generation", "members", "their ports", "port upwards", "slots in use")
    for job in seen.jobs:
        used = "unknown" if seen.slots_in_use is None else str(seen.slots_in_use.get(job.job_id, 0))
        below = job.worker_ports or job.rack_ports
        ports = ", ".join(map(str, below.values()))
        jobs.add_row(str(job.job_id), str(job.generation), _members(job), ports, str(job.server_port), used)
    console.print(jobs if seen.jobs else "no jobs")
    packets = Table("verdict", "packets")
    for verdict, count in _named(seen.verdicts).items():
        packets.add_row(verdict, f"{count:,}")
    console.print(packets if packets.row_count else "no packets yet")


def _members(job: AdmittedJob) -> str:
    """Return the members at this switch: `4 of 4 workers`, or at a spine `2 of 2 racks`."""
    below = job.worker_ports or job.rack_ports
    return f"{len(below)} of {job.expected_mask.bit_count()} {'racks' if job.rack_ports else 'workers'}"


def _named(verdicts: Mapping[Verdict, int]) -> dict[str, int]:
    return {verdict.name.lower(): count for verdict, count in verdicts.items() if count}
