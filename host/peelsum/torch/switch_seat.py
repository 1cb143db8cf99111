"""Connects a rank to its port at a switch, for a job given by the environment, a file or a controller."""

from __future__ import annotations

import json
import logging
import os
import re
import ssl
import time
from contextlib import ExitStack
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from torch.distributed import Store  # type: ignore[attr-defined]  # not exported, but documented

from peelsum.addresses import parse_address
from peelsum.logs import LogsError, configure
from peelsum.metrics import PARTS, MetricsError, MetricsServer, metrics_address, worker_values
from peelsum.reading import parse_json, read_text
from peelsum.tls import TlsError, TlsIdentity, read_token
from peelsum.tls.identity import tls_reason
from peelsum.torch.errors import HookConfigError
from peelsum.torch.starts import hold_seat, unique_prefix
from peelsum.transport import SwitchSummation, job_config
from peelsum.transport.joining import join_limit_s
from peelsum.transport.lease import CONNECT_S, Generation, Lease
from peelsum.transport.seats import SEAT
from peelsum.transport.warming import warm_up

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
#: What happens when a rank is lost: every other raises an error, or those that are left go on.
OnLost = Literal["error", "continue"]
#: How long a rank that enters waits until the controller has noticed that another was lost, and between two
#: requests, in seconds.
_FREE_SEAT_S, _RETRY_S = 10.0, 0.1
#: How long a rank other than 0 tries to reach the controller, in seconds.
_JOIN_CONNECT_S = 5.0
_log = logging.getLogger("peelsum")
_CHECK_TLS = (
    f"check that the certificate in {TLS} is a worker's, of the controller's CA and valid today, and that "
    "the controller has TLS"
)
#: A controller's address in forms other than //HOST:PORT, to suggest the right one.
_CONTROLLER = re.compile(r"(?:\w+:/*|/)?((?:[^/@:\[\]]+|\[[\da-fA-F:.]+\]):\d+)(?:/.*)?")
_MAX_PORT = 65535


def connect_rank(
    source: str,
    rank: int,
    ranks: int,
    store: Store,
    timeout_s: float | None,
    *,
    on_lost: OnLost = "error",
) -> SwitchSummation:
    """Connect a rank to the switch, in a job of as many workers as there are ranks.

    `source` is what follows `switch:`; if empty, the environment is used. It has one of these forms:

    - FILE: JSON with `admission` and `switch`, or a seat.
    - FILE@HOST:PORT: FILE is the output of `peelsum job admit --json`.
    - //HOST:PORT: a `peelsum job serve`, which admits the job again for every start. Rank 0 sends the request
      and passes the response to all ranks that share `store`. They then join the run, by connections of
      their own, so that the controller notices the end of each.

    A switch's HOST:PORT is the port of rank 0; rank r connects to PORT + r. Several of these, separated by
    commas, are the planes of the job, for which the rank has a port in each. The first sum does not wait for
    workers that start later: `when_all_are_ready` does.
    on_lost: "continue" has a controller admit the ranks that are left when others are lost.
    Raises HookConfigError or TransportError.
    """
    resources = ExitStack()
    try:
        jobs = _requested_jobs(source, rank, ranks, store, resources, on_lost)
        summation = _connect(jobs, rank, ranks, timeout_s, resources)
        if log_format := os.environ.get(LOG):
            _log_as_worker(log_format, summation)
        if address := os.environ.get(METRICS):
            resources.enter_context(_serve_metrics(address, rank, summation))
        return summation
    except BaseException:
        resources.close()
        raise


def connect_to_run(source: str, timeout_s: float | None) -> tuple[SwitchSummation, Generation]:
    """Connect this process to a run that goes on; return the generation in which it enters, too.

    `source`, or else the environment, names the run's controller. Raises HookConfigError or TransportError.
    """
    source = source or os.environ.get(JOB, "")
    if not source.startswith("//") or "," in source:
        subject = f"{source!r} is not" if source else f"{JOB} is not set to"
        raise HookConfigError(
            f"enters: {subject} the address of a `peelsum job serve`; set {JOB}=//HOST:PORT"
        )
    resources = ExitStack()
    try:
        deadline, warned = time.monotonic() + _FREE_SEAT_S, False
        while True:
            lease = _request_lease(_parse_address(source[2:]), call="enter")
            values = _parse_object(lease.response, f"the answer of controller {source[2:]}")
            if not values.get("full") or time.monotonic() >= deadline:
                break
            if not warned:
                warned = True
                _log.warning(
                    "controller %s: the run has all its ranks; waiting up to %g s for a loss",
                    source[2:],
                    _FREE_SEAT_S,
                )
            lease.close()
            time.sleep(_RETRY_S)
        resources.callback(lease.close)
        if not {"entering", "lanes"} <= values.keys():
            raise HookConfigError(f"over: controller {source[2:]}: {values.get('error', values)}")
        rank = int(values["entering"])
        warm_up(int(values["lanes"]))
        generation = lease.enter(rank, join_limit_s())
        addresses = [generation.switch[member] for member in generation.members]
        plane = {"admission": generation.admission, "switch": addresses, "wire": generation.wire}
        place = generation.members.index(rank), len(addresses)
        summation = _connect([plane | {"lease": lease}], *place, timeout_s, resources, enters=True)
    except BaseException as error:
        resources.close()
        if isinstance(error, TlsError | OSError | UnicodeError):
            raise HookConfigError(f"over: controller {source[2:]}: {_lease_failure(error)}") from error
        raise
    return summation, generation


