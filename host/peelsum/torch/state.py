"""The state of the communication hook: its settings, the sums of its buckets, and checkpoints."""

from __future__ import annotations

import gc
import logging
import math
import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary

from peelsum.allreduce import History, NetworkModel, RequestedForm, RequestedValues, Summation
from peelsum.compress import Compressor, Flexible
from peelsum.torch.buckets import Bucket, BucketSums
from peelsum.torch.checkpoint import (
    pack_state,
    rank_and_size,
    read_checkpoint,
    saved_files,
    to_arrays,
    to_tensors,
    unpack_state,
    write_checkpoint,
)
from peelsum.torch.errors import HookConfigError
from peelsum.torch.settings import HookSettings
from peelsum.torch.sparse_sums import SparseTensor, check_layouts
from peelsum.torch.starts import announce_early_exit
from peelsum.torch.stats import HookStats, RunningStats, profile_range
from peelsum.torch.sum_queue import chain_future
from peelsum.torch.tracing import GradientRecorder

_LOGGER = logging.getLogger(__name__)


class SwitchAllreduceState:
    """State of a DDP communication hook that averages gradients over ranks, exactly.

    Use it as `ddp.register_comm_hook(state, hook)`. One state serves all DDP modules of a process that train
    together; all ranks must use it in the same order.

    - `process_group`: the ranks that sum; None for all. Give the group that DDP was given, if any.
    - `over`: the backend. "switch" takes the job from the environment, PEELSUM_SEAT or PEELSUM_JOB.
      "switch:FILE@HOST:PORT" takes it from a file that `peelsum job admit --json` wrote; rank r connects to
      PORT + r. "switch:FILE" takes a file that names the switch, too. "switch://HOST:PORT" asks a `peelsum
      job serve`, which admits the job again for every start. The name of a torch.distributed backend, such as
      "gloo", sums the same words by its all_reduce, with the same result bit for bit. A `Summation` is used
      as it is; `close` leaves it open.
    - `names`: the parameters' names, as `model.named_parameters()` returns them, for `forms`, `stats` and
      checkpoints. `forms` may then name no others. By default the names are "parameter 0", "parameter 1", ...
      in the order of their first sums.
    - `forms`, `values`, `network`: see `peelsum.allreduce.Allreduce`. All are lossless up to fixed point,
      whose error bound `stats()` returns. With `network="measured"`, ranks measure it when they connect.
    - `compressor`: one of `peelsum.compress`; None sums every element. `TopK`, `RandomK` and `Threshold` send
      some elements, and keep the others for later steps by exact error feedback; with `momentum`, by the
      momentum correction of Deep Gradient Compression. With a GradScaler, a residual is in units of the scale
      of its step. The backend sums additive payloads as 32-bit words, and indexed payloads through the
      all-reduce's index. The ranks' process group gathers payloads of kind "gather".
    - `strategy`: a `peelsum.compress.Flexible`, which chooses the method and the ratio of each step by
      measurements of earlier steps. Elements that a method does not send are kept for the next method. The
      decisions are in `stats().strategy` and, at level INFO, in the log.
    - `error_feedback`: whether elements that are not sent are kept for later steps; None keeps them if the
      compressor needs it. True without a compressor keeps the rounding errors of fixed point.
    - `implementation`: "gpu" encodes and decodes gradients on their GPU by Triton, so that only words are
      copied. "cpu" copies gradients to the host and back. None takes "gpu" for gradients on a GPU if Triton
      is installed. Both produce the same bits, so ranks may differ. Compressors run on the host.
    - `timeout_s`: seconds that a sum waits for other workers before it raises an error that names them. None
      takes the job's timeout, or 30 s.
    - `on_lost`: what happens when the process of a rank ends: "error" raises an error on all others at once.
      "continue" repeats the sums that have not completed with the ranks that are left, of which `stats()`
      names the members; it needs a `peelsum job serve`, and ranks that are started apart.
    - `enters`: whether this process enters a run that goes on, in a seat of a rank that was lost. `connect`
      then returns once it is a member, and has loaded the state of the others into `shared`.
    - `shared`: what a rank that enters gets from another one, by the same names on all ranks: objects with
      `state_dict` and `load_state_dict`, such as the module without DDP, and the optimizer.
    - `log_every`: steps between two lines of statistics, at level INFO of logger `peelsum.torch`; 0 for none.

    Sparse gradients, of tables with `sparse=True`, are summed by rows at the end of a backward pass, without
    loss: `forms`, `values`, `compressor` and `strategy` do not apply to them.

    Under `peelsum trace record`, a state also records the gradients before they are summed.

    All settings must be the same on every rank, except the address in `over`, `implementation` and
    `log_every`. If they differ, every rank raises PlanMismatchError in its first step; only differences of
    `timeout_s` are not noticed.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        over: str | Summation = "switch",
        names: Iterable[tuple[str, torch.nn.Parameter]] = (),
        forms: RequestedForm | Mapping[str, RequestedForm] = "auto",
        values: RequestedValues = "auto",
        network: NetworkModel | Literal["measured"] | None = None,
        compressor: Compressor | None = None,
        strategy: Flexible | None = None,
        error_feedback: bool | None = None,
        implementation: Literal["cpu", "gpu"] | None = None,
        timeout_s: float | None = None,
        on_lost: Literal["error", "continue"] = "error",
        enters: bool = False,
        shared: Mapping[str, Stateful] = MappingProxyType({}),
        log_every: int = 0,
    ) -> None:
        if not isinstance(process_group, dist.ProcessGroup | None):
            raise HookConfigError(
                f"process_group: {process_group!r} is not a group that this rank is in; give one of "
                "torch.distributed, or None for all ranks"
            )
        settings = HookSettings(
            over=over,
            forms=forms,
            values=values,
            network=NetworkModel() if network is None else network,
            compressor=compressor,
            strategy=strategy,
            error_feedback=error_feedback,
            implementation=implementation,
            timeout_s=timeout_s,
            log_every=log_every,
            on_lost=on_lost,
            enters=enters,
        )
        if on_lost == "continue" and process_group not in (None, dist.group.WORLD):
            raise HookConfigError("process_group: on_lost='continue' is for all ranks; leave the group out")
        self._initialize(process_group, settings, GradientRecorder.from_environment())
        if not isinstance(shared, Mapping):
            kind = type(shared).__name__
            raise HookConfigError(
                f"shared: {kind} has no names; give {{'model': model, 'optimizer': optimizer}}"
            )
        self._shared |= shared
        self.name(names)
        settings.check_forms(self._names.assigned)
        if settings.owns_backend:
            announce_early_exit(process_group or dist.group.WORLD)

    def _initialize(
        self,
        process_group: dist.ProcessGroup | None,
        settings: HookSettings,
        recorder: GradientRecorder | None,
    ) -> None:
        """Set all attributes of a state that has not summed anything yet."""
        self.process_group, self._settings, self._recorder = process_group, settings, recorder
        self._reducer = settings.reducer()
        #: What ranks that enter get, by name.
        self._shared: dict[str, Stateful] = {}
        #: The last step that has begun, and whether this rank has entered a run that goes on.
        self._begun, self._entered = -1, False
        #: Number of backward passes, of which one through several modules counts once.
        self._steps = 0
        #: The id of the backward pass that was counted last; None if that was outside of any.
        self._counted_pass: int | None = None
        self._names = ParameterNames()
        self._stats = RunningStats(settings.log_every)
        history = History(most_names=sys.maxsize)  # `BucketSums` limits it, on all ranks alike
        self._sums = BucketSums(settings, self._reducer, history, process_group, self._stats.add)
        #: Warns, when the state is freed, that it was never used. Detached by the first gradient.
        self._unused_warning = weakref.finalize(self, _warn_unused, _last_error_id())
        #: See `unused`.
        self._unused = True

    def __getstate__(self) -> dict[str, Any]:
        """Return settings, names and `state_dict`, for copies, which connect anew.

        Raises HookConfigError if the backend or the group cannot be copied.
        """
        if not self._settings.owns_backend:
            raise HookConfigError("over: a Summation cannot be copied; copy ddp.module, without the hook")
        if self.process_group not in (None, dist.group.WORLD):
            raise HookConfigError("process_group: cannot be copied; copy ddp.module, without the hook")
        return {"settings": self._settings, "names": self._names.items(), "values": self.state_dict()}

    def __setstate__(self, copied: Mapping[str, Any]) -> None:
        self._initialize(None, copied["settings"], None)
        self._unused_warning.detach()  # a copy of a module need not be trained
        self.name(copied["names"])
        self.load_state_dict(copied["values"])

    def connect(self) -> None:
        """Connect to the backend and compile kernels now, instead of in the first backward pass.

        All ranks must call it. If `implementation` is None, the kernels for the CPU are compiled, because the
        device of the gradients is not known yet.
        Raises HookError after `close`, and the errors of connecting.
        """
        try:
            if not self._settings.enters or self._entered:
                self._sums.connect()
                return
            self._entered = True
            values = self._sums.receive_state()
        except BaseException:
            self._unused_warning.detach()  # the error says why no gradient comes
            raise
        try:
            self._load_shared(values)
        except BaseException:  # the others go on without this rank
            self._sums.abort("this rank has not loaded the state of the others; start it again")
            raise
        self._begin_step(self._steps)

    @property
    def steps(self) -> int:
        """The number of steps so far; on a rank that has entered a run, with those of the others before."""
        return self._steps

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that sum now, by their numbers at the start of the run; () before a connection."""
        return () if self._sums.queue is None else self._sums.queue.members

    @property
    def rank(self) -> int | None:
        """This rank's number among `members`, which does not change; None before a connection.

        A rank that has entered a run has the number of one that was lost.
        """
        return None if self._sums.queue is None else self._sums.queue.rank

    def _state_to_share(self) -> dict[str, Any]:
        """Return what a rank that enters gets."""
        shared = {name: item.state_dict() for name, item in self._shared.items()}
        learned = {"seen": self._sums.history.saved(), "kept": self._reducer.saved().get("kept", {})}
        return {"steps": self._steps, "shared": shared, **self._description(), **to_tensors(learned)}

    def _load_shared(self, values: Mapping[str, Any]) -> None:
        """Load what another rank has sent. Raises HookConfigError if this rank would sum in another way."""
        for kind, described in self._description().items():
            for name in sorted(described.keys() | values[kind].keys()):
                here, there = described.get(name, "missing"), values[kind].get(name, "missing")
                if here != there:
                    raise HookConfigError(
                        f"enters: {kind.removesuffix('s')} {name!r} is {here} here and {there} on the ranks "
                        "that sum; start this rank with their script and options"
                    )
        for name, item in self._shared.items():
            item.load_state_dict(values["shared"][name])
        self._sums.history.restore(to_arrays(values["seen"]))
        self._reducer.restore({"kept": to_arrays(values["kept"])}, [])
        self._steps = int(values["steps"])

    def _description(self) -> dict[str, dict[str, str]]:
        """Return what must be the same on all ranks, as texts by name: parameters, options and `shared`."""
        parameters = {
            name: f"{parameter.dtype}{list(parameter.shape)}"
            for name, parameter in self._names.items()
            if not name.startswith(UNNAMED)  # such a name is assigned with the first gradient
        }
        options = {name: repr(getattr(self._settings, name)) for name in ("forms", "values", "network")}
        return {"parameters": parameters, "options": options, "objects": dict.fromkeys(self._shared, "given")}

    def _begin_step(self, step: int) -> None:
        """Let other ranks enter before the first sum of a step. Raises HookConfigError before `connect`."""
        if self._settings.enters and not self._entered:
            raise HookConfigError("enters: the state of the others is not loaded; call connect() first")
        if step > self._begun:
            self._begun = step
            self._sums.begin_step(step, self._state_to_share)

    def close(self) -> None:
        """Leave the job once all sums are done. Every later `backward` raises HookError.

        A state that is no longer referenced leaves by itself, and so does every state when the interpreter
        exits, unless sums are running.
        """
        self._unused_warning()
        self._sums.close()
        if self._recorder is not None:
            self._recorder.close()

    def name(self, parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        """Name parameters for `forms`, `stats` and checkpoints, e.g. after a restore.

        Raises HookConfigError if another live parameter has one of the names.
        """
        self._names.assign(parameters)

    @property
    def unused(self) -> bool:
        """Whether no gradient has been submitted yet."""
        return self._unused

    def stats(self) -> HookStats:
        """Return totals and costs of this worker's sums since the state was made or restored."""
        return replace(self._stats.snapshot(), strategy=self._reducer.stats())

    def state_dict(self) -> dict[str, Any]:
        """Return the values on which later steps depend: numbers, and tensors that `torch.load` accepts.

        Call it between steps. With a compressor or strategy, save it on every rank, because residuals are
        gradients that this rank has not sent yet.
        """
        self._sums.drain()
        place = self._place(self.process_group)
        return pack_state(place, self._steps, self._sums.history, self._reducer)

    def load_state_dict(self, values: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue where `state_dict` was called.

        values: the result of `state_dict` on this rank, or a list of the results of all ranks of a run, in
        any order. With a list, the number of ranks may have changed, and this rank takes its share of the
        residuals.
        Raises HookConfigError for values of another state, and for residuals of another rank.
        """
        self._sums.drain()
        place = self._place(self.process_group)
        self._steps = unpack_state(values, place, self._sums.history, self._reducer)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `state_dict` to a file of this rank in a folder. Call it on every rank, between steps."""
        write_checkpoint(folder, self.state_dict(), self._place(None))

    def load(self, folder: str | os.PathLike[str], *, redistribute: bool = False) -> None:
        """Continue where `save` was called.

        redistribute: whether other ranks may have saved the residuals, which are then divided among those
        that sum here. Raises HookConfigError if this rank has no file there, if one is damaged, or as
        `load_state_dict` does.
        """
        redistribute = redistribute or not self._reducer.keeps_residuals
        place, group_place = self._place(None), self._place(self.process_group)
        self.load_state_dict(read_checkpoint(folder, place, group_place, redistribute=redistribute))

    def _place(self, group: dist.ProcessGroup | None) -> tuple[int, int]:
        """Return this rank and the number of ranks in a group; among the members of a run that changes."""
        if self._settings.on_lost == "continue" and self.rank is not None:
            return self.members.index(self.rank), len(self.members)
        return rank_and_size(group)

    def load_if_saved(self, folder: str | os.PathLike[str], *, redistribute: bool = False) -> None:
        """Load the state when a trainer resumes. If the folder has none, only log a warning."""
        if saved_files(folder):
            self.load(folder, redistribute=redistribute)
        else:
            _LOGGER.warning("state: %s has no saved state; training continues with an empty one", folder)

    def submit(
        self, buffer: torch.Tensor, parameters: Sequence[torch.Tensor], *, last: bool = True
    ) -> torch.futures.Future[torch.Tensor]:
        """Queue a bucket, which is averaged in place after those submitted before; for `hook`.

        last: whether this is the module's last bucket in this backward pass.
        """
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
            devices=[buffer.device] if buffer.is_cuda else None
        )
        self._unused = False
        self._unused_warning.detach()
        pass_id = _current_pass()
        names, step = self._names.of(parameters), self._step_of(pass_id)
        if self._settings.on_lost == "continue":
            self._begin_step(step)
        bucket: Bucket | SparseTensor
        if buffer.layout == torch.strided:
            bucket = Bucket(buffer, [parameter.shape for parameter in parameters])
        else:
            check_layouts("gradient", [buffer])
            bucket = SparseTensor(buffer)
        if self._recorder is not None:
            if isinstance(bucket, Bucket):
                self._recorder.record(names, bucket, self.process_group)
            else:
                warnings.warn("trace: leaves out sparse gradients, as it records all elements", stacklevel=2)
        last |= pass_id is None
        if not last:
            _call_after_pass(partial(self._sums.flush, step))  # if DDP never submits its last bucket
        summed = self._sums.submit(bucket, names, step, last=last, pass_id=pass_id)
        if self._recorder is not None:
            summed.add_done_callback(self._recorder.note_sum)
        if pass_id is None:
            chain_future(summed, future, lambda: buffer)
        else:
            # DDP must end its pass normally to be able to begin another; failed gradients become NaN.
            reported = chain_future(summed, future, lambda: buffer, lambda: _fill_with_nan(buffer))
            _wait_after_pass(reported, self._stats.add_wait)
        return future

    def average(self, tensor: torch.Tensor) -> None:
        """Average a contiguous tensor in place, and wait for the result; for `fsdp_hook`.

        Raises HookConfigError with a compressor or strategy that keeps residuals.
        """
        if self._reducer.keeps_residuals:
            raise HookConfigError(
                f"{self._reducer.argument}: is for DDP, whose gradients have names; use None with FSDP"
            )
        flat = tensor.detach().view(-1)
        # One name for all tensors of a size suffices: only the choice of a form is kept between steps.
        name = f"tensor of {flat.numel()}"
        self._unused = False
        self._unused_warning.detach()
        step = self._step_of(_current_pass())
        self._sums.submit(Bucket(flat, [flat.shape]), (name,), step).result()
        self.end_step()

    def _step_of(self, pass_id: int | None) -> int:
        """Return the number of the step to which a bucket of this backward pass belongs."""
        counted = pass_id is not None and pass_id == self._counted_pass
        return self._steps - counted

    def average_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Average the gradients of parameters in place, and wait; for trainers without DDP, after `backward`.

        The same parameters must have gradients on all ranks. Raises HookConfigError if no parameter has a
        gradient, or the sum's error.
        """
        gradients = {parameter: parameter.grad for parameter in parameters if parameter.grad is not None}
        if not gradients:
            raise HookConfigError("parameters: none has a gradient; call this after `backward`")
        for parameter in [parameter for parameter, gradient in gradients.items() if gradient.is_sparse]:
            self.submit(gradients.pop(parameter), [parameter]).wait()
        if gradients:
            flat = torch.cat([gradient.flatten() for gradient in gradients.values()])
            self.submit(flat, list(gradients)).wait()
            averages = flat.split_with_sizes([parameter.numel() for parameter in gradients])
            for gradient, average in zip(gradients.values(), averages, strict=True):
                gradient.copy_(average.view_as(gradient))
        self.end_step()

    def end_step(self) -> None:
        """Count a backward pass once all buckets of a module have been submitted; for `hook`."""
        pass_id = _current_pass()
        if pass_id is not None and pass_id == self._counted_pass:  # another module's buckets ended it
            return
        self._steps, self._counted_pass = self._steps + 1, pass_id
        if self._recorder is not None:
            self._recorder.end_step()
        if not self._stats.count_step():
            return
        if pass_id is not None:
            # Log after the pass has waited for all sums, those of other modules included.
            _call_after_pass(partial(_call_after_pass, self._stats.log))
        else:
            self._stats.log()


def _current_pass() -> int | None:
    """Return autograd's id of the backward pass that runs on this thread; None outside of any."""
    task_id = torch._C._current_graph_task_id()
    return None if task_id == -1 else task_id


def _call_after_pass(function: Callable[[], None]) -> None:
    """Call `function` at the end of this thread's backward pass, after the callbacks queued before."""
    torch.autograd.Variable._execution_engine.queue_callback(function)


def _wait_after_pass(reported: Future[None], add_wait: Callable[[float], None]) -> None:
    """Wait for a sum at the end of this thread's backward pass, which then raises the sum's error.

    If PyTorch's C++ code waited for the bucket's future instead, the error would lose its type. The error is
    raised after all of DDP's callbacks have run. `add_wait` is called with the seconds that the pass waited.
    """

    def wait() -> None:
        started = time.perf_counter()
        with profile_range("wait") or nullcontext():
            error = reported.exception()
        add_wait(time.perf_counter() - started)
        if error is not None:
            _call_after_pass(lambda: reported.result())

    _call_after_pass(wait)


def _fill_with_nan(gradient: torch.Tensor) -> torch.Tensor:
    """Set a gradient's values to NaN, in place, and return it."""
    (gradient._values() if gradient.is_sparse else gradient).fill_(math.nan)
    return gradient


def _last_error_id() -> int:
    """Return the id of the last exception that ended the script, or a command of an interactive session."""
    return id(getattr(sys, "last_value", None))


def _warn_unused(error_before: int) -> None:
    """Warn that a state never got a gradient, because some trainers ignore hooks silently.

    Do not warn if an exception has ended the script since, as its traceback says why no gradient came.
    error_before: what `_last_error_id` returned when the state was made.
    """
    if _last_error_id() != error_before:
        return
    _LOGGER.warning(
        "state: no gradient ever came to it; register it by ddp.register_comm_hook(state, hook), or with "
        "Lightning, whose DDPStrategy registers hooks on CUDA only, by peelsum.torch.lightning.SwitchStrategy"
    )


#: The names of parameters without one begin so.
UNNAMED = "parameter "
#: Names from which on deleted parameters without a name are looked for.
_MANY_NAMES = 1024


class ParameterNames:
    """One name for each live parameter. The name of a deleted parameter can be assigned to another."""

    def __init__(self) -> None:
        self._names: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._owners: dict[str, TensorWeakRef] = {}
        self._unnamed = 0
        #: When to forget the deleted parameters that had no name, by the number of names.
        self._forget_at = _MANY_NAMES

    @property
    def assigned(self) -> Collection[str]:
        """The names of live parameters, and of most that were deleted."""
        return self._owners.keys()

    def items(self) -> list[tuple[str, torch.Tensor]]:
        """Return pairs of name and live parameter, as `assign` takes them."""
        owners = ((name, owner()) for name, owner in self._owners.items())
        return [(name, parameter) for name, parameter in owners if parameter is not None]

    def assign(self, parameters: Iterable[Any]) -> None:
        """Name the parameters of (name, parameter) pairs, replacing earlier names.

        Raises HookConfigError if there are no such pairs, if another live parameter has the name, and for
        complex parameters.
        """
        if not isinstance(parameters, Iterable):
            kind = type(parameters).__name__
            raise HookConfigError(f"names: {kind} is not a list of names; give model.named_parameters()")
        for pair in parameters:
            match pair:
                case (str() as name, torch.Tensor() as parameter):
                    pass
                case _:
                    raise HookConfigError(
                        f"names: has a {type(pair).__name__} where a name and its parameter should be; "
                        "give model.named_parameters()"
                    )
            # Two parameters of one name would share sums and residuals.
            if self._owner_id(name) not in (None, id(parameter)):
                gc.collect()  # an unreferenced module can be in cycles
                if self._owner_id(name) not in (None, id(parameter)):
                    raise HookConfigError(
                        f"names: {name!r} names two parameters; prefix it with the names of their modules, "
                        "or delete the module that has it"
                    )
            self._assign(name, parameter)

    def of(self, parameters: Sequence[torch.Tensor]) -> tuple[str, ...]:
        """Return the parameters' names. A parameter without a name becomes "parameter N", N counting up."""
        names = []
        for parameter in parameters:
            # Torch does not annotate it.
            name: str | None = self._names.get(parameter)  # type: ignore[no-untyped-call]
            while name is None:
                candidate = f"{UNNAMED}{self._unnamed}"
                self._unnamed += 1  # names of deleted modules are not reused
                if candidate not in self._owners:
                    self._forget_deleted()
                    self._assign(candidate, parameter)
                    name = candidate
            names.append(name)
        return tuple(names)

    def _forget_deleted(self) -> None:
        """Forget deleted parameters that had no name, whenever the number of names has doubled."""
        if len(self._owners) < self._forget_at:
            return
        self._owners = {
            name: owner
            for name, owner in self._owners.items()
            if owner() is not None or not name.startswith(UNNAMED)
        }
        self._forget_at = max(_MANY_NAMES, 2 * len(self._owners))

    def _assign(self, name: str, parameter: torch.Tensor) -> None:
        """Give a parameter this name, and free its earlier one. Raises HookConfigError if it is complex."""
        if parameter.is_complex():
            raise HookConfigError(
                f"names: {name!r} is {parameter.dtype}; use its real and imaginary parts as parameters"
            )
        if parameter in self._names:
            del self._owners[self._names[parameter]]
        self._names[parameter] = name
        self._owners[name] = TensorWeakRef(parameter)

    def _owner_id(self, name: str) -> int | None:
        """Return the id of the live parameter that has this name, or None."""
        owner = self._owners[name]() if name in self._owners else None
        return None if owner is None else id(owner)
