"""The container file is one that engines read, and takes packages from Debian and pip only."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
KNOWN = {"FROM", "RUN", "COPY", "ENV", "WORKDIR", "CMD"}
FETCHERS = re.compile(r"\b(curl|wget|git|ADD|npm|cargo|apt-key|add-apt-repository)\b")


def instructions() -> list[tuple[str, str]]:
    """The file's instructions with their arguments, continued lines joined."""
    lines = (ROOT / "Containerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    return [
        (word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)
    ]


def test_every_instruction_is_known_and_debian_is_the_base() -> None:
    found = instructions()
    assert found[0] == ("FROM", "docker.io/library/debian:bookworm-slim")
    assert {word for word, _ in found} == KNOWN
    (command,) = [json.loads(rest) for word, rest in found if word == "CMD"]
    assert command == ["peelsum", "demo"]


def test_every_command_is_valid_shell_and_fetches_by_apt_and_pip_only() -> None:
    for word, rest in instructions():
        if word == "RUN":
            assert subprocess.run(["sh", "-n", "-c", rest], check=False).returncode == 0
        assert not FETCHERS.search(rest)


def test_the_extras_are_those_of_the_project() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (asked,) = re.findall(r"/src\[([a-z,]+)\]", (ROOT / "Containerfile").read_text())
    assert set(asked.split(",")) <= set(extras)
    for _, path in (("COPY", "examples"), ("COPY", "constraints.txt")):
        assert (ROOT / path).exists()
