"""Connects a rank to its port at a switch, for a job given by the environment, a file or a controller."""

from __future__ import annotations

import json
import logging
import os
import re
import ssl
from contextlib import ExitStack, closing
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]  # not exported, but documented

from peelsum.logs import LogsError, configure
from peelsum.metrics import PARTS, MetricsError, MetricsServer, metrics_address, worker_values
from peelsum.reading import parse_json, read_text
from peelsum.tls import Identity, TlsError, read_token
from peelsum.tls.identity import tls_reason
from peelsum.torch.errors import HookConfigError
from peelsum.torch.starts import numbered, only_here
from peelsum.transport import SwitchSummation, job_config
from peelsum.transport.joining import join_limit_s
from peelsum.transport.lease import CONNECT_S, Lease
from peelsum.transport.seats import SEAT

#: The job for all ranks of a machine, in the form that follows `switch:`.
JOB = "PEELSUM_JOB"
#: For a controller on another machine: the folder of this worker's identity, and the file of the job's token.
TLS, TOKEN = "PEELSUM_TLS", "PEELSUM_TOKEN"
#: This host's interfaces on the switches' wires: for each local rank in turn, one for each plane.
INTERFACES = "PEELSUM_INTERFACES"
#: HOST:PORT of rank 0's metrics; rank r serves its own at PORT + r.
METRICS = "PEELSUM_METRICS"
#: `json` or `console`: log to stderr in this form, with job, generation and worker.
LOG = "PEELSUM_LOG"
_log = logging.getLogger("peelsum")
_CHECK_TLS = f"check that {TLS} is of the controller's CA and valid today, and that the controller has TLS"
#: A controller's address in forms other than //HOST:PORT, to suggest the right one.
_CONTROLLER = re.compile(r"(?:\w+:/*|/)?((?:[^/@:\[\]]+|\[[\da-fA-F:.]+\]):\d+)(?:/.*)?")
_LAST_PORT = 65535


def connect_rank(
    source: str, rank: int, ranks: int, store: Store, timeout_s: float | None
) -> SwitchSummation:
    """Connect a rank to the switch, in a job of as many workers as there are ranks.

    `source` is what follows `switch:`; if empty, the environment is used. It has one of these forms:

    - FILE: JSON with `admission` and `switch`, or a seat.
    - FILE@HOST:PORT: FILE is the output of `peelsum job admit --json`.
    - //HOST:PORT: a `peelsum job serve`, which admits the job again for every start. Rank 0 sends the request
      and passes the response to all ranks that share `store`.

    A switch's HOST:PORT is the port of rank 0; rank r connects to PORT + r. Several of these, separated by
    commas, are the planes of the job, for which the rank has a port in each. The first sum does not wait for
    workers that start later: `when_all_are_ready` does.
    Raises HookConfigError or TransportError.
    """
    held = ExitStack()
    try:
        summation = _connected(_planes(source, rank, store, held), rank, ranks, timeout_s, held)
        if log_format := os.environ.get(LOG):
            _log_as_worker(log_format, summation)
        if where := os.environ.get(METRICS):
            held.enter_context(_metrics(where, rank, summation))
        return summation
    except BaseException:
        held.close()
        raise


def connect_group(
    source: str, rank: int, ranks: int, store: Store, timeout_s: float | None
) -> SwitchSummation | str:
    """Connect a rank of a further group to the switch, in a job of the group's own.

    The controllers that `source` names, or else the environment, admit the job. If there are none, or if one
    refuses, every rank gets the reason. Raises HookConfigError or TransportError.
    """
    given = "over" if source else SEAT if SEAT in os.environ else JOB
    planes = "" if given == SEAT else source or os.environ.get(JOB, "")
    if not all(one.startswith("//") for one in planes.split(",")):
        return f"{given} names no `peelsum job serve`"
    held = ExitStack()
    try:
        key = numbered(store, "job", rank)
        answers = [
            _admitted(one[2:], rank, store, f"{key}/{plane}", held, ranks)
            for plane, one in enumerate(planes.split(","))
        ]
        for refused in filter(None, (one.get("refused") for one in answers)):
            held.close()
            return str(refused)
        return _connected(answers, rank, ranks, timeout_s, held)
    except BaseException:
        held.close()
        raise


def check_size(workers: int, ranks: int) -> None:
    """Raise HookConfigError, the same on every rank, unless there are as many ranks as workers."""
    if workers != ranks:
        raise HookConfigError(
            f"over: the job has {workers} workers, but {ranks} ranks train; "
            f"start {workers}, or admit a job of {ranks} workers"
        )


