"""What to say where a package that an extra of peelsum brings is not installed."""

from __future__ import annotations

_CPU_BUILDS = "https://download.pytorch.org/whl/cpu"


def command_for(package: str, extra: str) -> str:
    """Return the command that adds `extra`, with `package` in it, to an installed peelsum.

    pip finds that peelsum is installed, and looks only for what the extra needs: peelsum is on no index.
    """
    command = f"pip install 'peelsum[{extra}]'"
    if package == "torch" and extra != "gpu":
        return f"{command} --extra-index-url {_CPU_BUILDS} (without it pip fetches gigabytes for GPUs)"
    return command


def missing(package: str, extra: str) -> str:
    """Return the words of an error: `package` is missing, and `extra` has it."""
    return f"{package}: is not installed; run: {command_for(package, extra)}"
