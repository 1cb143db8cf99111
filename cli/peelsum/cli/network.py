"""`peelsum up`, `exec`, `readmit` and `down`: run a network on this machine, and commands in its hosts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import typer

from peelsum.cli.options import Json
from peelsum.processes import Signalled, end_with_parent, say
from peelsum.processes.interrupts import Interrupted, Interruption
from peelsum.processes.progress import taking_time
from peelsum.processes.reports import told
from peelsum.processes.user_errors import reported
from peelsum.topology import TopologyError

if TYPE_CHECKING:
    from peelsum.topology.network import Network
    from peelsum.topology.records import Process, Record

_CHECK_EVERY_S = 0.5
#: The beginning of the line that reports that a network is up; a JSON object does, too.
READY = "run commands with"
_POLL_S = 0.05
#: How long `exec` waits for a network without a record, such as one that has just been started.
_APPEARANCE_S = 5.0
#: How long `exec` waits before it says so.
_SILENT_S = 1.0


def up(
    topology: Annotated[
        str, typer.Argument(help="star, two_racks, or a .toml or .json file that describes a network.")
    ],
    switch: Annotated[
        Literal["embedded", "bmv2"], typer.Option(help="The switches: the softswitch (embedded), or BMv2.")
    ] = "embedded",
    links: Annotated[
        Literal["udp", "veth"],
        typer.Option(help="Loopback UDP, or veth between network namespaces (needs root)."),
    ] = "udp",
    restart: Annotated[
        bool,
        typer.Option(help="Restart a switch or server that ends by itself, instead of ending the network."),
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once the network is up; `peelsum down` ends it.")
    ] = False,
    json: Json = False,
    child: Annotated[bool, typer.Option("--child", hidden=True)] = False,
) -> None:
    """Run a network until Ctrl-C or `peelsum down`, which leave nothing of it behind."""
    from peelsum.topology import description, records
    from peelsum.topology.network import UdpNetwork, VethNetwork

    if detach:
        with reported(TopologyError):
            raise SystemExit(_start_detached([word for word in sys.argv[1:] if word != "--detach"]))
    if child:
        end_with_parent()
    tell = told(child=child)
    with (
        reported(TopologyError),
        records.only_one(),
        suppress(Interrupted),  # the normal end
        Interruption() as interruption,
    ):
        kind = VethNetwork if links == "veth" else UdpNetwork
        network = kind(description.read(topology), switch, restart=restart)
        left_over = records.Record.read()
        if left_over is not None:
            records.end(left_over)
        myself = records.Process.of(os.getpid())
        assert myself is not None
        readmission = Signalled(signal.SIGUSR1)
        # Written before anything starts, so that the next `up` or `down` can clean up after a SIGKILL.
        record = records.Record(network.name, myself)
        record.write()
        try:
            with ExitStack() as stack:
                with taking_time("starting the network", tell):
                    stack.enter_context(network)
                record = _recorded(network, myself)
                _announce(network, json)
                while True:
                    asked = readmission.wait(_CHECK_EVERY_S)
                    interruption.check()
                    news = network.check()
                    if asked:
                        news.append(f"job: {network.readmit()}")
                    if news:
                        record = _recorded(network, myself)
                    for line in news:
                        _tell(network, line, json)
        finally:
            records.end(record)


def _start_detached(arguments: Sequence[str]) -> int:
    """Start `peelsum` with `arguments`; return 0 once it is ready, or its exit status if it ended.

    Until then, this process shows the command's output, and Ctrl-C ends both. All output is written to
    `up.out` and `up.err` in the folder of `records.folder`.
    """
    from peelsum.topology import records

    with ExitStack() as files:
        names = [records.folder() / name for name in ("up.out", "up.err")]
        written = [files.enter_context(name.open("a", encoding="utf-8")) for name in names]
        read = [files.enter_context(name.open(encoding="utf-8")) for name in names]
        for file in read:
            file.seek(0, 2)  # skip the output of earlier networks
        process = subprocess.Popen(
            [sys.executable, "-m", "peelsum.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=written[0],
            stderr=written[1],
            start_new_session=True,
        )
        try:
            return _until_ready(process, *read)
        except BaseException:
            process.terminate()
            process.wait()
            raise


def _until_ready(process: subprocess.Popen[bytes], out: TextIO, errors: TextIO) -> int:
    said = ""
    while True:
        status = process.poll()
        new = out.read()
        said += new
        sys.stdout.write(new)
        sys.stderr.write(errors.read())
        sys.stdout.flush()
        complete = said.splitlines() if said.endswith("\n") else said.splitlines()[:-1]
        if any(line.startswith((READY, "{")) for line in complete):
            return 0
        if status is not None:
            return status
        time.sleep(_POLL_S)


def _recorded(network: Network, up: Process) -> Record:
    """Write and return the record that `exec` needs of the network's current state."""
    from peelsum.topology.records import Record

    record = Record(network.name, up, network.places, str(network.seats_file or ""))
    record.write()
    return record


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
    with reported(TopologyError):
        record = _usable_record()
        place = record.places.get(host)
        if place is None:
            known = ", ".join(record.places)
            raise TopologyError(f"exec: {host}: is not a host of the network; use one of {known}")
        if place.namespace_of is not None:
            words = inside(place.namespace_of.pid, *words)
        try:
            inherited = {name: value for name, value in os.environ.items() if name != SEAT}
            os.execvpe(words[0], words, {**inherited, **place.environment})
        except (OSError, IndexError) as error:
            what = words[0] if words else "command"
            reason = error.strerror if isinstance(error, OSError) else "is missing"
            raise TopologyError(f"exec: {what}: {reason}; give a command") from None