def connect_group(
    source: str, rank: int, ranks: int, store: Store, timeout_s: float | None
) -> SwitchSummation | str:
    """Connect a rank of a further group to the switch, in a job of the group's own.

    The controllers that `source` names, or else the environment, admit the job. If no controller is named, or
    if a controller refuses, the reason is returned on every rank. Raises HookConfigError or TransportError.
    """
    origin = "over" if source else SEAT if SEAT in os.environ else JOB
    controllers = ("" if origin == SEAT else source or os.environ.get(JOB, "")).split(",")
    if not all(controller.startswith("//") for controller in controllers):
        return f"{origin} names no `peelsum job serve`"
    resources = ExitStack()
    try:
        prefix = unique_prefix(store, "job", rank)
        jobs = [
            _job_from_controller(
                controller[2:], rank, ranks, store, f"{prefix}/{plane}", resources, is_further=True
            )
            for plane, controller in enumerate(controllers)
        ]
        for refusal in filter(None, (job.get("refused") for job in jobs)):
            resources.close()
            return str(refusal)
        return _connect(jobs, rank, ranks, timeout_s, resources)
    except BaseException:
        resources.close()
        raise


def check_size(workers: int, ranks: int) -> None:
    """Raise HookConfigError, the same on every rank, unless there are as many ranks as workers."""
    if workers != ranks:
        raise HookConfigError(
            f"over: the job has {workers} workers, but {ranks} ranks train; "
            f"start {workers}, or admit a job of {ranks} workers"
        )


def _connect(
    planes: list[dict[str, Any]],
    rank: int,
    ranks: int,
    timeout_s: float | None,
    resources: ExitStack,
    *,
    enters: bool = False,
) -> SwitchSummation:
    """Connect the rank to its seat in each plane.

    planes: each plane's admission, and the rank's address or those of all ranks. resources: is closed with
    the connection. enters: whether the other ranks sum already.
    """
    jobs = [job_config(_require(values, "admission")) for values in planes]
    for job in jobs:
        check_size(job.workers, ranks)
    seats = [
        values | _address_of_rank(values["switch"], rank) if "switch" in values else values
        for values in planes
    ]
    job, seat = jobs[0], seats[0]
    worker_id = seat.get("worker_id", job.worker_ids[rank])
    addresses = [(_require(values, "switch_host"), _require(values, "switch_port")) for values in seats]
    for plane, (host, port) in zip(jobs, addresses, strict=True):
        resources.enter_context(hold_seat(f"worker {worker_id} of job {plane.job_id} at {host}:{port}"))
    return SwitchSummation(
        job,
        worker_id,
        addresses[0],
        timeout_s=timeout_s,
        join_s=0.0,
        wire=seat.get("wire", "udp-port"),
        leases=[values["lease"] for values in seats if values.get("lease")],
        held=resources,
        more_planes=list(zip(jobs, addresses, strict=True))[1:],
        interfaces=seat.get("interfaces") or _local_interfaces(len(jobs)),
        enters=enters,
    )


def _local_interfaces(planes: int) -> list[str]:
    """Return this rank's network interfaces, one for each plane, from the environment; [] if it has none.

    Raises HookConfigError if the environment has another number of interfaces than ranks times planes.
    """
    names = [name for name in os.environ.get(INTERFACES, "").split(",") if name]
    if not names:
        return []
    local_rank, ranks = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if len(names) != ranks * planes:
        raise HookConfigError(
            f"over: {INTERFACES}: {', '.join(names)} for {ranks} ranks of {planes} planes here; "
            f"give {ranks * planes}, those of local rank 0 first"
        )
    return names[local_rank * planes : (local_rank + 1) * planes]