def _connected(
    planes: list[dict[str, Any]], rank: int, ranks: int, timeout_s: float | None, held: ExitStack
) -> SwitchSummation:
    """Connect the rank to its seat in each plane, given each plane's job and addresses."""
    jobs = [job_config(_field(values, "admission")) for values in planes]
    for job in jobs:
        check_size(job.workers, ranks)
    seats = [_seat(values, rank) for values in planes]
    job, seat = jobs[0], seats[0]
    worker_id = seat.get("worker_id", job.worker_ids[rank])
    addresses = [(_field(one, "switch_host"), _field(one, "switch_port")) for one in seats]
    for plane, (host, port) in zip(jobs, addresses, strict=True):
        held.enter_context(only_here(f"worker {worker_id} of job {plane.job_id} at {host}:{port}"))
    return SwitchSummation(
        job,
        worker_id,
        addresses[0],
        timeout_s=timeout_s,
        join_s=0.0,
        wire=seat.get("wire", "udp-port"),
        held=held,
        more_planes=list(zip(jobs, addresses, strict=True))[1:],
        interfaces=seat.get("interfaces") or _interfaces(len(jobs)),
    )


def _interfaces(planes: int) -> list[str]:
    """Return this rank's interfaces on the switches' wires, one for each plane; none if they are not given.

    Raises HookConfigError.
    """
    names = [name for name in os.environ.get(INTERFACES, "").split(",") if name]
    if not names:
        return []
    local, ranks = (
        int(os.environ.get(name, one)) for name, one in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1))
    )
    if len(names) != ranks * planes:
        raise HookConfigError(
            f"over: {INTERFACES}: {', '.join(names)} for {ranks} ranks of {planes} planes here; "
            f"give {ranks * planes}, those of local rank 0 first"
        )
    return names[local * planes : (local + 1) * planes]


def _log_as_worker(log_format: str, summation: SwitchSummation) -> None:
    """Log from now on with this worker's job, generation and number."""
    job = summation.config
    try:
        worker_id = job.worker_ids[summation.worker_id]
        known = {"job": job.job_id, "generation": job.generation, "worker": worker_id}
        configure(log_format, "worker", known)
    except LogsError as error:
        raise HookConfigError(f"over: {LOG}: {error}") from None
    _log.info("connected to the switch")


def _metrics(where: str, rank: int, summation: SwitchSummation) -> MetricsServer:
    """Serve a worker's metrics at HOST:PORT for rank 0, and at PORT + r for rank r."""
    job, folder = summation.config, os.environ.get(TLS)
    worker_id = job.worker_ids[summation.worker_id]
    try:
        host, port = metrics_address(where)
        server = MetricsServer(
            (host, port + rank if port else 0),
            PARTS["worker"],
            lambda: worker_values(job.job_id, worker_id, asdict(summation.stats())),
            Identity.read(Path(folder)) if folder else None,
        )
    except (MetricsError, TlsError) as error:
        raise HookConfigError(f"over: {METRICS}: {error}") from None
    except ModuleNotFoundError as error:
        raise HookConfigError(
            f"over: {METRICS}: {error.name} is not installed; run: pip install 'peelsum[ops]'"
        ) from None
    _log.info("metrics at %s", server.url)
    return server


def _field(values: dict[str, Any], name: str) -> Any:
    if name not in values:
        raise HookConfigError(f"over: the switch job has no {name!r}; give a seat, or FILE@HOST:PORT")
    return values[name]


def _planes(source: str, rank: int, store: Store, held: ExitStack) -> list[dict[str, Any]]:
    """Return the job's admission and the switch's address in every plane.

    `held` gets what must live as long as the seats.
    """
    if not source and SEAT in os.environ:
        seat = _own_or_all(_parsed(os.environ[SEAT], SEAT))
        return [seat, *seat.get("more_planes", ())]
    source = source or os.environ.get(JOB, "")
    if not source:
        raise HookConfigError(
            f"over: neither {SEAT} nor {JOB} is in the environment; start it by `peelsum exec HOST -- ...`, "
            f"set {JOB}=//HOST:PORT of `peelsum job serve`, or use over='gloo'"
        )
    planes = source.split(",")
    key = numbered(store, "job", rank) if any(one.startswith("//") for one in planes) else ""
    return [
        _admitted(one[2:], rank, store, f"{key}/{plane}", held) if one.startswith("//") else _described(one)
        for plane, one in enumerate(planes)
    ]


