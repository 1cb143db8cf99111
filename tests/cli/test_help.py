"""Every command's help can be printed: markup in a help text that is not markup would end it."""

import typer
from command_line import peelsum

from peelsum.cli.app import app


def commands(command, path=()):
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


def test_help_is_printed():
    for path in commands(typer.main.get_command(app)):
        done = peelsum(*path, "--help")
        assert done.returncode == 0, path
        assert "Usage: peelsum" in done.stdout
        assert not done.stderr
