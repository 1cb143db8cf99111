"""A rank's account of sparsified training, in whole numbers: what went into the hook, came out and is kept.

It shares no code with error feedback; what a rank sent is looked up where the all-reduce returns it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch_training import model, parameters, step_loss

from peelsum.allreduce import Allreduce, TensorResult
from peelsum.compress import Sparsifier
from peelsum.torch import SwitchAllreduceState, hook

STEPS = 6


@dataclass
class Part:
    """What the all-reduce says of one parameter, or of all of a bucket: a value for each element."""

    finite: bool
    own: NDArray[np.int64]
    total: NDArray[np.int64]
    scales: NDArray[np.int32] | None

    @classmethod
    def of(cls, result: TensorResult) -> Part:
        own = np.asarray(result.quantized, np.int64).ravel()
        scales = None if result.scales is None else np.broadcast_to(np.ravel(result.scales), own.shape)
        return cls(result.finite, own, np.asarray(result.total).ravel(), scales)


#: Units of the books: 2**-_UNIT divides every number that a residual or a sum of this training can hold.
_UNIT = 300
#: By how much a velocity may be rounded, as a share of the larger of what it is made from.
_VELOCITY_PRECISION = 2**39


def _exactly(numbers: NDArray[Any], scales: NDArray[Any]) -> NDArray[Any]:
    """Return numbers[n] * 2**-scales[n] as Python's integers, in units of the books."""
    pairs = zip(numbers.tolist(), np.broadcast_to(scales, numbers.shape).tolist(), strict=True)
    return np.array([number << _UNIT - scale for number, scale in pairs], object)


def _of_floats(values: NDArray[np.float32]) -> NDArray[Any]:
    """Return finite floats[n] as Python's integers, in units of the books."""
    return np.array([int(Fraction(value) * 2**_UNIT) for value in values.tolist()], object)