def _usable_record() -> Record:
    """Wait for the network and return its record. Raises TopologyError if no network is up."""
    from peelsum.topology.records import Record

    started, told = time.monotonic(), False
    while True:
        record = Record.read()
        running = record is not None and record.up.running
        if record is not None and running and record.usable:
            return record
        waited = time.monotonic() - started
        if not running and waited >= _APPEARANCE_S:
            raise TopologyError("exec: no network is up; start one with `peelsum up`")
        if not told and waited >= _SILENT_S:
            told = True
            print(f"exec: waiting {_awaited(record if running else None)}", file=sys.stderr, flush=True)
        time.sleep(_POLL_S)


def _awaited(record: Record | None) -> str:
    if record is None:
        return f"{_APPEARANCE_S:g} s for a network: none is up yet"
    if not record.places:
        return "until the network is up"
    return "for the job's next generation: the workers of the last have finished"


def readmit() -> None:
    """Admit the job of the running network again, in a new generation, for restarted workers."""
    from peelsum.topology.records import Record
    from peelsum.transport.seats import SEAT

    with reported(TopologyError):
        before = Record.read()
        if before is None or not before.up.running:
            raise TopologyError("readmit: no network is up; start one with `peelsum up`")
        if not any(SEAT in place.environment for place in before.places.values()):
            raise TopologyError("readmit: the network has no job; add one to its description")
        os.kill(before.up.pid, signal.SIGUSR1)
        while Record.read() == before and before.up.running:  # it may have to compile
            time.sleep(_POLL_S)
        if not before.up.running:
            raise TopologyError("readmit: the job was not admitted; see the output of `peelsum up`")


def down() -> None:
    """End the network and everything that runs in it, or what is left after its `up` was killed."""
    from peelsum.topology import records

    with reported(TopologyError):
        record = records.Record.read()
        if record is None:
            print("no network is up")
            return
        records.end(record)


def _tell(network: Network, line: str, json: bool) -> None:
    if json:
        say(news=line, processes=network.processes)
    else:
        print(line, flush=True)


def _announce(network: Network, json: bool) -> None:
    if json:
        say(
            network=network.name,
            hosts=list(network.topology.hosts),
            p4runtime=network.p4runtime,
            processes=network.processes,
        )
        return
    for name, address in network.p4runtime.items():
        print(f"{name}: {network.switch}, P4Runtime at {address}")
    job = network.topology.job
    if job is not None:
        print(f"job {job.id}: workers {', '.join(job.workers)}; server {job.server}")
    example = next(iter(network.topology.hosts), "HOST")
    print(f"{READY} `peelsum exec {example} -- ...`, end with Ctrl-C or `peelsum down`")
    sys.stdout.flush()
