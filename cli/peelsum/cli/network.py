"""`peelsum up`, `exec`, `readmit` and `down`: run a network on this machine, and commands in its hosts.

And `peelsum topo`, which draws a network.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import typer

from peelsum.cli.options import Topology, with_settings
from peelsum.options import CommandSettings, Option
from peelsum.processes import SignalWaiter, print_message, terminate_with_parent
from peelsum.processes.progress import progress_reporter, reporting_progress
from peelsum.processes.user_errors import InterruptContext, Interrupted, exit_on_errors
from peelsum.topology import TopologyError

if TYPE_CHECKING:
    from peelsum.topology.network import Network
    from peelsum.topology.records import Process, Record

topo_app = typer.Typer(help="Draw descriptions of networks.", no_args_is_help=True)
_CHECK_INTERVAL_S = 0.5
_POLL_S = 0.05
#: How the line begins that reports that a network is up; with `--json`, it begins with a brace.
_READY = "run commands with"
#: How long `exec` waits for a network to be started, and how long it waits before it says so.
_START_TIMEOUT_S, _SILENT_S = 5.0, 1.0


@dataclass(frozen=True)
class _NetworkSettings(CommandSettings):
    """The parts of a network, and how `up` runs it."""

    switch: Annotated[Literal["softswitch", "bmv2"], Option("The switches: the softswitch, or BMv2.")] = (
        "softswitch"
    )
    links: Annotated[
        Literal["udp", "veth"], Option("Loopback UDP, or veth between network namespaces (needs root).")
    ] = "udp"
    restart: Annotated[
        bool, Option("Restart a switch or server that ends by itself, instead of ending the network.")
    ] = False
    detach: Annotated[
        bool, Option("Return once the network is up; `peelsum down` ends it.", name="--detach")
    ] = False
    json: Annotated[bool, Option("Print JSON instead of text.", name="--json")] = False
    child: Annotated[bool, Option("End when standard input closes.", name="--child", hidden=True)] = False


@with_settings
def up(topology: Topology, settings: _NetworkSettings) -> None:
    """Run a network until Ctrl-C or `peelsum down`, which end all of its processes."""
    from peelsum.topology import description, records
    from peelsum.topology.network import UdpNetwork, VethNetwork

    if settings.detach:
        with exit_on_errors(TopologyError):
            raise SystemExit(_start_detached([word for word in sys.argv[1:] if word != "--detach"]))
    if settings.child:
        terminate_with_parent()
    tell = progress_reporter(child=settings.child)
    with (
        exit_on_errors(TopologyError),
        records.network_lock(),
        InterruptContext() as interruption,
    ):
        network_class = VethNetwork if settings.links == "veth" else UdpNetwork
        network = network_class(description.read(topology), settings.switch, restart=settings.restart)
        previous = records.Record.read()
        if previous is not None:
            records.end(previous)
        process = records.Process.of(os.getpid())
        assert process is not None
        readmission = SignalWaiter(signal.SIGUSR1)
        # Written before anything starts, so that the next `up` or `down` can clean up after a SIGKILL.
        record = records.Record(network.name, process)
        record.write()
        try:
            with ExitStack() as stack:
                with reporting_progress("starting the network", tell):
                    stack.enter_context(network)
                _write_record(network, process)
                with suppress(Interrupted):  # the normal end
                    _announce(network, settings.json)
                    while True:
                        readmit_requested = readmission.wait(_CHECK_INTERVAL_S)
                        interruption.check()
                        messages = network.check()
                        if readmit_requested:
                            messages.append(f"job: {network.readmit()}")
                        if messages:
                            _write_record(network, process)
                        for message in messages:
                            if settings.json:
                                print_message(news=message, processes=network.processes)
                            else:
                                print(message, flush=True)
        finally:
            records.end(record)


def _start_detached(arguments: Sequence[str]) -> int:
    """Start `peelsum` with `arguments`; return 0 once it is ready, or its exit status if it ended.

    Until then, this process shows the command's output, and Ctrl-C ends both. All output is written to
    `up.out` and `up.err` in the folder of `records.folder`.
    """
    from peelsum.topology import records

    with ExitStack() as files:
        paths = [records.folder() / name for name in ("up.out", "up.err")]
        outputs = [files.enter_context(path.open("a", encoding="utf-8")) for path in paths]
        readers = [files.enter_context(path.open(encoding="utf-8")) for path in paths]
        for reader in readers:
            reader.seek(0, os.SEEK_END)  # skip the output of earlier networks
        process = subprocess.Popen(
            [sys.executable, "-m", "peelsum.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=outputs[0],
            stderr=outputs[1],
            start_new_session=True,
        )
        try:
            before = paths[1].stat().st_size
            status = _wait_until_ready(process, *readers)
            if status and paths[1].stat().st_size == before:
                place = f"{paths[1]}: has no reason why `peelsum up` ended with status {status}"
                raise TopologyError(f"{place}; see whether the disk is full")
            return status
        except BaseException:
            process.terminate()
            process.wait()
            raise


def _wait_until_ready(process: subprocess.Popen[bytes], stdout: TextIO, stderr: TextIO) -> int:
    """Copy a process's output until it is ready or has ended; return 0, or its exit status."""
    output = ""
    while True:
        status = process.poll()
        new = stdout.read()
        output += new
        sys.stdout.write(new)
        sys.stderr.write(stderr.read())
        sys.stdout.flush()
        complete_lines = output.split("\n")[:-1]
        if any(line.startswith((_READY, "{")) for line in complete_lines):
            return 0
        if status is not None:
            return status
        time.sleep(_POLL_S)


