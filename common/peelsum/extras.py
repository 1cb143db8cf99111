"""Error messages for optional packages that are not installed."""

from __future__ import annotations

_CPU_BUILDS = "https://download.pytorch.org/whl/cpu"


def install_command(package: str, extra: str) -> str:
    """Return the pip command that installs the extra to which `package` belongs.

    It works although no package index has peelsum: pip finds peelsum installed, and downloads only the
    extra's requirements.
    """
    command = f"pip install 'peelsum[{extra}]'"
    if package == "torch" and extra != "gpu":
        return f"{command} --extra-index-url {_CPU_BUILDS} (without it pip fetches gigabytes for GPUs)"
    return command


def missing_extra_message(package: str, extra: str) -> str:
    """Return the error message for a missing package: how to install the extra that contains it."""
    return f"{package}: is not installed; run: {install_command(package, extra)}"
