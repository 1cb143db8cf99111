"""The `peelsum` command: its subcommands, and how usage errors are printed."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Annotated, Any

import typer

from peelsum.cli import (
    bench,
    certificates,
    doctor,
    job,
    network,
    predict,
    server,
    simple_switch,
    switch,
    trace,
)
from peelsum.cli.demo import command as demo
from peelsum.cli.demo import worker as demo_worker
from peelsum.processes.user_errors import INTERRUPTED, USER_ERROR, check_stdout

app = typer.Typer(
    name="peelsum",
    help="Exact in-network aggregation of sparse gradients.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(switch.app, name="switch")
_HELP = {"help_option_names": ["-h", "--help"]}  # as in BMv2
app.command("simple-switch", cls=simple_switch.BMv2Command, context_settings=_HELP)(simple_switch.command)
app.add_typer(job.app, name="job")
app.add_typer(job.controller_app, name="controller")
app.add_typer(server.app, name="server")
app.add_typer(certificates.app, name="certificates")
app.add_typer(bench.app, name="bench")
app.add_typer(network.topo_app, name="topo")
app.add_typer(trace.app, name="trace")
app.command("demo")(demo.command)
app.command("demo-worker", hidden=True)(demo_worker.command)
app.command("status")(job.status)
app.command("doctor")(doctor.command)
app.command("plan")(predict.plan)
app.command("simulate")(predict.simulate)
app.command("up")(network.up)
app.command("exec", context_settings={"allow_interspersed_args": False})(network.exec_)
app.command("readmit")(network.readmit)
app.command("down")(network.down)


@app.callback(invoke_without_command=True)
def options(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Exact in-network aggregation of sparse gradients."""
    if show_version:
        print(f"peelsum {version('peelsum')}")
        raise typer.Exit


def run() -> None:
    """Run the command line. A usage error prints one line on stderr and exits with status 2."""
    # gRPC also logs to stderr what we report as an error.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with check_stdout():
        try:
            sys.exit(app(prog_name="peelsum", standalone_mode=False))
        except (typer.Abort, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        except Exception as error:
            # Typer has its own copy of Click's exceptions, without public names.
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()  # type: ignore[attr-defined]
            elif hasattr(error, "format_message"):
                print(f"peelsum: {_usage_message(error)}", file=sys.stderr)
            else:
                raise
            sys.exit(USER_ERROR)


def _usage_message(error: Any) -> str:
    """Return the message of one of Typer's usage errors: the parameter, its value and the remedy."""
    message = " ".join(error.format_message().split()).removeprefix("Invalid value: ")
    if type(error).__name__ == "MissingParameter":
        return f"{message.removesuffix('.')}; see `{error.ctx.command_path} --help`"
    if not hasattr(error.__cause__, "errors"):
        return message
    (reason, *_) = error.__cause__.errors()  # Typer converts values with Pydantic
    name = message.removeprefix("Invalid value for ").partition(": ")[0].replace("'", "")
    kind = {"int_parsing": "a whole number", "float_parsing": "a number"}.get(reason["type"])
    if kind is not None:
        return f"{name}: {reason['input']!r} is not {kind}; give one"
    if reason["type"] == "value_error":  # Typer's, of a choice; it has the value
        return f"{name}: {reason['msg'].removeprefix('Value error, ').removesuffix('.')}"
    return f"{name}: {reason['input']!r}: {reason['msg'][0].lower()}{reason['msg'][1:]}"