def _write_record(network: Network, process: Process) -> None:
    """Write the record of the network's current state, which `exec` reads."""
    from peelsum.topology.records import Record

    Record(network.name, process, network.places, str(network.seats_file or "")).write()


def exec_(
    host: Annotated[str, typer.Argument(help="A host of the network, or a switch.")],
    command: Annotated[list[str], typer.Argument(help="The command and its arguments.")],
) -> None:
    """Run a command as a host of the network: in the host's namespace and with its seat, if it has them.

    Waits until the network is up and its job is in a generation that its workers have not finished.
    """
    from peelsum.topology.namespaces import inside
    from peelsum.transport.seats import SEAT

    words = command[1:] if command[0] == "--" else command
    with exit_on_errors(TopologyError):
        record = _usable_record()
        place = record.places.get(host)
        if place is None:
            hosts = ", ".join(record.places)
            raise TopologyError(f"exec: {host}: is not a host of the network; use one of {hosts}")
        if place.namespace_of is not None:
            words = inside(place.namespace_of.pid, *words)
        try:
            inherited = {name: value for name, value in os.environ.items() if name != SEAT}
            os.execvpe(words[0], words, {**inherited, **place.environment})
        except (OSError, IndexError) as error:
            program = words[0] if words else "command"
            reason = error.strerror if isinstance(error, OSError) else "is missing"
            raise TopologyError(f"exec: {program}: {reason}; give a command") from None


def _usable_record() -> Record:
    """Wait for the network and return its record. Raises TopologyError if no network is up."""
    from peelsum.topology.records import Record

    started, announced = time.monotonic(), False
    while True:
        record = Record.read()
        running = record is not None and record.up.running
        if record is not None and running and record.usable:
            return record
        waited_s = time.monotonic() - started
        if not running and waited_s >= _START_TIMEOUT_S:
            raise TopologyError("exec: no network is up; start one with `peelsum up`")
        if not announced and waited_s >= _SILENT_S:
            announced = True
            if record is None or not running:
                condition = f"{_START_TIMEOUT_S:g} s for a network: none is up yet"
            elif not record.places:
                condition = "until the network is up"
            else:
                condition = "for the job's next generation: the workers of the last have finished"
            print(f"exec: waiting {condition}", file=sys.stderr, flush=True)
        time.sleep(_POLL_S)


def readmit() -> None:
    """Admit the job of the running network again, in a new generation, for restarted workers."""
    from peelsum.topology.records import Record
    from peelsum.transport.seats import SEAT

    with exit_on_errors(TopologyError):
        record = Record.read()
        if record is None or not record.up.running:
            raise TopologyError("readmit: no network is up; start one with `peelsum up`")
        if not any(SEAT in place.environment for place in record.places.values()):
            raise TopologyError("readmit: the network has no job; add one to its description")
        os.kill(record.up.pid, signal.SIGUSR1)
        with reporting_progress("admitting the job again", progress_reporter()):  # `up` may have to compile
            while Record.read() == record and record.up.running:
                time.sleep(_POLL_S)
        if not record.up.running:
            raise TopologyError("readmit: the job was not admitted; see the output of `peelsum up`")


def down() -> None:
    """End the network and everything that runs in it, or the rest of it after its `up` was killed."""
    from peelsum.topology import records

    with exit_on_errors(TopologyError):
        record = records.Record.read()
        if record is None:
            print("no network is up")
            return
        with reporting_progress("ending the network", progress_reporter()):
            records.end(record)


def _announce(network: Network, json: bool) -> None:
    """Print that the network is up, with its switches and its job."""
    if json:
        print_message(
            network=network.name,
            hosts=list(network.topology.hosts),
            p4runtime=network.p4runtime,
            processes=network.processes,
        )
        return
    job = network.topology.job
    for name, address in network.p4runtime.items():
        kind = "BMv2" if network.switch == "bmv2" else "softswitch"
        if job and job.program:
            print(f"{name}: {kind} with P4Runtime at {address}")
        else:
            print(f"{name}: {kind}; see its packet counts with `peelsum status --p4runtime {address}`")
    if job is not None:
        program = f"; program {job.program.name}" if job.program else ""
        print(f"job {job.id}: workers {', '.join(job.workers)}; server {job.server}{program}")
    example = next(iter(network.topology.hosts), "HOST")
    print(f"{_READY} `peelsum exec {example} -- ...`, end with Ctrl-C or `peelsum down`")
    sys.stdout.flush()


@topo_app.callback()
def topo() -> None:
    """Draw descriptions of networks."""


@topo_app.command("draw")
def draw(topology: Topology) -> None:
    """Draw a network: its switches, hosts, links and roles."""
    from peelsum.topology.description import read
    from peelsum.topology.drawing import as_text

    with exit_on_errors(TopologyError):
        print(as_text(read(topology)))