class Books:
    """By parameter, object[n] in units of the books: what is kept, and what more of it every step gives."""

    def __init__(self, momentum: float) -> None:
        self._momentum = momentum
        self._kept: dict[str, NDArray[Any]] = {}
        self._velocities: dict[str, NDArray[Any]] = {}
        self.results: dict[str, Part] = {}
        self.given: dict[str, np.ndarray] = {}
        self.buckets: list[list[str]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Have every all-reduce of this process tell its results."""
        books = self

        class Watched(Allreduce):
            def sum(self, tensors: Any) -> Any:
                result = super().sum(tensors)
                books.results |= {name: Part.of(one) for name, one in result.items()}
                return result

        with patch("peelsum.torch.settings.Allreduce", Watched):
            yield

    def begin(self) -> None:
        """A step."""
        self.results, self.given, self.buckets = {}, {}, []

    def bucket(self, names: list[str], gradients: list[np.ndarray]) -> None:
        """Record the bucket that the hook gets."""
        self.given |= dict(zip(names, gradients, strict=True))
        self.buckets.append(names)

    def end(self, state: SwitchAllreduceState, applied: bool, averages: dict[str, np.ndarray]) -> int:
        """Close the books of a step; how many elements were sent. Everything must add up on every rank."""
        residuals = state.state_dict()["residuals"]
        everybody: list[Any] = [None] * dist.get_world_size()
        sent = {name: one.own for name, one in self.results.items()}
        finite = {name: bool(np.isfinite(one).all()) for name, one in self.given.items()}
        dist.all_gather_object(everybody, (sent, finite))
        for name, result in self.results.items():
            assert result.finite == all(flags[name] for _, flags in everybody)
            total = sum(contributed[name] for contributed, _ in everybody)
            assert np.array_equal(result.total, total)
            if not result.finite:
                assert np.isnan(averages[name]).all()
                continue
            scales = np.zeros(1, np.int32) if result.scales is None else result.scales
            floats = total * 2.0**-scales / len(everybody)
            assert np.array_equal(averages[name], floats.astype(np.float32))
            gone = sent[name] if applied and result.scales is not None else np.zeros_like(sent[name])
            self._close(name, gone, scales, residuals[name])
        return sum(np.count_nonzero(one) for one in sent.values())

    def _close(self, name: str, sent: NDArray[np.int64], scales: Any, residual: dict[str, Any]) -> None:
        """What is kept and sent was kept before, or is the gradient or the velocity to which that leads."""
        kept = _exactly(residual["numbers"].numpy(), residual["scales"].numpy())
        gradient = _of_floats(self.given[name])
        nothing = np.zeros(kept.size, object)
        entered = kept + _exactly(sent, scales) - self._kept.get(name, nothing)
        self._kept[name] = kept
        if not self._momentum:
            np.testing.assert_array_equal(entered, gradient, name)
            return
        before = self._velocities.get(name, nothing)
        for now, last, fresh in zip(entered, before, gradient, strict=True):
            exact = Fraction(self._momentum) * last + fresh
            assert abs(now - exact) <= Fraction(max(abs(last), abs(fresh)), _VELOCITY_PRECISION), name
        self._velocities[name] = np.where(sent != 0, 0, entered)
        saved = _exactly(residual["velocity"].numpy(), residual["scales"].numpy())
        np.testing.assert_array_equal(saved, self._velocities[name], name)


def audited(
    rank: int,
    sparsifier: Sparsifier,
    restart_at: int | None,
    overflows: tuple[int, str] | None,
    over: str = "gloo",
) -> dict[str, Any]:
    """Train for `STEPS` with a GradScaler, the books closed after every one.

    restart_at: the step from which another state and module go on from a checkpoint. overflows: the step in
    which a gradient of rank 1 is infinite, and of what parameter.
    """
    books, scaler = (
        Books(sparsifier.momentum),
        torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=10**6),
    )
    outcome: dict[str, Any] = {"applied": [], "sent": [], "buckets": []}
    ddp, state, names = _hooked(books, sparsifier, over)
    with books.watching():
        for step in range(STEPS):
            if step == restart_at:
                ddp, state, names = _restored(ddp, state, books, sparsifier, over)
            before = parameters(ddp)
            books.begin()
            _step(
                ddp,
                scaler,
                rank,
                step,
                overflows[1] if overflows and (step, 1) == (overflows[0], rank) else "",
            )
            applied = not np.array_equal(before, parameters(ddp))
            averages = {name: one.grad.numpy().ravel() for one, name in names.items()}
            outcome["applied"].append(applied)
            outcome["sent"].append(books.end(state, applied, averages) / before.size)
            outcome["buckets"].append(books.buckets)
    return outcome | {"parameters": parameters(ddp), "stats": state.stats()}


def _step(ddp: torch.nn.Module, scaler: Any, rank: int, step: int, overflows: str) -> None:
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
    optimizer.zero_grad()
    loss = scaler.scale(step_loss(ddp, rank, step))
    if overflows:
        parameter = ddp.module.get_parameter(overflows)
        hooked = parameter.register_hook(lambda gradient: gradient * float("inf"))
        loss.backward()
        hooked.remove()
    else:
        loss.backward()
    scaler.step(optimizer)
    scaler.update(1.0)  # so that all that is kept has one unit


def _hooked(books: Books, sparsifier: Sparsifier, over: str) -> tuple[Any, Any, dict[Any, str]]:
    ddp = model()
    names = {one: name for name, one in ddp.module.named_parameters()}
    state = SwitchAllreduceState(
        over=over,
        names=ddp.module.named_parameters(),
        compressor=sparsifier,
    )

    def watched(state, bucket):
        order = [names[one] for one in bucket.parameters()]
        books.bucket(order, [one.clone().numpy().ravel() for one in bucket.gradients()])
        return hook(state, bucket)

    ddp.register_comm_hook(state, watched)
    return ddp, state, names


def _restored(ddp: Any, state: Any, books: Books, *settings: Any) -> tuple[Any, Any, dict[Any, str]]:
    """Return another module and state, restored from saved values."""
    file = io.BytesIO()
    torch.save({"weights": ddp.state_dict(), "state": state.state_dict()}, file)
    state.close()
    values = torch.load(io.BytesIO(file.getvalue()))
    ddp, state, names = _hooked(books, *settings)
    ddp.load_state_dict(values["weights"])
    state.load_state_dict(values["state"])
    return ddp, state, names
