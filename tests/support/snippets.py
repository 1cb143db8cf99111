"""Runs the shell blocks of a Markdown page as a reader would type them: in order, a block a terminal.

`<!-- not run: REASON -->` before a block keeps it from being run. `<!-- goes on, ready with: TEXT -->` leaves
it running in the background once it has printed TEXT. `<!-- needs Mininet -->` has the page skipped where
Mininet is missing. As a program, in a folder with the project's examples: `python snippets.py PAGE`.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from terminals import Terminal

#: Why a block may be left out. Add to it only what no machine of ours can do.
REASONS = (
    "installs",
    "needs BMv2",
    "needs Graphviz",
    "needs Open MPI",
    "needs a checkout",
    "needs files of your own",
    "needs interfaces of your own",
    "needs the SDE",
    "needs torchft",
    "takes a quarter of an hour",
)
#: How long a block may take, in seconds, on a machine that is busy and has nothing compiled.
PATIENCE_S = 900.0
_BLOCK = re.compile(r"(?:^<!-- ([^\n]*) -->\n)?^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^(?:\$ )?(?:peelsum|python|torchrun|make|pip|sudo|for \w+ in)\b(?!:)", re.MULTILINE)


class SnippetError(Exception):
    """A block with an invalid mark, or one that failed."""


@dataclass(frozen=True)
class Block:
    """A block. `ready_with`: the output of a background block once it is ready; None for other blocks."""

    text: str
    ready_with: str | None = None
    needs_mininet: bool = False


def blocks(page):
    """The shell blocks of a page that are to be run. Raises SnippetError for marks that are not known."""
    runnable = []
    for mark, language, text in _BLOCK.findall(page):
        kind, _, rest = mark.partition(": ")
        if language != "sh":
            if not language and _COMMAND.search(text):
                raise SnippetError(f"a block of commands that is not marked as sh: {text}")
        elif kind == "not run" and rest in REASONS:
            continue
        elif kind == "goes on, ready with" and rest:
            runnable.append(Block(text, rest))
        elif mark in ("", "needs Mininet"):
            runnable.append(Block(text, needs_mininet=bool(mark)))
        else:
            raise SnippetError(
                f"{mark}: is not a known mark; use `goes on, ready with`, `needs Mininet`, or `not run` with "
                "a known reason"
            )
    return runnable


def run(runnable):
    """Run blocks in order. Raises SnippetError at the first that fails."""
    with ExitStack() as stack:
        for block in runnable:
            command = ["bash", "-e", "-c", block.text]
            terminal = stack.enter_context(closing(Terminal(command, Path.cwd(), PATIENCE_S)))
            try:
                if block.ready_with:
                    terminal.wait_for(block.ready_with)
                else:
                    terminal.rest()
            except (AssertionError, subprocess.TimeoutExpired):
                raise SnippetError(f"failed:\n{block.text}\n{terminal.shown}") from None
            if re.search(r"^(peelsum: |Traceback|.*\bWRONG\b)", terminal.shown, re.MULTILINE):
                raise SnippetError(f"went wrong:\n{block.text}\n{terminal.shown}")
            print(terminal.shown, flush=True)


def play(page):
    """Run a page's blocks in a clean environment, with the commands on PATH and a network of its own.

    As in a checkout, `examples` and `.venv` are in the folder where they run. Without the right to have a
    network, the ports that the page names must be free.
    """
    root = Path(__file__).parents[2]
    with tempfile.TemporaryDirectory(prefix="peelsum-snippets-") as folder:
        shutil.copytree(root / "examples", Path(folder) / "examples")
        (Path(folder) / ".venv").symlink_to(sys.prefix)
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": os.environ.get("HOME", folder),
            "XDG_RUNTIME_DIR": folder,
            "LANG": "C.UTF-8",
        }
        alone = ["unshare", "--net"] if os.geteuid() == 0 and shutil.which("unshare") else []
        command = [*alone, sys.executable, __file__, str(page)]
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )


def main():
    if shutil.which("ip"):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=False, stderr=subprocess.DEVNULL)
    try:
        run(blocks(Path(sys.argv[1]).read_text(encoding="utf-8")))
    except SnippetError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
