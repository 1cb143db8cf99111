"""`peelsum simple-switch`: the softswitch with the options of BMv2's `simple_switch_grpc`.

The options are translated to `SwitchSettings`. Some of BMv2's have no effect here, and a few are refused.
"""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from peelsum.cli.options import Service, address, with_settings
from peelsum.cli.switch import run_softswitch
from peelsum.options import CommandSettings, Option, OptionError
from peelsum.switch_settings import INTERFACES, ByPort, SwitchSettings
from peelsum.wire import CPU_PORT, DROP_PORT

_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}
#: Packets that wait at a port with a rate, as in BMv2.
_QUEUE_LIMIT = 64
#: Options of `simple_switch_grpc` that have no effect here, and whether they have a value.
_IGNORED = {
    "--nanolog": True,
    "--notifications-addr": True,
    "--debugger": False,
    "--debugger-addr": True,
    "--log-flush": False,
    "--log-file-max-size": True,
    "--log-file-max-files": True,
    "--dump-packet-data": True,
    "--max-port-count": True,
    "--disable-swap": False,
    "--priority-queues": True,
    "--max-mc-groups": True,
    "--max-l1-entries": True,
    "--max-l2-entries": True,
}
#: What is missing without some of them.
_MISSED = {
    "--priority-queues": "a port has one queue here; packets leave in the order of arrival",
    "--debugger": "there is no debugger here",
    "--dump-packet-data": "packets are not logged here; use --pcap, or peelsum switch trace",
}
_PCAP = Option(
    "Write NAME_in.pcap and NAME_out.pcap of every interface there; by default in the working directory.",
    metavar="[FOLDER]",
)
_ADDRESS = Option("Where P4Runtime listens.", metavar="HOST:PORT", parse=address("the address"))


@dataclass(frozen=True)
class BMv2Options(CommandSettings):
    """The options of `simple_switch_grpc` that have an effect here."""

    interfaces: Annotated[Mapping[int, str], INTERFACES] = field(default_factory=dict)
    device_id: Annotated[int, Option("P4Runtime's device_id.", 0, 2**64 - 1)] = 0
    no_p4: Annotated[bool, Option("Start without a program.", name="--no-p4")] = False
    pcap: Annotated[Path | None, _PCAP] = None
    log_console: Annotated[bool, Option("Log to standard output.", name="--log-console")] = False
    log_file: Annotated[Path | None, Option("Log to this file, with .txt appended.")] = None
    log_level: Annotated[
        Literal["trace", "debug", "info", "warn", "error", "off"],
        Option("The least level that is logged.", name="--log-level", short="-L"),
    ] = "trace"
    grpc_server_addr: Annotated[str, _ADDRESS] = "127.0.0.1:9559"
    cpu_port: Annotated[int, Option("The controller's port.", 1, DROP_PORT - 1)] = CPU_PORT
    thrift_port: Annotated[
        int | None, Option("Close connections to this TCP port: there is no Thrift server.", 1, 65535)
    ] = None
    drop_port: Annotated[int, Option("The port of dropped packets.", DROP_PORT, DROP_PORT)] = DROP_PORT
    version: Annotated[bool, Option("Print peelsum's version.", name="--version", short="-v")] = False

    def to_settings(self, program: Path | None) -> SwitchSettings:
        """Return the softswitch's settings. Raises OptionError."""
        from peelsum.softswitch.ports.interfaces import shaped_rate

        if program is None and not self.no_p4:
            raise OptionError("the program is missing; give its JSON file, or --no-p4")
        rates = {port: rate for port, name in self.interfaces.items() if (rate := shaped_rate(name))}
        return SwitchSettings(
            ports=1,
            p4runtime=self.grpc_server_addr,
            interfaces=self.interfaces,
            port_method="packet",
            rates=ByPort(rates),
            queue_limit=_QUEUE_LIMIT if rates else None,
            capture=self.pcap,
            device_id=self.device_id,
            cpu_port=self.cpu_port,
            program=None if self.no_p4 else program,
            as_bmv2=True,
        )

    def configure_logs(self) -> None:
        """Send log records where the options say."""
        if self.log_console and self.log_file is not None:
            raise OptionError(f"--log-file: {self.log_file}: excludes --log-console; give one of them")
        handler: logging.Handler = logging.NullHandler()
        if self.log_console:
            handler = logging.StreamHandler(sys.stdout)
        elif self.log_file is not None:
            try:
                handler = logging.FileHandler(f"{self.log_file}.txt")
            except OSError as error:
                raise OptionError(f"--log-file: {self.log_file}: {error.strerror}") from None
        handler.setFormatter(logging.Formatter("[%(asctime)s] [%(levelname)s] %(message)s"))
        logger = logging.getLogger("peelsum")
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(_LEVELS[self.log_level])


class BMv2Command(TyperCommand):
    """A command whose arguments are those of `simple_switch_grpc`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; leave out those without effect, and say what a user would miss."""
        used, ignored = _split(args)
        for name in _MISSED.keys() & ignored:
            print(f"peelsum: {name}: {_MISSED[name]}", file=sys.stderr)
        return super().parse_args(ctx, used)


def _split(words: Sequence[str]) -> tuple[list[str], set[str]]:
    """Return the arguments that have an effect, in Click's form, and the names of the other options.

    `--`, which separates the options of BMv2 from those of simple_switch_grpc, is left out. `--pcap` may have
    no value; a JSON file after it is the program.
    """
    used, ignored, position = list[str](), set[str](), 0
    while position < len(words):
        word = words[position]
        name, has_value, _ = word.partition("=")
        position += 1
        if name in _IGNORED:
            ignored.add(name)
            position += _IGNORED[name] and not has_value
        elif word == "--pcap" and (
            position == len(words) or words[position].startswith("-") or words[position].endswith(".json")
        ):
            used.append("--pcap=.")
        elif word != "--":
            used.append(word)
    return used, ignored


def _refuse_thrift(port: int) -> None:
    """Close each connection to `port` at once. p4-utils waits until something listens there."""
    try:
        server = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise OptionError(f"--thrift-port: {port}: {error.strerror}; choose another port") from None
    remedy = "use P4Runtime, for example p4runtime-shell"
    print(f"peelsum: --thrift-port: simple_switch_CLI finds no Thrift server; {remedy}", file=sys.stderr)

    def close_connections() -> None:
        while True:
            server.accept()[0].close()

    Thread(target=close_connections, daemon=True).start()


@with_settings
def command(
    options: BMv2Options,
    program: Annotated[
        Path | None, typer.Argument(metavar="[PROGRAM.json]", help="BMv2 JSON to run from the start.")
    ] = None,
) -> None:
    """Run the softswitch with the options of BMv2's simple_switch_grpc, until Ctrl-C.

    Whoever reaches P4Runtime's address can program the switch: there is no TLS, as in BMv2. The address is on
    loopback unless another is given.
    """
    if options.version:
        print(f"peelsum {version('peelsum')}")
        return
    settings = options.to_settings(program)
    options.configure_logs()
    if options.thrift_port is not None:
        _refuse_thrift(options.thrift_port)
    run_softswitch(settings, Service())
