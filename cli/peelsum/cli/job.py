"""`peelsum job`, `status` and `controller run`: admit, serve and evict jobs, show switches and clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from peelsum.addresses import parse_address
from peelsum.cli.options import (
    CHECK_INTERVAL_S,
    ClusterSettings,
    Description,
    JobRequestSettings,
    Json,
    Service,
    Tls,
    address,
    job_metrics,
    read_identity,
    read_token,
    report_errors,
    with_settings,
)
from peelsum.cli.output import print_tables
from peelsum.cli.serve import serve
from peelsum.options import CommandSettings, Option, OptionError
from peelsum.processes import SignalWaiter, print_message, terminate_with_parent
from peelsum.processes.progress import progress_reporter, reporting_progress
from peelsum.processes.user_errors import ending_signals

if TYPE_CHECKING:
    from peelsum.control import SwitchStatus
    from peelsum.control.cluster import ControllerClient, Event, JobController
    from peelsum.control.description import AnyDescription
    from peelsum.control.session import Session
    from peelsum.wire import Verdict

app = typer.Typer(help="Admit, serve and evict jobs.", no_args_is_help=True)
controller_app = typer.Typer(help="The controller of a cluster of switches and jobs.", no_args_is_help=True)
#: How long to wait while another controller is the primary, for example to admit or restore a job.
_PRIMARY_TIMEOUT_S = 10.0

JobId = Annotated[int, typer.Argument(help="The job's number.")]


@dataclass(frozen=True)
class _SwitchAddress(CommandSettings):
    """The P4Runtime server of a switch."""

    p4runtime: Annotated[str, Option("The switch's P4Runtime address.", parse=address("the switch"))] = (
        "127.0.0.1:9559"
    )
    device_id: Annotated[int, Option("P4Runtime's device_id.", 0, 2**64 - 1)] = 1

    def connect(self, tls: Path | None) -> Session:
        """Return a session with the switch. Raises ControlError or TlsError."""
        from peelsum.control import open_session

        with reporting_progress(_connecting(self.p4runtime), progress_reporter()):
            return open_session(self.p4runtime, self.device_id, identity=read_identity(tls))


@dataclass(frozen=True)
class _Admission(JobRequestSettings):
    """Options of `job admit`: a cluster's controller, or none, and whether to hold the job."""

    hold: Annotated[
        bool,
        Option("Stay until Ctrl-C, restore the tables of restarted switches, then evict the job."),
    ] = False

    def check(self, service: Service) -> None:
        """Raise OptionError if options of a command that stays are given to one that does not."""
        options = {"--metrics": service.metrics, "--log-format": service.log_format}
        if self.controller and (self.hold or any(options.values())):
            raise OptionError(
                "--hold: a controller holds the job itself; leave --hold, --metrics and --log-format out"
            )
        for name, value in options.items():
            if value is not None and not self.hold:
                raise OptionError(f"{name}: {value}: applies to --hold only; give that too")


@app.command()
@with_settings
def admit(description: Description, settings: _Admission, service: Service) -> None:
    """Load the pipeline into switches that do not run it yet, and admit a job in a new generation.

    With --controller, a cluster's controller does so, and holds the job until it is evicted.
    """
    from peelsum.control import ControlError, read_description
    from peelsum.control.cluster import JobController
    from peelsum.control.description import file_text

    settings.check(service)
    if settings.controller:
        with report_errors():
            client, text = _client(settings.controller, service.tls), file_text(description)
            with reporting_progress("waiting for the controller", progress_reporter()):
                admission = client.admit(text, str(description), read_token(settings.token))
        _print_admission(admission, service)
        return
    if service.child:
        terminate_with_parent()
    tell = progress_reporter(child=service.child)
    with report_errors(), ExitStack() as stack:
        job = read_description(description)
        log: Callable[[Event], None] | None = None

        def on_event(event: Event) -> None:
            if event.kind == "ended":
                raise ControlError(str(event))
            if log is not None:
                log(event)

        jobs = stack.enter_context(JobController(identity=service.identity, on_event=on_event))
        switches = _connecting(*(plan.switch.p4runtime for plan in job.plans()))
        with reporting_progress(f"{switches}, loading the pipeline unless it runs there", tell):
            jobs.acquire_lease(job)
        with reporting_progress("freeing the job's slots, filling tables", tell):
            admission = jobs.admit_job(job)
        signals = SignalWaiter(*ending_signals()) if settings.hold else None
        _print_admission(admission, service)
        if signals is not None:
            log = service.job_event_logger(job=job.job.id, generation=admission["generation"])
            service.serve_metrics(stack, "controller", partial(job_metrics, jobs, job.job.id))
            _hold(jobs, job, service, signals)


