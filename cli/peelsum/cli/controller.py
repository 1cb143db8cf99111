"""`peelsum controller`: the controller of several switches and jobs."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING, Annotated, cast

import typer

from peelsum.cli.options import (
    ChildOf,
    Json,
    LogFormat,
    Metrics,
    Tls,
    identity,
    logged,
    reporting,
    serve_metrics,
)
from peelsum.cli.options import address as host_and_port
from peelsum.processes import Signalled, end_with_parent, say

if TYPE_CHECKING:
    from peelsum.control.cluster import Event

app = typer.Typer(help="The controller of several switches and jobs.", no_args_is_help=True)
_LOOK_EVERY_S = 0.2


@app.command()
def run(
    config: Annotated[Path, typer.Option(help="The cluster's description, TOML.")],
    listen: Annotated[
        str, typer.Option(help="Where `peelsum job --controller` asks, host:port; port 0 chooses a free one.")
    ] = "127.0.0.1:9564",
    tls: Tls = None,
    metrics: Metrics = None,
    log_format: LogFormat = None,
    json: Json = False,
    child: ChildOf = False,
) -> None:
    """Admit and evict jobs on request, and keep them on the cluster's switches, until Ctrl-C.

    Run it twice, with the same description and at two addresses: one is the backup of the other.
    """
    from peelsum.control.cluster import Cluster, Requests, Store, answer_all, listening, read_cluster
    from peelsum.metrics import Values, cluster_values

    if child:
        end_with_parent()
    place = host_and_port(listen, "the address to listen at")

    def print_event(event: object) -> None:
        if json:
            say(**cast("Event", event).values())
        else:
            print(event, flush=True)

    with reporting(), ExitStack() as stack:
        tell = logged(log_format, "controller", print_event)
        described, certificate = read_cluster(config), identity(tls)
        store = stack.enter_context(Store(config.parent / described.controller.state))
        socket = stack.enter_context(listening(place, certificate))
        calls = ("admit", "evict", "list")
        requests = stack.enter_context(Requests(socket, "controller", calls, identity=certificate))
        here = f"{listen.rpartition(':')[0]}:{socket.getsockname()[1]}"
        cluster = Cluster(described, store, address=here, identity=certificate, tell=tell)

        def read() -> Values:
            return cluster_values(cluster.totals())

        url = serve_metrics(stack, metrics, "cluster", read, tls, json)
        ended = Signalled(SIGINT, SIGTERM)
        if json:
            say(listen=here, **url)
        else:
            print(f"controller: asked at {here}", flush=True)
        with cluster:
            answer_all(
                requests,
                cluster.respond,
                lambda: None,
                lambda: ended.wait(0) or cluster.wait(0.0),
                every_s=_LOOK_EVERY_S,
            )
