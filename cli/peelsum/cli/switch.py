"""`peelsum switch`: run the softswitch, compile and export its pipelines; and `peelsum server`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from peelsum.cli.options import OPTION_ERRORS, Service, address, parse_address, with_settings
from peelsum.options import CommandSettings, Option, OptionError
from peelsum.processes import print_message, terminate_with_parent
from peelsum.processes.children import ADMISSION
from peelsum.processes.progress import compile_progress_reporter
from peelsum.processes.user_errors import exit_on_errors
from peelsum.reading import parse_json, read_text
from peelsum.switch_settings import SwitchSettings

app = typer.Typer(help="The softswitch and its pipelines.", no_args_is_help=True)
server_app = typer.Typer(help="The aggregation server of a job.", no_args_is_help=True)
#: How long running P4Runtime calls may take to end before the process does.
_GRACE_S = 0.5


@app.command()
@with_settings
def run(settings: SwitchSettings, service: Service) -> None:
    """Run the softswitch until Ctrl-C. A controller loads its pipeline, for example `peelsum job admit`."""
    from peelsum.logs import configure, log_event
    from peelsum.metrics import Values, switch_values
    from peelsum.softswitch import SoftswitchError
    from peelsum.softswitch.p4runtime import THREAD_PREFIX
    from peelsum.softswitch.process import Listening, SwitchCounts
    from peelsum.softswitch.process import run as run_switch

    url: dict[str, str] = {}

    def observe(read_counts: Callable[[], SwitchCounts]) -> ExitStack:
        def read_metrics() -> Values:
            counts = asdict(read_counts())
            return switch_values(counts["lanes"], counts["verdicts"], counts["ports"], counts["queues"])

        stack = ExitStack()
        url.update(service.serve_metrics(stack, "switch", read_metrics))
        return stack

    def announce(listening: Listening) -> None:
        if service.log_format is not None:
            log_event(listening)
        host = settings.p4runtime.rpartition(":")[0]
        lines = [f"P4Runtime at {host}:{listening.grpc_port}"]
        lines += [f"port {port} at {listening.host}:{udp} (UDP)" for port, udp in listening.udp_ports.items()]
        for port, name in listening.interfaces.items():
            lines.append(f"port {port} at {name} ({listening.port_method[port]})")
        if listening.accepts_any_hello:
            lines.append("until a job is admitted, any program on this machine can take these ports")
        service.announce("\n".join(lines), **asdict(listening), **url)

    if service.child:
        terminate_with_parent()
    compile_progress_reporter(child=service.child)
    with exit_on_errors(SoftswitchError, *OPTION_ERRORS):
        if service.log_format is not None:
            configure(service.log_format, "switch", {"device_id": settings.device_id})
        counts = run_switch(settings, identity=service.identity, observe=observe, announce=announce)
    if service.json:
        print_message(**asdict(counts))
    # End the process at once if a pipeline is still being compiled, because that cannot be interrupted.
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_PREFIX)]
    for thread in threads:
        thread.join(_GRACE_S)
    if any(thread.is_alive() for thread in threads):
        sys.stdout.flush()
        os._exit(0)


@dataclass(frozen=True)
class _Compilation(CommandSettings):
    """The target of the compilation, and its output folder."""

    tofino: Annotated[
        bool, Option("Compile for Tofino 1 and 2 instead, and rewrite the reports.", name="--tofino")
    ] = False
    out: Annotated[
        Path | None,
        Option("With --tofino: folder for the compiler's output, which controllers load, by device."),
    ] = None
    processor_port: Annotated[
        int | None,
        Option(
            "With --out: the CPU port of a Tofino 1, 0 to 511; 320 with four pipes. [default: 192]",
            0,
            511,
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out is not None and not self.tofino:
            raise OptionError(f"--out: {self.out}: applies to --tofino only; give that too")
        if self.processor_port is not None and self.out is None:
            port = self.processor_port
            raise OptionError(f"--processor-port: {port}: the committed reports are for 192; give --out too")


@app.command("compile")
@with_settings
def compile_(settings: _Compilation) -> None:
    """Compile the P4 program for BMv2 and the softswitch, or for Tofino, and rewrite the committed output.

    Needs a checkout and p4c-bm2-ss, or with --tofino p4c-barefoot and bfas.
    """
    from peelsum.pipelines.artifacts import PipelineError, compile_pipelines
    from peelsum.pipelines.tofino import ARCHITECTURES, compile_for, report_path

    out, cpu_port = settings.out, settings.processor_port
    with exit_on_errors(PipelineError, OSError):
        if not settings.tofino:
            for pipeline in compile_pipelines():
                print(f"{pipeline.lanes} lanes: {pipeline.json_path}")
        elif cpu_port is not None and out is not None:  # the reports are those of the default CPU port
            report = compile_for("tofino", out / "tofino", processor_port=cpu_port)
            print(f"{report.splitlines()[0]}; see {out / 'tofino'}")
        else:
            for device in ARCHITECTURES:
                report = compile_for(device, out / device if out else None)
                report_path(device).write_text(report)
                print(f"{report.splitlines()[0]}; see {report_path(device)}")


@app.command()
def pipeline(
    lanes: Annotated[int, typer.Argument(help="Lanes of a packet: 32, 64, ... 2048.")],
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path(),
) -> None:
    """Write a compiled pipeline, BMv2 JSON and P4Info, for another switch or controller."""
    import shutil

    from peelsum.pipelines import PipelineError
    from peelsum.pipelines import pipeline as compiled

    with exit_on_errors(PipelineError, OSError):
        out.mkdir(parents=True, exist_ok=True)
        files = compiled(lanes)
        for path in (files.json_path, files.p4info_path):
            print(shutil.copyfile(path, out / path.name))


@app.command()
def dissector() -> None:
    """Print a Wireshark dissector of the packet format, in Lua."""
    from peelsum.wire.wireshark import dissector

    print(dissector(), end="")


@dataclass(frozen=True)
class _ServerSettings(CommandSettings):
    """The job, and the switch port of its server."""

    switch: Annotated[
        str,
        Option("The switch port to connect to, host:port (UDP).", parse=address("the switch port")),
    ]
    admission: Annotated[
        str, Option("Output of `peelsum job admit --json`, or a file of it.", envvar=ADMISSION)
    ]
    ethernet: Annotated[
        bool, Option("The switch is on this host's network, not a UDP socket that answers hellos.")
    ] = False
    seats: Annotated[Path | None, Option("A file to remove when all workers have finished.", hidden=True)] = (
        None
    )


@server_app.command("run")
@with_settings
def run_server(settings: _ServerSettings, service: Service) -> None:
    """Serve a job until Ctrl-C, or until all its workers have finished."""
    from peelsum.metrics import Values, server_values
    from peelsum.transport import AggregationService, Event, JobFinished, TransportError, job_config

    if service.child:
        terminate_with_parent()
    compile_progress_reporter(child=service.child)

    def on_event(event: Event) -> None:
        # Removed before workers learn that they have finished, so that none of them ends earlier.
        if settings.seats is not None and isinstance(event, JobFinished):
            settings.seats.unlink(missing_ok=True)
        log(event)

    def print_event(event: object) -> None:
        if not service.json:
            print(event, file=sys.stderr, flush=True)

    with exit_on_errors(TransportError, *OPTION_ERRORS), ExitStack() as stack:
        config = job_config(_read_admission(settings.admission))
        log = service.event_logger("server", print_event, job=config.job_id, generation=config.generation)
        server = stack.enter_context(
            AggregationService(
                config, parse_address(settings.switch), wire="ethernet" if settings.ethernet else "udp-port"
            )
        )

        def read_metrics() -> Values:
            return server_values({config.job_id: asdict(server.stats())})

        url = service.serve_metrics(stack, "server", read_metrics)
        signals: list[int] = []

        def stop(number: int, _: object) -> None:
            signals.append(number)
            server.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        line = f"job {config.job_id}: serving at {settings.switch}"
        service.announce(line, job_id=config.job_id, switch=settings.switch, **url)
        statistics = asdict(server.run(on_event))
    service.announce("\n".join(f"{name} = {value}" for name, value in statistics.items()), **statistics)
    if service.child and signals and not server.finished:
        # A parent takes the status 0 for a finished job, and would not start the job's server again.
        signal.signal(signals[0], signal.SIG_DFL)
        signal.raise_signal(signals[0])


def _read_admission(text: str) -> dict[str, Any]:
    """Return the JSON object in `text`, or in the file that it names. Raises OptionError."""
    try:
        if not text.lstrip().startswith("{"):
            text = read_text(Path(text))
        values = parse_json(text)
    except OSError as error:
        raise OptionError(f"admission: {text}: {error.strerror}; give JSON or the path of a file") from None
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise OptionError("admission: is not a JSON object; give what `peelsum job admit --json` printed")
    return values
