"""`peelsum switch`: run the softswitch; rebuild its pipelines."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from peelsum.cli.options import (
    OPTION_ERRORS,
    ChildOf,
    Json,
    LogFormat,
    Metrics,
    Tls,
    address,
    identity,
    require_device_id,
    serve_metrics,
    within,
)
from peelsum.processes import end_with_parent, say
from peelsum.processes.reports import told_of_compiling
from peelsum.processes.user_errors import reported

app = typer.Typer(help="The softswitch and its pipelines.", no_args_is_help=True)
#: How long running P4Runtime calls may take to end.
_LAST_CALLS_S = 0.5


@app.command()
def run(
    ports: Annotated[int, typer.Option(help="Number of switch ports, numbered from 1.")] = 8,
    p4runtime: Annotated[str, typer.Option(help="Where P4Runtime listens; port 0 chooses a free one.")] = (
        "127.0.0.1:9559"
    ),
    udp_base: Annotated[
        int | None, typer.Option(help="Port p listens on UDP port udp_base + p; by default on a free one.")
    ] = None,
    udp_port: Annotated[
        list[str] | None,
        typer.Option(metavar="PORT@UDP", help="The UDP port of one port, instead of udp_base; repeat it."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address of the UDP ports.")] = "127.0.0.1",
    interface: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PORT@NAME", help="A port on a network interface, instead of UDP; repeat it for others."
        ),
    ] = None,
    ports_by: Annotated[
        Literal["auto", "xdp", "packet"],
        typer.Option(help="How frames reach interfaces' ports: AF_XDP, AF_PACKET, or the first that works."),
    ] = "auto",
    join: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PORT@HOST:UDP", help="A port joined to another switch's UDP port; repeat it for others."
        ),
    ] = None,
    loss: Annotated[
        float, typer.Option(help="Share of datagrams that each port loses in each direction, from 0 to 1.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the choice of lost datagrams.")] = 0,
    port_rate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[PORT@]MBIT", help="Mbit/s at which all ports, or one port, send; repeat it for others."
        ),
    ] = None,
    port_queue: Annotated[
        int | None,
        typer.Option(help="Packets that may wait at a port with a rate, by default 1024; more are dropped."),
    ] = None,
    port_delay: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[PORT@]MS",
            help="Milliseconds that frames from all ports, or one port, are under way; repeat it.",
        ),
    ] = None,
    arrival_delay: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[PORT@]MS", help="The same for frames to all ports, or to one port; repeat it."
        ),
    ] = None,
    schedule: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Changes of rates and delays, TOML or CSV, from the first frame on."
        ),
    ] = None,
    capture: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write pcap files of every port there, one for each direction."),
    ] = None,
    tls: Tls = None,
    metrics: Metrics = None,
    log_format: LogFormat = None,
    device_id: Annotated[int, typer.Option(help="P4Runtime's device_id.")] = 1,
    json: Json = False,
    child: ChildOf = False,
) -> None:
    """Run the softswitch until Ctrl-C. A controller loads its pipeline: see `peelsum job admit`."""
    from peelsum.logs import configure, log_event
    from peelsum.metrics import Values, switch_values
    from peelsum.softswitch import SoftswitchError
    from peelsum.softswitch.ports.schedule import load_schedule
    from peelsum.softswitch.process import Listening, SwitchCounts
    from peelsum.softswitch.process import run as run_switch
    from peelsum.softswitch.runtime.queues import QUEUE_LIMIT

    url: dict[str, str] = {}

    def observe(count: Callable[[], SwitchCounts]) -> ExitStack:
        def read() -> Values:
            now = asdict(count())
            return switch_values(now["lanes"], now["verdicts"], now["ports"], now["queues"])

        stack = ExitStack()
        url.update(serve_metrics(stack, metrics, "switch", read, tls, json))
        return stack

    def announce(listening: Listening) -> None:
        if log_format is not None:
            log_event(listening)
        if json:
            say(**asdict(listening), **url)
            return
        print(f"P4Runtime at {p4runtime.rpartition(':')[0]}:{listening.grpc_port}")
        for port, udp in listening.udp_ports.items():
            print(f"port {port} at {listening.host}:{udp} (UDP)")
        for port, name in listening.interfaces.items():
            print(f"port {port} at {name} ({listening.ports_by[port]})")
        if listening.are_open:
            print("until a job is admitted, every program of this machine may take these ports")
        sys.stdout.flush()

    within("--seed", seed, 0, 2**63 - 1)
    require_device_id(device_id)
    if port_queue is not None and not port_rate and schedule is None:
        raise typer.BadParameter(f"port-queue: {port_queue}: no port has a queue; give --port-rate too")
    interfaces = _by_port("interface", interface or [], "eth0")
    numbered = interfaces or range(1, ports + 1)
    joined = _by_port("join", join or [], "127.0.0.1:7001")
    joins = {port: address(text, "the other switch's port") for port, text in joined.items()}
    if child:
        end_with_parent()
    told_of_compiling(child=child)
    with reported(SoftswitchError, *OPTION_ERRORS):
        if log_format is not None:
            configure(log_format, "switch", {"device_id": device_id})
        counts = run_switch(
            ports,
            grpc_address=p4runtime,
            udp_host=host,
            udp_base=_udp_ports(udp_port) if udp_port else udp_base,
            interfaces=interfaces,
            ports_by=ports_by,
            joins=joins,
            loss=loss,
            seed=seed,
            rates=_numbers("port-rate", "Mbit/s", port_rate or [], numbered),
            queue_limit=QUEUE_LIMIT if port_queue is None else port_queue,
            delays=_numbers("port-delay", "ms", port_delay or [], numbered),
            arrival_delays=_numbers("arrival-delay", "ms", arrival_delay or [], numbered),
            schedule=None if schedule is None else load_schedule(schedule),
            capture=capture,
            identity=identity(tls),
            device_id=device_id,
            observe=observe,
            announce=announce,
        )
    if json:
        say(**asdict(counts))
    _leave()


def _leave() -> None:
    """End the process at once if a pipeline is still being compiled, which cannot be interrupted."""
    from peelsum.softswitch.p4runtime import THREAD_PREFIX

    threads = [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_PREFIX)]
    for thread in threads:
        thread.join(_LAST_CALLS_S)
    if any(thread.is_alive() for thread in threads):
        sys.stdout.flush()
        os._exit(0)


def _udp_ports(given: list[str]) -> dict[int, int]:
    """Return UDP ports by switch port."""
    found = _by_port("udp-port", given, "41001")
    for port, udp in found.items():
        if not udp.isdecimal() or not 0 < int(udp) <= 0xFFFF:
            raise typer.BadParameter(f"udp-port: {port}@{udp}: {udp} is not a UDP port; give 1 to 65535")
    return {port: int(udp) for port, udp in found.items()}


def _numbers(option: str, unit: str, given: list[str], ports: Iterable[int]) -> dict[int, float]:
    """Return numbers by port; that of a named port replaces that of all ports."""
    found: dict[int, float] = {}
    for text in sorted(given, key=lambda text: "@" in text):
        port, _, number = text.rpartition("@")
        if port and not port.isdecimal():
            raise typer.BadParameter(f"{option}: {text}: {port} is not a port; give a number, as 1@1000")
        try:
            found |= dict.fromkeys([int(port)] if port else ports, float(number))
        except ValueError:
            raise typer.BadParameter(
                f"{option}: {number!r}: is not a number; give {unit}, as 1000 or 1@1000"
            ) from None
    return found


def _by_port(option: str, given: list[str], example: str) -> dict[int, str]:
    """Return the values of PORT@VALUE by switch port."""
    found: dict[int, str] = {}
    for text in given:
        port, _, value = text.partition("@")
        if not port.isdecimal() or not value:
            raise typer.BadParameter(f"{option}: {text}: give PORT@VALUE, for example 1@{example}")
        if int(port) in found or value in found.values():
            raise typer.BadParameter(f"{option}: {text}: is used twice; give every port a value of its own")
        found[int(port)] = value
    return found


@app.command("compile")
def compile_(
    tofino: Annotated[
        bool, typer.Option("--tofino", help="Compile for Tofino 1 and 2 instead, and rewrite the reports.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="With --tofino: keep the compiler's output and what a controller loads, by device."
        ),
    ] = None,
    processor_port: Annotated[
        int | None,
        typer.Option(
            help="With --out: the processor's port on a Tofino 1, 0 to 511; 320 with four pipes. "
            "[default: 192]"
        ),
    ] = None,
) -> None:
    """Rebuild the committed pipelines of switch/p4, by p4c-bm2-ss, or by p4c-barefoot and bfas."""
    from peelsum.pipelines.artifacts import PipelineError, compile_pipelines
    from peelsum.pipelines.tofino import ARCHITECTURES, compile_for, report_path

    if out is not None and not tofino:
        raise typer.BadParameter(f"out: {out}: applies to --tofino only; give that too")
    if processor_port is not None and out is None:
        raise typer.BadParameter(
            f"processor-port: {processor_port}: the committed reports are for 192; give --out, too"
        )
    if processor_port is not None:
        within("--processor-port", processor_port, 0, 511)
    with reported(PipelineError, OSError):
        if not tofino:
            for built in compile_pipelines():
                print(f"{built.lanes} lanes: {built.json_path}")
            return
        if processor_port is not None and out is not None:
            report = compile_for("tofino", out / "tofino", processor_port=processor_port)
            print(f"{report.splitlines()[0]}; see {out / 'tofino'}")
            return
        for device in ARCHITECTURES:
            report = compile_for(device, out / device if out else None)
            report_path(device).write_text(report)
            print(f"{report.splitlines()[0]}; see {report_path(device)}")


@app.command()
def pipeline(
    lanes: Annotated[int, typer.Argument(help="Lanes of a packet: 32, 64, ... 2048.")],
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path(),
) -> None:
    """Write a compiled pipeline, BMv2 JSON and P4Info, for a switch or a controller of your own."""
    import shutil

    from peelsum.pipelines import PipelineError
    from peelsum.pipelines import pipeline as compiled

    with reported(PipelineError, OSError):
        out.mkdir(parents=True, exist_ok=True)
        files = compiled(lanes)
        for path in (files.json_path, files.p4info_path):
            print(shutil.copyfile(path, out / path.name))


@app.command()
def dissector() -> None:
    """Print a Wireshark dissector of the packet format, in Lua."""
    from peelsum.wire.wireshark import dissector

    print(dissector(), end="")
