"""The state of the communication hook: its settings, and what it keeps between steps."""

from __future__ import annotations

import logging
import math
import os
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist

from peelsum.allreduce import History, NetworkModel, RequestedForm, RequestedValues, Summation
from peelsum.compress import Compressor, Flexible
from peelsum.torch.backward_pass import call_at_end, pass_on, this_pass, wait_at_end
from peelsum.torch.bucket_sum import BucketSums
from peelsum.torch.buckets import Bucket
from peelsum.torch.checkpoint import files, loaded, place_in, read, saved, write
from peelsum.torch.errors import HookConfigError
from peelsum.torch.parameter_names import ParameterNames
from peelsum.torch.settings import Settings
from peelsum.torch.sparse_sums import SparseTensor, check_layouts
from peelsum.torch.starts import expect_start
from peelsum.torch.stats import HookStats, RunningStats
from peelsum.torch.tracing import Tracing

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
      some elements and keep the others for later steps, in exact error feedback; with `momentum`, by the
      momentum correction of Deep Gradient Compression. With a GradScaler the residual is in units of its
      step's scale. Additive payloads go over the backend as 32-bit words, indexed ones through the
      all-reduce's index. Gathered ones go by an all_gather of the ranks' process group.
    - `strategy`: a `peelsum.compress.Flexible`, which chooses method and ratio of each step by what steps
      measure. What one method does not send is kept for the next. The decisions are in `stats().strategy`
      and, at level INFO, in the log.
    - `error_feedback`: whether what is not sent is kept for later steps; None does so if the compressor needs
      it. True without a compressor keeps what fixed point rounds off.
    - `implementation`: "gpu" encodes and decodes gradients on their GPU by Triton, so that only words are
      copied. "cpu" copies gradients to the host and back. None takes "gpu" for gradients on a GPU if Triton
      is installed. Both produce the same bits, and ranks may mix them. Compressors run on the host.
    - `timeout_s`: seconds that a sum waits for other workers before it raises an error that names them. None
      takes the job's timeout, or 30 s.
    - `log_every`: steps between two lines of statistics, at level INFO of logger `peelsum.torch`; 0 for none.

    Sparse gradients, of tables with `sparse=True`, are summed by rows at the end of a backward pass, without
    loss: `forms`, `values`, `compressor` and `strategy` do not concern them.

    Under `peelsum trace record`, a state also records the gradients that it gets, before they are summed.

    All settings must be the same on every rank, except the address in `over`, `implementation` and
    `log_every`. If they differ, every rank raises PlanMismatchError in its first step. Ranks do not learn of
    differences in `timeout_s`.
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
        log_every: int = 0,
    ) -> None:
        if not isinstance(process_group, dist.ProcessGroup | None):
            raise HookConfigError(
                f"process_group: {process_group!r} is not a group that this rank is in; give one of "
                "torch.distributed, or None for all ranks"
            )
        settings = Settings(
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
        )
        self._begin(process_group, settings, Tracing.of_environment())
        self.name(names)
        settings.check_forms(self._names.given)
        if settings.makes_backend:
            expect_start(process_group or dist.group.WORLD)

    def _begin(
        self, process_group: dist.ProcessGroup | None, settings: Settings, tracing: Tracing | None
    ) -> None:
        """Set all attributes, for no steps yet."""
        self.process_group, self._settings, self._tracing = process_group, settings, tracing
        self._reducer, self._history = settings.reducer(), History()
        #: Backward passes, of which one through several modules counts once, and the id of the last.
        self._steps = 0
        self._counted: int | None = None
        self._names = ParameterNames()
        self._stats = RunningStats(settings.log_every)
        self._sums = BucketSums(settings, self._reducer, self._history, self._stats.add)
        self._unused = weakref.finalize(self, _warn_unused)

    def __getstate__(self) -> dict[str, Any]:
        """Return settings, names and `state_dict`, for copies, which connect anew.

        Raises HookConfigError if the backend or the group cannot be copied.
        """
        if not self._settings.makes_backend:
            raise HookConfigError("over: a Summation is not copied; copy ddp.module, without the hook")
        if self.process_group not in (None, dist.group.WORLD):
            raise HookConfigError("process_group: is not copied; copy ddp.module, without the hook")
        return {"settings": self._settings, "names": self._names.pairs(), "values": self.state_dict()}

    def __setstate__(self, copied: Mapping[str, Any]) -> None:
        self._begin(None, copied["settings"], None)
        self._unused.detach()  # a copy of a module need not be trained
        self.name(copied["names"])
        self.load_state_dict(copied["values"])

    def connect(self) -> None:
        """Connect to the backend and compile kernels now, on all ranks, not in the first backward pass.

        Without `implementation`, those of the host: where gradients are is not known yet.
        Raises HookError after `close`, and the errors of connecting.
        """
        self._sums.connect(self.process_group)

    def close(self) -> None:
        """Leave the job once all sums are done. Every later `backward` raises HookError.

        An unreferenced state leaves by itself, and so does every state at exit unless sums are running.
        """
        self._unused()
        self._sums.close()
        if self._tracing is not None:
            self._tracing.close()

    def name(self, parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        """Name parameters for `forms`, `stats` and checkpoints, e.g. after a restore.

        Raises HookConfigError if another live parameter has one of the names.
        """
        self._names.give(parameters)

    @property
    def unused(self) -> bool:
        """Whether no gradient has been submitted yet."""
        return self._unused.alive

    def stats(self) -> HookStats:
        """Return what this worker summed, and its cost, since the state was made or restored."""
        return replace(self._stats.now(), strategy=self._reducer.stats())

    def state_dict(self) -> dict[str, Any]:
        """Return what later steps depend on, as numbers and tensors that `torch.load` accepts by default.

        Call it between steps. With a compressor or strategy, save it on every rank: residuals are what this
        rank has not sent yet.
        """
        self._sums.drain()
        return saved(place_in(self.process_group), self._steps, self._history, self._reducer)

    def load_state_dict(self, values: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue where `state_dict` was called.

        values: what `state_dict` returned on this rank, or a list of what it returned on all ranks of a run,
        in any order. With a list, their number may differ, and this rank takes its share of the residuals.
        Raises HookConfigError for values of another state, and for residuals of another rank.
        """
        self._sums.drain()
        place = place_in(self.process_group)
        self._steps = loaded(values, place, self._history, self._reducer)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `state_dict` to a file of this rank in a folder. Call it on every rank, between steps."""
        write(folder, self.state_dict())

    def load(self, folder: str | os.PathLike[str], *, redistribute: bool = False) -> None:
        """Continue where `save` was called.

        redistribute: whether the residuals may be those of another number of ranks, which these ranks then
        share out. Raises HookConfigError if this rank has no file there, or as `load_state_dict` does.
        """
        self.load_state_dict(read(folder, redistribute=redistribute or not self._reducer.residuals))

    def load_if_saved(self, folder: str | os.PathLike[str], *, redistribute: bool = False) -> None:
        """Do as `load` for a trainer that resumes; without any state in the folder, log a warning."""
        if files(folder):
            self.load(folder, redistribute=redistribute)
        else:
            _LOGGER.warning("state: %s has none; training goes on with an empty one", folder)

    def submit(
        self, buffer: torch.Tensor, parameters: Sequence[torch.Tensor], *, last: bool = True
    ) -> torch.futures.Future[torch.Tensor]:
        """Queue a bucket to be averaged in place, after those submitted before; for `hook`.

        last: whether no other bucket of the module follows in this backward pass.
        """
        bucket: Bucket | SparseTensor
        if buffer.layout == torch.strided:
            bucket = Bucket(buffer, [parameter.shape for parameter in parameters])
        else:
            check_layouts("gradient", [buffer])
            bucket = SparseTensor(buffer)
        done = bucket.future()
        self._unused.detach()
        within = this_pass()
        names, step = self._names.of(parameters), self._step(within)
        if self._tracing is not None:
            if isinstance(bucket, Bucket):
                self._tracing.record(names, bucket, self.process_group)
            else:
                warnings.warn("trace: leaves out sparse gradients, as it records all elements", stacklevel=2)
        last |= within is None
        if not last:
            call_at_end(partial(self._sums.flush, step))  # if DDP never hands over its last bucket
        work = self._sums.submit(bucket, names, step, self.process_group, last=last, within=within)
        if self._tracing is not None:
            work.add_done_callback(self._tracing.note_sum)
        if within is not None:
            # DDP must end its pass normally to be able to begin another; failed gradients become NaN.
            told = pass_on(work, done, lambda: buffer, after_error=lambda: _filled_with_nan(buffer))
            wait_at_end(told, self._stats.add_wait)
        else:
            pass_on(work, done, lambda: buffer)
        return done

    def average(self, tensor: torch.Tensor) -> None:
        """Average a contiguous tensor in place, at once; for `fsdp_hook`. Not with what keeps residuals."""
        if self._reducer.residuals:
            raise HookConfigError(
                f"{self._reducer.argument}: is for DDP, whose gradients have names; use None with FSDP"
            )
        flat = tensor.detach().view(-1)
        # One name for all tensors of a size suffices: only the choice of a form is kept between steps.
        name = f"tensor of {flat.numel()}"
        self._unused.detach()
        step = self._step(this_pass())
        self._sums.submit(Bucket(flat, [flat.shape]), (name,), step, self.process_group).result()
        self.end_step()

    def _step(self, within: int | None) -> int:
        """Return the number of the step to which a bucket of the backward pass `within` belongs."""
        return self._steps - (within is not None and within == self._counted)

    def average_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Average gradients in place, at once, as a bucket; for trainers without DDP, after `backward`.

        The same parameters must have gradients on all ranks. Raises HookConfigError, also without any
        gradient, or what the sum raises.
        """
        given = {one: one.grad for one in parameters if one.grad is not None}
        if not given:
            raise HookConfigError("parameters: none has a gradient; call this after `backward`")
        for parameter in [parameter for parameter, gradient in given.items() if gradient.is_sparse]:
            self.submit(given.pop(parameter), [parameter]).wait()
        if given:
            self._average_dense(given)
        self.end_step()

    def _average_dense(self, given: Mapping[torch.nn.Parameter, torch.Tensor]) -> None:
        flat = torch.cat([gradient.flatten() for gradient in given.values()])
        self.submit(flat, list(given)).wait()
        averages = flat.split_with_sizes([one.numel() for one in given])
        for gradient, average in zip(given.values(), averages, strict=True):
            gradient.copy_(average.view_as(gradient))

    def end_step(self) -> None:
        """Count a backward pass once one module's buckets have all been submitted; for `hook`."""
        within = this_pass()
        if within is not None and within == self._counted:  # with another module's buckets
            return
        self._steps, self._counted = self._steps + 1, within
        if self._tracing is not None:
            self._tracing.end_step()
        if not self._stats.count_step():
            return
        if within is not None:
            # Log after the pass has waited for all sums, those of other modules included.
            call_at_end(partial(call_at_end, self._stats.log))
        else:
            self._stats.log()


def _filled_with_nan(gradient: torch.Tensor) -> torch.Tensor:
    """Set a gradient's values to NaN, in place, and return it."""
    (gradient._values() if gradient.is_sparse else gradient).fill_(math.nan)
    return gradient


def _warn_unused() -> None:
    """Tell of a state that ends before any gradient came: a trainer may leave hooks out silently."""
    _LOGGER.warning(
        "state: no gradient ever came to it; register it by ddp.register_comm_hook(state, hook), or with "
        "Lightning, whose DDPStrategy registers hooks on CUDA only, by peelsum.torch.lightning.SwitchStrategy"
    )