def _log_as_worker(log_format: str, summation: SwitchSummation) -> None:
    """Configure logging in this format, with this worker's job, generation and number in each record."""
    job = summation.config
    try:
        worker_id = job.worker_ids[summation.worker_id]
        fields = {"job": job.job_id, "generation": job.generation, "worker": worker_id}
        configure(log_format, "worker", fields)
    except LogsError as error:
        raise HookConfigError(f"over: {LOG}: {error}") from None
    _log.info("connected to the switch")


def _serve_metrics(address: str, rank: int, summation: SwitchSummation) -> MetricsServer:
    """Serve this worker's metrics by HTTP; `address` is HOST:PORT of rank 0, and rank r takes PORT + r."""
    job, folder = summation.config, os.environ.get(TLS)
    worker_id = job.worker_ids[summation.worker_id]
    try:
        host, port = metrics_address(address)
        server = MetricsServer(
            (host, port + rank if port else 0),
            PARTS["worker"],
            lambda: worker_values(job.job_id, worker_id, asdict(summation.stats())),
            TlsIdentity.read(Path(folder)) if folder else None,
        )
    except (MetricsError, TlsError) as error:
        raise HookConfigError(f"over: {METRICS}: {error}") from None
    except ModuleNotFoundError as error:
        raise HookConfigError(
            f"over: {METRICS}: {error.name} is not installed; run: pip install 'peelsum[ops]'"
        ) from None
    _log.info("metrics at %s", server.url)
    return server


def _require(values: dict[str, Any], name: str) -> Any:
    """Return a field of a job's description. Raises HookConfigError if it is missing."""
    if name not in values:
        raise HookConfigError(f"over: the switch job has no {name!r}; give a seat, or FILE@HOST:PORT")
    return values[name]


def _requested_jobs(
    source: str, rank: int, ranks: int, store: Store, resources: ExitStack, on_lost: OnLost
) -> list[dict[str, Any]]:
    """Return the job's admission and the switch's address in every plane, from `source` or the environment.

    The leases of jobs that controllers admit are added to `resources`.
    """
    if not source and SEAT in os.environ:
        seat = _seat_of_environment(_parse_object(os.environ[SEAT], SEAT))
        return [seat, *seat.get("more_planes", ())]
    source = source or os.environ.get(JOB, "")
    if not source:
        raise HookConfigError(
            f"over: neither {SEAT} nor {JOB} is in the environment; start it by `peelsum exec HOST -- ...`, "
            f"set {JOB}=//HOST:PORT of `peelsum job serve`, or use over='gloo'"
        )
    planes = source.split(",")
    by_controller = any(plane.startswith("//") for plane in planes)
    prefix = unique_prefix(store, "job", rank) if by_controller else ""
    return [
        _job_from_controller(plane[2:], rank, ranks, store, f"{prefix}/{number}", resources, on_lost=on_lost)
        if plane.startswith("//")
        else _job_from_file(plane)
        for number, plane in enumerate(planes)
    ]


def _seat_of_environment(seat: dict[str, Any]) -> dict[str, Any]:
    """Return the seat in the environment; if torchrun started several ranks here, the seats of all ranks.

    Raises HookConfigError if there are several ranks, and the seat is that of a single worker.
    """
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if ranks == 1:
        return {name: value for name, value in seat.items() if name != "switch"}
    if "switch" not in seat:
        raise HookConfigError(
            f"over: {SEAT} is for one worker, but {ranks} ranks run here; start one at each host, as with "
            "torchrun --nproc-per-node 1 --nnodes N --node-rank R --master-addr HOST"
        )
    return {"admission": seat["admission"], "switch": seat["switch"]}


def _job_from_file(source: str) -> dict[str, Any]:
    """Return the job's description from FILE or FILE@HOST:PORT. Raises HookConfigError."""
    name, _, address = source.partition("@")
    try:
        values = _parse_object(read_text(Path(name)), name)
    except OSError as error:
        controller = _CONTROLLER.fullmatch(source)
        remedy = f"for a controller there, give //{controller[1]}" if controller else "give the job's file"
        raise HookConfigError(f"over: {source}: {error.strerror}; {remedy}") from error
    return {"admission": values, "switch": address} if address else values