def _seat(values: dict[str, Any], rank: int) -> dict[str, Any]:
    """Return the job with the rank's own place at the switch."""
    return values | _place(values["switch"], rank) if "switch" in values else values


def _own_or_all(seat: dict[str, Any]) -> dict[str, Any]:
    """Return the seat, or all seats of the network if torchrun started several ranks here."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if ranks == 1:
        return {name: value for name, value in seat.items() if name != "switch"}
    if "switch" not in seat:
        raise HookConfigError(
            f"over: {SEAT} is for one worker, but {ranks} ranks run here; start one at each host, as with "
            "torchrun --nproc-per-node 1 --nnodes N --node-rank R --master-addr HOST"
        )
    return {"admission": seat["admission"], "switch": seat["switch"]}


def _described(source: str) -> dict[str, Any]:
    """Return the job of FILE or FILE@HOST:PORT."""
    name, _, address = source.partition("@")
    try:
        values = _parsed(read_text(Path(name)), name)
    except OSError as error:
        controller = _CONTROLLER.fullmatch(source)
        remedy = f"for a controller there, give //{controller[1]}" if controller else "give the job's file"
        raise HookConfigError(f"over: {source}: {error.strerror}; {remedy}") from error
    return {"admission": values, "switch": address} if address else values


def _admitted(
    controller: str, rank: int, store: Store, key: str, held: ExitStack, ranks: int | None = None
) -> dict[str, Any]:
    """Return the job as a controller admits it: rank 0 requests it and tells the others, errors included.

    ranks: the size of the further group, or None (see `Lease`).
    """
    address = _address(controller)
    if rank == 0:
        try:
            if ranks is None:
                held.enter_context(only_here(f"rank 0 of the job of controller {controller}"))
            lease = held.enter_context(closing(_lease(address, ranks)))
            answer = lease.response
        except HookConfigError as error:
            answer = json.dumps({"error": f"rank 0: {str(error).removeprefix('over: ')}"})
        except TlsError as error:
            answer = json.dumps({"error": f"rank 0: {error}"})
        except ssl.SSLError as error:
            answer = json.dumps({"error": f"rank 0: TLS failed ({tls_reason(error)}); {_CHECK_TLS}"})
        except OSError as error:
            reason = f"rank 0: {error.strerror or error}; check that `peelsum job serve` runs"
            answer = json.dumps({"error": reason})
        except UnicodeError as error:  # of a name that no resolver takes, such as one of 64 letters and more
            answer = json.dumps({"error": f"rank 0: {error}; check the host's name"})
        store.set(key, answer)
    # The store's own limit may be shorter than rank 0's wait for a server that compiles.
    store.wait([key], timedelta(seconds=CONNECT_S + join_limit_s()))
    values = _parsed(store.get(key).decode(), f"the answer of controller {controller}")
    if "error" in values:
        raise HookConfigError(f"over: controller {controller}: {values['error']}")
    return values


def _lease(controller: tuple[str, int], ranks: int | None) -> Lease:
    """Request the job, with the identity and the token that the environment names."""
    folder, token = os.environ.get(TLS), os.environ.get(TOKEN)
    return Lease(
        controller,
        join_limit_s(),
        identity=Identity.read(Path(folder)) if folder else None,
        token=read_token(Path(token)) if token else "",
        ranks=ranks,
    )


def _place(addresses: str | list[str], rank: int) -> dict[str, Any]:
    """Return the rank's address: its own in a list of all, or rank 0's with the port plus `rank`."""
    if isinstance(addresses, list) and rank < len(addresses):
        host, port = _address(addresses[rank])
        return {"switch_host": host, "switch_port": port}
    host, port = _address(str(addresses))
    if port + rank > _LAST_PORT:
        raise HookConfigError(
            f"over: rank {rank} would connect to port {port + rank} of {host}; give rank 0 a lower port"
        )
    return {"switch_host": host, "switch_port": port + rank}


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= _LAST_PORT:
        raise HookConfigError(
            f"over: {text!r} is not HOST:PORT; give rank 0's port of the switch, or a controller's, up to "
            f"{_LAST_PORT}"
        )
    return host.strip("[]"), int(port)


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        values = parse_json(text)
    except ValueError as error:
        raise HookConfigError(f"over: {where} is not JSON ({error}); give a job or a seat") from error
    if not isinstance(values, dict):
        raise HookConfigError(f"over: {where} is not a JSON object; give a job or a seat")
    return values
