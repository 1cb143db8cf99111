"""What to say where a package that an extra of peelsum brings is not installed."""

from __future__ import annotations

_CPU_BUILDS = "https://download.pytorch.org/whl/cpu"


def command_for(package: str, extra: str) -> str:
    """Return the command that adds `extra`, which has `package`, to an installed peelsum.

    It works though peelsum is on no index: pip finds it installed, and fetches only what the extra needs.
    """
    command = f"pip install 'peelsum[{extra}]'"
    if package == "torch" and extra != "gpu":
        return f"{command} --extra-index-url {_CPU_BUILDS} (without it pip fetches gigabytes for GPUs)"
    return command


def missing(package: str, extra: str) -> str:
    """Return the words of an error: `package` is missing, and `extra` has it."""
    return f"{package}: is not installed; run: {command_for(package, extra)}"
