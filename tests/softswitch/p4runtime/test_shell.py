"""p4runtime-shell, a client that shares no code with us, drives the softswitch.

It needs protobuf 3.20, so it runs in an environment of its own, built on first use and kept in the user's
cache folder.
"""

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from snippets import play

REQUIREMENTS = ("p4runtime-shell==0.0.6", "p4runtime==1.4.1", "protobuf==3.20.3")
INSTALL_LIMIT_S = 300
PAGE = Path(__file__).parents[3] / "docs/how-to/use-p4runtime-shell.md"
PROMPT = "P4Runtime sh >>> "


def _cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Path(base) / "peelsum" / f"p4runtime-shell-0.0.6-py{version}"


def _install(environment):
    """Return why the environment could not be made; None if it was."""
    # Use this environment's pip: installing another one takes as long as everything else.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--clear", environment], check=True)
    into = ["--python", environment / "bin" / "python", "install", "-q", "--no-compile", "--retries", "1"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", *into, *REQUIREMENTS]
    try:
        done = subprocess.run(pip, capture_output=True, text=True, timeout=INSTALL_LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"pip took longer than {INSTALL_LIMIT_S} s"
    return done.stderr.strip()[-300:] if done.returncode else None


@pytest.fixture(scope="session")
def shell_python(tmp_path_factory):
    """Return the Python of an environment with p4runtime-shell. Skip if PyPI cannot be reached."""
    folder = _cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = tmp_path_factory.mktemp("shell")
    complete, python = folder / "complete", folder / "env" / "bin" / "python"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (complete.exists() and python.exists()):
            problem = _install(folder / "env")
            if problem:
                pytest.skip(f"p4runtime-shell could not be installed from PyPI: {problem}")
            complete.touch()
    return python


def exchanges(shown):
    """Return what was typed or printed after each prompt, without blank lines and the terminal's controls."""
    plain = re.sub(r"\x1b\][^\x07]*\x07|\x1b\[[0-9;]*[a-zA-Z]", "", shown)
    return ["\n".join(filter(str.strip, one.splitlines())).strip() for one in plain.split(PROMPT)[1:]]


@pytest.mark.system
def test_the_shell_prints_what_the_page_shows(shell_python, tmp_path):
    page = PAGE.read_text(encoding="utf-8")
    shown = exchanges("\n".join(re.findall(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)))
    typed = [one.partition("\n")[0] for one in shown]
    assert len(typed) > 10
    (tmp_path / "typed").write_text("\n".join(typed) + "\n", encoding="utf-8")
    (tmp_path / "page").write_text(
        page.replace(
            "p4sh/bin/python", f"IPYTHONDIR={tmp_path} < {tmp_path}/typed > {tmp_path}/printed {shell_python}"
        )
    )
    done = play(tmp_path / "page")
    assert done.returncode == 0, done.stderr
    printed = exchanges((tmp_path / "printed").read_text(encoding="utf-8"))
    assert [f"{line}\n{said}".strip() for line, said in zip(typed, printed, strict=True)] == shown