def _job_from_controller(
    controller: str,
    rank: int,
    ranks: int,
    store: Store,
    key: str,
    resources: ExitStack,
    *,
    is_further: bool = False,
    on_lost: OnLost = "error",
) -> dict[str, Any]:
    """Return the job that a controller admits. Rank 0 requests it, and sends the response to all ranks.

    The response goes through the store, under `key`, and may be an error, which every rank raises as
    HookConfigError. is_further: whether the ranks are a further group, for which a job of that size is made.
    """
    address, lease = _parse_address(controller), None
    if rank == 0:
        try:
            if not is_further:
                resources.enter_context(hold_seat(f"rank 0 of the job of controller {controller}"))
            survives = "continue" if on_lost == "continue" else None
            lease = _request_lease(address, ranks=ranks if is_further else None, on_lost=survives)
            resources.callback(lease.close)
            response = lease.response
        except (HookConfigError, TlsError, OSError, UnicodeError) as error:
            response = json.dumps({"error": f"rank 0: {_lease_failure(error)}"})
        store.set(key, response)
    # The store's own limit may be shorter than rank 0's wait for a server that compiles.
    store.wait([key], timedelta(seconds=CONNECT_S + join_limit_s()))
    values = _parse_object(store.get(key).decode(), f"the answer of controller {controller}")
    if "error" in values:
        raise HookConfigError(f"over: controller {controller}: {values['error']}")
    if rank and "run" in values:
        # Rank 0 has left such a run already, and the controller would only say so.
        check_size(job_config(_require(values, "admission")).workers, ranks)
        lease = _join_run(address, rank, values["run"], on_lost)
        resources.callback(lease.close if lease else lambda: None)
    return values | {"lease": lease}


def _join_run(controller: tuple[str, int], rank: int, run: str, on_lost: OnLost) -> Lease | None:
    """Return this rank's lease in a run; None, with a warning, if the controller does not give it one.

    Raises HookConfigError instead of the warning if the run is to go on when ranks are lost.
    """
    try:
        lease = _request_lease(controller, connect_s=_JOIN_CONNECT_S, rank=rank, run=run)
        reason = _parse_object(lease.response, "the controller's answer").get("error")
    except (HookConfigError, TlsError, OSError, UnicodeError) as error:
        reason = _lease_failure(error)
    else:
        if reason is None:
            return lease
        lease.close()
    if on_lost == "continue":
        host, port = controller
        raise HookConfigError(f"on_lost: rank {rank} has no lease at controller {host}:{port}: {reason}")
    text = "controller %s:%d: rank %d has no lease, so the others would notice its end late: %s"
    _log.warning(text, *controller, rank, reason)
    return None


def _lease_failure(error: Exception) -> str:
    """Return why a lease was not granted, and what to do."""
    match error:
        case HookConfigError() | TlsError():
            return str(error).removeprefix("over: ")
        case ssl.SSLError():
            return f"TLS failed ({tls_reason(error)}); {_CHECK_TLS}"
        case OSError():
            return f"{error.strerror or error}; check that `peelsum job serve` runs"
    # UnicodeError, for a name that no resolver takes, e.g. one of 64 letters or more
    return f"{error}; check the host's name"


def _request_lease(controller: tuple[str, int], **request: Any) -> Lease:
    """Request a lease from a controller, with the identity and the token that the environment names."""
    folder, token = os.environ.get(TLS), os.environ.get(TOKEN)
    lease = Lease(
        controller,
        join_limit_s(),
        identity=TlsIdentity.read(Path(folder)) if folder else None,
        token=read_token(Path(token)) if token else "",
        **request,
    )
    if not folder and not lease.response.startswith("{"):
        lease.close()
        raise HookConfigError(
            f"over: the controller does not answer without TLS; set {TLS} to a folder with a certificate"
        )
    return lease


def _address_of_rank(addresses: str | list[str], rank: int) -> dict[str, Any]:
    """Return the rank's address: its item in a list of all, or rank 0's address with the port plus `rank`."""
    if isinstance(addresses, list) and rank < len(addresses):
        host, port = _parse_address(addresses[rank])
        return {"switch_host": host, "switch_port": port}
    host, port = _parse_address(str(addresses))
    if port + rank > _MAX_PORT:
        raise HookConfigError(
            f"over: rank {rank} would connect to port {port + rank} of {host}; give rank 0 a lower port"
        )
    return {"switch_host": host, "switch_port": port + rank}


def _parse_address(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT. Raises HookConfigError."""
    try:
        what = f"rank 0's port of the switch, or a controller's, up to {_MAX_PORT},"
        return parse_address(text, what, least_port=1)
    except ValueError as error:
        raise HookConfigError(f"over: {text!r} is not HOST:PORT; {error}") from None


def _parse_object(text: str, source: str) -> dict[str, Any]:
    """Return the JSON object in a text. Raises HookConfigError, which names its source."""
    try:
        values = parse_json(text)
    except ValueError as error:
        raise HookConfigError(f"over: {source} is not JSON ({error}); give a job or a seat") from error
    if not isinstance(values, dict):
        raise HookConfigError(f"over: {source} is not a JSON object; give a job or a seat")
    return values