def _hold(jobs: JobController, job: AnyDescription, service: Service, signals: SignalWaiter) -> None:
    """Check the job's switches until a signal arrives, then evict the job. Raises ControlError."""
    from peelsum.control import ControlError

    while not signals.wait(CHECK_INTERVAL_S):
        jobs.poll()
    total: Counter[Verdict] = Counter()
    for verdicts in jobs.verdicts(job):
        total.update(verdicts)
    if waiting := jobs.evict(job.job.id)["waiting"]:
        raise ControlError(f"job: {job.job.id}: is still on {', '.join(waiting)}, which is away")
    if service.json:
        print_message(verdicts=_by_name(total))


def _connecting(*addresses: str) -> str:
    return f"connecting to {', '.join(addresses)}"


def _print_admission(admission: Mapping[str, object], service: Service) -> None:
    lines = (f"{name} = {value}" for name, value in admission.items() if name != "secret")
    service.announce("\n".join(lines), **admission)


app.command()(serve)


@app.command()
@with_settings
def evict(job_id: JobId, switch: _SwitchAddress, request: JobRequestSettings, tls: Tls = None) -> None:
    """Evict a job from a switch, or with --controller from all its switches, which then drop its packets."""
    from peelsum.control import evict as evict_job

    if request.controller:
        with report_errors():
            for name in _client(request.controller, tls).evict(job_id, read_token(request.token))["waiting"]:
                print(f"switch: {name} is away; the job is removed from it when it is up")
        return
    with report_errors(), switch.connect(tls) as session:
        with reporting_progress("waiting for the switch's primary", progress_reporter()):
            session.become_primary(patience_s=_PRIMARY_TIMEOUT_S)
        evict_job(session, job_id)


@with_settings
def status(
    switch: _SwitchAddress,
    cluster: ClusterSettings,
    tls: Tls = None,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Print a Grafana dashboard of all metrics instead.")
    ] = False,
    json: Json = False,
) -> None:
    """Show a switch's jobs and packet counts by verdict; with --controller, a cluster's jobs and switches."""
    from peelsum.control import read_status

    if dashboard:
        from peelsum.metrics.catalogue import dashboard as grafana

        print(grafana(), end="")
        return
    with report_errors():
        if cluster.controller:
            from peelsum.control.cluster import observe_cluster

            report = observe_cluster(_client(cluster.controller, tls).list(), read_identity(tls))
            if json:
                print_message(**report)
            else:
                _print_cluster(report)
            return
        with switch.connect(tls) as session:
            state = read_status(session)
    if json:
        print_message(**{**asdict(state), "verdicts": _by_name(state.verdicts)})
    else:
        _print_status(state)


def _print_status(switch: SwitchStatus) -> None:
    """Print a switch's jobs and packet counts as tables."""
    slots = switch.slots_in_use
    in_use = "" if slots is None else f", {sum(slots.values())} in use"
    print_tables(f"{switch.address}: {switch.lanes} lanes, {switch.slots} slots{in_use}")
    rows = []
    for job in switch.jobs:
        # A switch has so many members of so many: `4 of 4 workers`, at a spine `2 of 2 racks`.
        members, kind = job.worker_ports or job.rack_ports, "racks" if job.rack_ports else "workers"
        ports = ", ".join(map(str, members.values()))
        in_use = "unknown" if slots is None else str(slots.get(job.job_id, 0))
        count = f"{len(members)} of {job.expected_mask.bit_count()} {kind}"
        rows.append((str(job.job_id), str(job.generation), count, ports, str(job.server_port), in_use))
    headings = ("job", "generation", "members", "member ports", "uplink port", "slots in use")
    print_tables((headings, rows) if rows else "no jobs")
    packets = [(verdict, f"{count:,}") for verdict, count in _by_name(switch.verdicts).items()]
    print_tables((("verdict", "packets"), packets) if packets else "no packets yet")


