"""From a worker's rank to its port at a switch, by a job described in the environment or in a file.

It reads and connects; what the job's fields mean is the transport's affair.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from peelsum.torch.errors import HookConfigError
from peelsum.transport import SwitchSummation, job_config

#: This worker's seat, as `peelsum exec` gives it to a host's commands.
SEAT = "PEELSUM_SEAT"
#: The job for all ranks of a machine: what may stand behind `switch:`.
JOB = "PEELSUM_JOB"


def plug_in(source: str, rank: int, timeout_s: float | None) -> SwitchSummation:
    """Rank's way to sum over the switch. `source` is what stands behind `switch:`; empty: the environment.

    Either FILE, JSON of `admission` and `switch` or of a seat; or FILE@HOST:PORT, where FILE is what
    `peelsum job admit --json` printed. HOST:PORT is the switch port of rank 0; rank r's is at PORT + r.
    Raises HookConfigError or TransportError.
    """
    seat = _seat(source, rank)
    try:
        admission, host, port = seat["admission"], seat["switch_host"], seat["switch_port"]
    except KeyError as error:
        raise HookConfigError(
            f"over: the switch job has no {error}; give a seat, or FILE@HOST:PORT"
        ) from None
    job = job_config(admission)
    if not rank < job.workers:
        raise HookConfigError(
            f"over: rank {rank} has no place in a job of {job.workers} workers; "
            f"start as many processes, or admit a job of more workers"
        )
    return SwitchSummation(
        job,
        seat.get("worker_id", job.worker_ids[rank]),
        (host, port),
        timeout_s=timeout_s,
        wire=seat.get("wire", "udp-port"),
    )


def _seat(source: str, rank: int) -> dict[str, Any]:
    if not source and SEAT in os.environ:
        return _parsed(os.environ[SEAT], SEAT)
    source = source or os.environ.get(JOB, "")
    if not source:
        raise HookConfigError(
            f"over: neither {SEAT} nor {JOB} is in the environment; set one, or say 'switch:FILE@HOST:PORT'"
        )
    name, _, address = source.partition("@")
    try:
        values = _parsed(Path(name).read_text(), name)
    except OSError as error:
        raise HookConfigError(f"over: {name}: {error.strerror}; give the job's file") from error
    if address:
        values = {"admission": values, "switch": address}
    return values | _place(values["switch"], rank) if "switch" in values else values


def _place(address: object, rank: int) -> dict[str, Any]:
    host, _, port = str(address).rpartition(":")
    if not host or not port.isdecimal():
        raise HookConfigError(f"over: switch: {address!r} is no HOST:PORT; give that of rank 0's port")
    return {"switch_host": host, "switch_port": int(port) + rank}


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise HookConfigError(f"over: {where} is no JSON ({error}); give a job or a seat") from error
    if not isinstance(values, dict):
        raise HookConfigError(f"over: {where} is no JSON object; give a job or a seat")
    return values
