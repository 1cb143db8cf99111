"""`peelsum certificates`: make a CA, an identity for each part, and tokens of jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peelsum.processes.user_errors import exit_on_errors
from peelsum.tls import Role, TlsError, make_token

app = typer.Typer(help="Certificates and tokens, for connections between machines.", no_args_is_help=True)


@app.command()
def make(
    role: Annotated[Role, typer.Argument(help="What the holder of the certificate may do.")],
    name: Annotated[
        str | None, typer.Option(help="Name of the identity's folder; by default the role.")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Address or name at which clients reach the holder, besides loopback; repeat it."),
    ] = None,
    days: Annotated[int, typer.Option(help="Days for which the certificate is valid.")] = 365,
    certs: Annotated[Path, typer.Option(help="The CA's folder; a new CA is made if it is missing.")] = Path(
        "certs"
    ),
) -> None:
    """Make an identity: the folder CERTS/NAME, for --tls, with key.pem, cert.pem and the CA's ca.pem."""
    from peelsum.tls import certificates

    with exit_on_errors(TlsError, OSError):
        folder = certificates.make(certs, role, name=name or role.value, hosts=host or (), days=days)
    print(f"{folder}: {role}, {days} days; copy this folder, and no other, to its machine")


@app.command()
def token(path: Annotated[Path, typer.Argument(help="The file to write.")]) -> None:
    """Make a job's token, for `peelsum job serve --token` and for its workers' PEELSUM_TOKEN."""
    with exit_on_errors(TlsError):
        make_token(path)
    print(f"{path}: copy it to the nodes of all ranks")
