"""`peelsum switch`: run the softswitch, compile and export its pipelines."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peelsum.cli.options import OPTION_ERRORS, Json, Service, Tls, address, read_identity, with_settings
from peelsum.cli.output import print_json
from peelsum.options import CommandSettings, Option, OptionError
from peelsum.processes import print_message, terminate_with_parent
from peelsum.processes.progress import compile_progress_reporter
from peelsum.processes.user_errors import exit_on_errors
from peelsum.switch_settings import SwitchSettings
from peelsum.wire import DROP_PORT

if TYPE_CHECKING:
    from peelsum.softswitch.inspection.trace import Tracer
    from peelsum.softswitch.program.model import Program

app = typer.Typer(help="The softswitch and its pipelines.", no_args_is_help=True)
#: How long running P4Runtime calls may take to end before the process does.
_GRACE_S = 0.5


@app.command()
@with_settings
def run(settings: SwitchSettings, service: Service) -> None:
    """Run the softswitch until Ctrl-C. A controller loads its pipeline, for example `peelsum job admit`."""
    run_softswitch(settings, service)


def run_softswitch(settings: SwitchSettings, service: Service) -> None:
    """Run the softswitch until a signal arrives, and report where it listens."""
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
            return switch_values(**counts)

        stack = ExitStack()
        url.update(service.serve_metrics(stack, "switch", read_metrics))
        return stack

    def announce(listening: Listening) -> None:
        if service.log_format is not None:
            log_event(listening)
        host = settings.p4runtime.rpartition(":")[0]
        lines = [f"P4Runtime at {host}:{listening.grpc_port}"]
        udp_ports = {} if settings.as_bmv2 else listening.udp_ports  # BMv2 has none
        lines += [f"port {port} at {listening.host}:{udp} (UDP)" for port, udp in udp_ports.items()]
        for port, name in listening.interfaces.items():
            lines.append(f"port {port} at {name} ({listening.port_method[port]})")
        if udp_ports and listening.accepts_any_hello:
            until = "" if settings.program else "until a job is admitted, "
            lines.append(f"{until}any program on this machine can take these ports")
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
            "With --out: the CPU port of a Tofino 1, 0 to 511; 320 with four pipes. [default: 192]", 0, 511
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
            try:
                print(shutil.copyfile(path, out / path.name))
            except OSError as error:  # which would name the source
                raise OSError(error.errno, error.strerror, out / path.name) from None


_Program = Annotated[
    Path | None,
    typer.Argument(metavar="[PROGRAM.json]", help="BMv2 JSON; by default peelsum's own program."),
]


def _load_program(path: Path | None) -> Program:
    """Return the program in a BMv2 JSON file; peelsum's for None. Raises SoftswitchError or PipelineError."""
    from peelsum.pipelines import pipeline as compiled
    from peelsum.softswitch import load
    from peelsum.wire import DEFAULT_LANES

    return load(compiled(DEFAULT_LANES).json_path if path is None else path)


@app.command()
def trace(
    program: _Program = None,
    *,
    entries: Annotated[
        Path | None, typer.Option(help="Entries of tables: a runtime.json of p4lang's tutorials, or .stf.")
    ] = None,
    switch: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Use the program and entries of the switch at this address."),
    ] = None,
    device_id: Annotated[int, typer.Option(help="With --switch: its P4Runtime device_id.")] = 1,
    tls: Tls = None,
    packet: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="The packet, from its Ethernet header on, as hexadecimal digits."),
    ] = None,
    pcap: Annotated[Path | None, typer.Option(help="A pcap file, whose packets arrive in turn.")] = None,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=DROP_PORT - 1, help="For --packet and --pcap: the port at which they arrive."
        ),
    ] = 1,
    full: Annotated[bool, typer.Option("--full", help="Print all of long actions and headers.")] = False,
    json: Json = False,
) -> None:
    """Show a packet's way through a P4 program: states, tables, actions, registers, and what leaves.

    Without --packet and --pcap, the packets of an .stf file given by --entries are traced.
    """
    from peelsum.pipelines import PipelineError
    from peelsum.softswitch import SoftswitchError
    from peelsum.softswitch.inspection.entries import load_entries, packet_bytes, read_pcap
    from peelsum.softswitch.inspection.text import TraceWriter

    with exit_on_errors(SoftswitchError, PipelineError, *OPTION_ERRORS):
        tracer = _new_tracer(program, switch, device_id, tls)
        arrivals = [] if entries is None else load_entries(entries, tracer.switch)
        if packet is not None or pcap is not None:
            arrivals = [] if pcap is None else read_pcap(pcap, port)
            arrivals += [] if packet is None else [(port, packet_bytes(packet), 0)]
        if not arrivals:
            raise typer.BadParameter("--packet: is missing; give --packet HEX, --pcap FILE or an .stf file")
        traces = [tracer.trace(*arrival) for arrival in arrivals]
    if json:
        print_json(traces)
    else:
        writer = TraceWriter(tracer.program, full)
        print("\n\n".join(map(writer.text, traces)))


def _new_tracer(program: Path | None, switch: str | None, device_id: int, tls: Path | None) -> Tracer:
    """Return a tracer of a program in a file, or of a running switch. Raises typer.BadParameter."""
    from peelsum.softswitch.inspection.running import tracer_of_switch
    from peelsum.softswitch.inspection.trace import Tracer

    if switch is None:
        if tls is not None or device_id != 1:
            raise typer.BadParameter("--switch: is missing; --device-id and --tls are for a running switch")
        return Tracer(_load_program(program))
    try:
        address("the switch")(switch)
    except ValueError as error:
        raise typer.BadParameter(f"--switch: {error}") from None
    if program is not None:
        raise typer.BadParameter(f"--switch: {switch}: has a program; leave out {program}")
    return tracer_of_switch(switch, device_id, read_identity(tls))


@app.command()
def graph(
    program: _Program = None,
    output: Annotated[
        Path | None,
        typer.Option(help="File to write: .dot, or .svg, which needs Graphviz. By default, print DOT."),
    ] = None,
) -> None:
    """Draw a P4 program: the parser's states, and the tables and conditions of its pipelines."""
    from peelsum.pipelines import PipelineError
    from peelsum.softswitch import SoftswitchError
    from peelsum.softswitch.inspection.graph import as_dot, as_svg

    if output is not None and output.suffix not in (".svg", ".dot"):
        raise typer.BadParameter(f"--output: {output}: ends in neither .svg nor .dot; give one of them")
    with exit_on_errors(SoftswitchError, PipelineError, OSError):
        loaded = _load_program(program)
        text = as_svg(loaded) if output is not None and output.suffix == ".svg" else as_dot(loaded)
        if output is None:
            print(text, end="")
        else:
            try:
                output.write_text(text, encoding="utf-8")
            except OSError as error:
                raise typer.BadParameter(
                    f"--output: {output}: {error.strerror}; give a file that can be written"
                ) from None


@app.command()
def dissector() -> None:
    """Print a Wireshark dissector of the packet format, in Lua."""
    from peelsum.wire.wireshark import dissector

    print(dissector(), end="")
