"""The files of deploy/: systemd accepts the units, and the command line their options and compose's."""

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest
import typer

from peelsum.cli.app import app

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def check(words):
    """Parse a command line without running it. Raises click's UsageError."""
    command, context = typer.main.get_command(app), None
    while hasattr(command, "commands"):
        context = click.Context(command, parent=context)
        _, command, words = command.resolve_command(context, list(words))
    command.make_context(command.name, list(words), parent=context).close()


def unit(path):
    parsed = configparser.RawConfigParser(strict=False)
    parsed.optionxform = str
    parsed.read_string(path.read_text())
    return parsed


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_the_command_of_a_unit_with_its_options_is_one(path):
    service = unit(path)["Service"]
    environment = Path(service["EnvironmentFile"].replace("%i", "1")).name
    name, _, options = (DEPLOY / "systemd" / environment).read_text().strip().partition("=")
    program, *words = shlex.split(service["ExecStart"].replace("%i", "1").replace(f"${name}", options))
    assert program == "/opt/peelsum/bin/peelsum"
    assert not [word for word in words if "$" in word]
    check(words)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_gives_up_what_it_does_not_need(path):
    service = unit(path)["Service"]
    assert service["User"] == "peelsum"
    assert service["CapabilityBoundingSet"] == ""
    assert service["NoNewPrivileges"] == service["ProtectHome"] == "yes"
    assert "MemoryDenyWriteExecute" not in service, "compiled pipelines are made at run time"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on PATH")
def test_systemd_accepts_the_units(tmp_path):
    """The user and the program of an installed machine are replaced by ones that are here."""
    for path in UNITS:
        text = path.read_text().replace("/opt/peelsum/bin/peelsum", "/bin/true")
        (tmp_path / path.name.replace("@", "@1")).write_text(text.replace("User=peelsum", "User=root"))
    paths = [str(path) for path in tmp_path.iterdir()]
    (tmp_path / "peelsum-switch.service.d").mkdir()
    shutil.copy(DEPLOY / "systemd/interfaces.conf", tmp_path / "peelsum-switch.service.d")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *paths],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    said = [line for line in done.stderr.splitlines() if "peelsum" in line]
    assert not said


def test_the_compose_file():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert services.keys() == {"switch", "job", "controller", "backup"}
    for service in services.values():
        check(shlex.split(service["command"]))
        assert service["network_mode"] == "host"
        assert service["cap_drop"] == ["ALL"]
    build = services["switch"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    assert re.search(r'ENTRYPOINT \["peelsum"\]', (DEPLOY / "Dockerfile").read_text())


def test_the_commands_of_the_guide_are_ones():
    guide = (DEPLOY.parent / "docs/how-to/deploy.md").read_text()
    lines = [
        line
        for block in re.findall(r"```(?:sh|console)\n(.*?)```", guide, re.S)
        for line in block.splitlines()
    ]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("peelsum ")]
    assert len(commands) >= 9
    for words in commands:
        check(words)
