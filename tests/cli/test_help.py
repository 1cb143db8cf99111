"""Every command's help can be printed: markup in a help text that is not markup would end it."""

from collections.abc import Iterator

import click
import typer
from command_line import peelsum

from peelsum.cli.app import app


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


def test_help_is_printed() -> None:
    for path in commands(typer.main.get_command(app)):
        done = peelsum(*path, "--help")
        assert done.returncode == 0, path
        assert "Usage: peelsum" in done.stdout
        assert not done.stderr
