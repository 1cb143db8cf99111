"""`peelsum topo`: look at a network's description without running it."""

from __future__ import annotations

from typing import Annotated

import typer

from peelsum.processes.user_errors import reported
from peelsum.topology import TopologyError

app = typer.Typer(help="Look at descriptions of networks.", no_args_is_help=True)


@app.callback()
def topo() -> None:
    """Look at descriptions of networks."""


@app.command("draw")
def draw(
    topology: Annotated[
        str, typer.Argument(help="star, two_racks, or a .toml or .json file that describes a network.")
    ],
) -> None:
    """Draw a network: its switches, hosts, links and roles."""
    from peelsum.topology.description import read
    from peelsum.topology.drawing import as_text

    with reported(TopologyError):
        print(as_text(read(topology)))