def _by_name(verdicts: Mapping[Verdict, int]) -> dict[str, int]:
    return {verdict.name.lower(): count for verdict, count in verdicts.items() if count}


def _client(controllers: Sequence[str], tls: Path | None) -> ControllerClient:
    from peelsum.control.cluster import ControllerClient

    return ControllerClient(controllers, read_identity(tls))


def _print_cluster(report: Mapping[str, Any]) -> None:
    """Print a cluster's switches and jobs as tables."""
    switches, jobs = [], []
    for switch in report["switches"]:
        answer = switch["trouble"] or f"{switch['lanes']} lanes, {switch['slots']} slots"
        switches.append((switch["p4runtime"], str(switch["device_id"]), switch["state"], answer))
    for job in report["jobs"]:
        state = job["state"] or "not admitted by this controller"
        generations = ("-" if number is None else str(number) for number in (job["desired"], job["actual"]))
        state = state if job["agrees"] else f"differs: {state}"
        jobs.append((str(job["job_id"]), job["p4runtime"], *generations, state))
    print_tables(
        f"{report['primary']}: primary, epoch {report['epoch']}",
        (("switch", "device_id", "controller reports", "switch reports"), switches),
        (("job", "switch", "desired generation", "actual generation", "state"), jobs) if jobs else "no jobs",
    )


@dataclass(frozen=True)
class _ControllerSettings(CommandSettings):
    """A cluster's description, and where its controller listens."""

    config: Annotated[Path, Option("The cluster's description, TOML.")]
    listen: Annotated[
        str,
        Option(
            "Address for requests of `peelsum job --controller`, host:port; port 0 chooses a free port.",
            parse=address("the address to listen at"),
        ),
    ] = "127.0.0.1:9564"


@controller_app.command("run")
@with_settings
def run_controller(settings: _ControllerSettings, service: Service) -> None:
    """Admit and evict jobs on request, and keep them on the cluster's switches, until Ctrl-C.

    Run it twice, with the same description and at two addresses: one is the backup of the other.
    """
    from peelsum.control.cluster import (
        Cluster,
        RequestServer,
        Store,
        listening_socket,
        read_cluster,
        serve_requests,
    )
    from peelsum.metrics import Values, cluster_values

    if service.child:
        terminate_with_parent()

    def print_event(event: object) -> None:
        service.announce(str(event), **cast("Event", event).values())

    with report_errors(), ExitStack() as stack:
        log = service.event_logger("controller", print_event)
        description, identity = read_cluster(settings.config), service.identity
        store = stack.enter_context(Store(settings.config.parent / description.controller.state))
        socket = stack.enter_context(listening_socket(parse_address(settings.listen), identity))
        calls = ("admit", "evict", "list")
        requests = stack.enter_context(RequestServer(socket, "controller", calls, identity=identity))
        own_address = f"{settings.listen.rpartition(':')[0]}:{socket.getsockname()[1]}"
        cluster = Cluster(description, store, address=own_address, identity=identity, on_event=log)

        def read_metrics() -> Values:
            return cluster_values(cluster.totals())

        url = service.serve_metrics(stack, "cluster", read_metrics)
        signals = SignalWaiter(*ending_signals())
        service.announce(f"controller: listening at {own_address}", listen=own_address, **url)
        with cluster:
            serve_requests(
                requests,
                cluster.respond,
                lambda: None,
                lambda: signals.wait(0) or cluster.wait(0.0),
                every_s=0.2,
            )
