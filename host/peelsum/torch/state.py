"""The state of the communication hook: what the user chooses, what is kept between steps, and the way to sum.

It is pickled, and restored from `state_dict`, without the way to sum, which is made when it is first needed.
"""

from __future__ import annotations

import gc
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary

from peelsum.allreduce import (
    Allreduce,
    LocalSummation,
    Network,
    RequestedForm,
    RequestedIndex,
    StepResult,
    Summation,
)
from peelsum.codec import warm_up
from peelsum.torch.arguments import check_arguments, checked_names
from peelsum.torch.bucket_sum import BucketSum
from peelsum.torch.checkpoint import loaded, saved
from peelsum.torch.error_feedback import ErrorFeedback
from peelsum.torch.errors import HookConfigError, HookError
from peelsum.torch.futures import pass_on
from peelsum.torch.host_memory import Bucket
from peelsum.torch.pipeline import Pipeline, Seat
from peelsum.torch.sparsifiers import Sparsifier
from peelsum.torch.stats import HookStats
from peelsum.torch.ways import connect

_LOGGER = logging.getLogger(__name__)
#: What statistics are logged to.
_STATISTICS = logging.getLogger("peelsum.torch")
#: What torch calls the backward pass of a thread that is in none.
_NO_PASS = -1


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
    - `forms`, `index`, `predict`, `limbs`, `seed`, `network`: see `peelsum.allreduce.Allreduce`. All are
      lossless up to fixed point, whose error bound `stats()` returns. `limbs=2` doubles the words and adds 30
      bits of precision.
    - `sparsifier`: None sums every element. `TopK`, `RandomK` and `Threshold` send some elements and keep the
      others for later steps, in exact error feedback. With a GradScaler the residual is in units of its
      step's scale.
    - `momentum`: the momentum of Deep Gradient Compression, with a sparsifier only. The optimizer must then
      have none.
    - `implementation`: "cpu" copies gradients from a GPU to the host and back. "gpu" encodes and decodes them
      on the GPU by Triton, so that only words are copied. Both produce the same bits, and ranks may mix them.
      Sparsifiers run on the host.
    - `timeout_s`: seconds that a sum waits for other workers before it raises an error that names them. None
      takes the job's timeout, or 30 s.
    - `log_every`: steps between two lines of statistics, at level INFO of logger `peelsum.torch`; 0 for none.

    All settings must be the same on every rank, except the address in `over`, `implementation` and
    `log_every`. If they differ, every rank raises PlanMismatchError in its first step. Ranks do not learn of
    differences in sparsifiers, momentum and `timeout_s`: sums stay exact, of what each rank chose to send.
    """

    _pipeline: Pipeline | None
    _stats: HookStats
    _logged: HookStats

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        over: str | Summation = "switch",
        names: Iterable[tuple[str, torch.nn.Parameter]] = (),
        forms: RequestedForm | Mapping[str, RequestedForm] = "auto",
        index: RequestedIndex = "auto",
        predict: bool = False,
        limbs: int = 1,
        seed: int = 0,
        network: Network | None = None,
        sparsifier: Sparsifier | None = None,
        momentum: float = 0.0,
        implementation: Literal["cpu", "gpu"] = "cpu",
        timeout_s: float | None = None,
        log_every: int = 0,
    ) -> None:
        check_arguments(
            process_group=process_group,
            over=over,
            seed=seed,
            network=network,
            sparsifier=sparsifier,
            momentum=momentum,
            implementation=implementation,
            timeout_s=timeout_s,
            log_every=log_every,
        )
        if momentum and sparsifier is None:
            raise HookConfigError(
                f"momentum: {momentum} is for what a sparsifier keeps; give it to the optimizer instead"
            )
        if implementation == "gpu" and sparsifier is not None:
            raise HookConfigError("implementation: 'gpu' has no error feedback; use 'cpu' with a sparsifier")
        self._over = over
        self._implementation = implementation
        self._timeout_s, self._log_every = timeout_s, log_every
        self._forms, self._index, self._predict, self._limbs, self._seed = forms, index, predict, limbs, seed
        self._network = network or Network()
        self._sparsifier, self._momentum = sparsifier, momentum
        self._feedback = None if sparsifier is None else ErrorFeedback(sparsifier, momentum, seed)
        self._steps = 0
        self._kept = (*vars(self), "_kept")
        self.process_group = process_group
        self._start(names)
        self._check_forms()

    def connect(self) -> None:
        """Make the way to sum now, on all ranks, rather than in the first backward pass; compile kernels.

        Raises HookError after `close`, and what making it raises.
        """
        if self._closed:
            raise _left()
        if self._pipeline is None:
            warm_up(self._implementation)
            summation = connect(self._over, self.process_group, self._timeout_s)
            self._pipeline = Pipeline(summation, leave=isinstance(self._over, str))

    def close(self) -> None:
        """Leave the job, once all sums are done; every later `backward` raises HookError.

        It happens by itself when nobody holds the state any more, and at exit unless sums are under way.
        """
        self._closed = True
        pipeline, self._pipeline = self._pipeline, None
        self._sums.clear()
        if pipeline is not None:
            pipeline.close()

    def name(self, parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        """Give parameters the names by which `forms`, `stats` and checkpoints know them: after a restore.

        Raises HookConfigError for a name that another parameter has, if that is still there.
        """
        for name, parameter in checked_names(parameters):
            # Sums and residuals of the one would pass for those of the other.
            if self._owner(name) not in (None, id(parameter)):
                gc.collect()  # a module that was let go of can be in cycles
                if self._owner(name) not in (None, id(parameter)):
                    raise HookConfigError(
                        f"names: {name!r} is that of two parameters; put the names of their modules in "
                        "front, or let go of the module that has it"
                    )
            self._give(name, parameter)

    def stats(self) -> HookStats:
        """What was summed and what it cost, on this worker, since the state was made or restored."""
        with self._lock:
            return replace(self._stats, wait_s=self._wait_s)

    def state_dict(self) -> dict[str, Any]:
        """What later steps depend on, as numbers and tensors that `torch.load` takes by default.

        Call it between steps. Each rank has its own: residuals are what this rank has not sent yet.
        """
        self._drain()
        return saved(self._steps, self._feedback)

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called, with like parameters. Raises HookConfigError if it cannot."""
        self._drain()
        self._steps = loaded(values, self._feedback)

    def submit(
        self, buffer: torch.Tensor, parameters: Sequence[torch.Tensor]
    ) -> torch.futures.Future[torch.Tensor]:
        """Have a bucket averaged in place, after those submitted before; for `hook`."""
        if buffer.layout != torch.strided:
            raise HookConfigError(
                f"gradient: is {buffer.layout}; make the embedding with sparse=False, its zeros are not sent"
            )
        bucket = Bucket(buffer, [parameter.numel() for parameter in parameters])
        done = bucket.future()
        work = self._submitted(bucket, self._names_of(parameters))
        if torch._C._current_graph_task_id() == _NO_PASS:
            pass_on(work, done, lambda: buffer)
        else:
            # DDP ends its pass all the same, or it would have no other; what failed is no gradient.
            told = pass_on(work, done, lambda: buffer, after_error=lambda: buffer.fill_(math.nan))
            _call_back(partial(self._wait_for, told))
        return done

    def average(self, tensor: torch.Tensor) -> None:
        """Average a contiguous tensor in place, at once; for `fsdp_hook`. Not with a sparsifier."""
        if self._feedback is not None:
            raise HookConfigError("sparsifier: is for DDP, whose gradients have names; use None with FSDP")
        flat = tensor.detach().view(-1)
        # A name for all of a size will do: nothing but the choice of a form is kept from step to step.
        name = f"tensor of {flat.numel()}"
        self._submitted(Bucket(flat, [flat.numel()]), (name,)).result()

    def end_step(self) -> None:
        """Count a backward pass, one module's buckets of which have all been submitted; for `hook`."""
        if self._counted:
            return
        self._last_pass = torch._C._current_graph_task_id()
        self._steps += 1
        with self._lock:
            self._stats = replace(self._stats, steps=self._stats.steps + 1)
        if self._log_every and self._stats.steps % self._log_every == 0:
            if self._last_pass == _NO_PASS:
                self._log()
            else:  # once the pass has waited for all sums, those of other modules, too
                _call_back(partial(_call_back, self._log))

    def _log(self) -> None:
        """Say what the steps since the last time came to."""
        before, self._logged = self._logged, self.stats()
        _STATISTICS.info(self._logged.since(before))

    def __getstate__(self) -> dict[str, Any]:
        _LOGGER.warning("process_group and connections are not saved with a SwitchAllreduceState")
        self._drain()
        kept = {name: getattr(self, name) for name in self._kept}
        if not isinstance(self._over, str):
            kept["_over"] = "switch"
        return kept

    def __setstate__(self, kept: dict[str, Any]) -> None:
        vars(self).update(kept)
        self.process_group = None
        self._start(())
        _LOGGER.warning(
            "SwitchAllreduceState restored with all ranks as process_group, and without parameters' names: "
            "set process_group and call name() before the first step if they were others"
        )

    def _start(self, names: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        """What a process makes anew."""
        self._names: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._owners: dict[str, TensorWeakRef] = {}
        self._unnamed = 0
        self._last_pass = _NO_PASS
        self._lock = threading.Lock()
        self._sums: dict[tuple[str, ...], BucketSum] = {}
        self._pipeline, self._closed = None, False
        self._stats, self._wait_s = HookStats(), 0.0
        self._logged: HookStats = self._stats
        self.name(names)

    def _submitted(self, bucket: Bucket, names: tuple[str, ...]) -> Future[None]:
        """A bucket's sum under way."""
        if self._closed:
            refused: Future[None] = Future()
            refused.set_exception(_left())
            return refused
        self.connect()
        assert self._pipeline is not None
        if names not in self._sums:
            self._sums[names] = self._new_sums(names)
        sums, step = self._sums[names], self._steps - self._counted
        return self._pipeline.submit(sums.seat, lambda: self._count(sums.run(bucket, step)))

    @property
    def _counted(self) -> bool:
        """Whether the backward pass that is under way has been counted, with another module's buckets."""
        return self._last_pass != _NO_PASS and self._last_pass == torch._C._current_graph_task_id()

    def _names_of(self, parameters: Sequence[torch.Tensor]) -> tuple[str, ...]:
        for parameter in parameters:
            while parameter not in self._names:
                name = f"parameter {self._unnamed}"
                self._unnamed += 1  # those of modules that are gone are not given again
                if name not in self._owners:
                    self._give(name, parameter)
        return tuple(self._names[parameter] for parameter in parameters)

    def _give(self, name: str, parameter: torch.Tensor) -> None:
        if parameter.is_complex():
            raise HookConfigError(
                f"names: {name!r} is {parameter.dtype}; have its real and imaginary parts as parameters"
            )
        if parameter in self._names:
            del self._owners[self._names[parameter]]
        self._names[parameter] = name
        self._owners[name] = TensorWeakRef(parameter)

    def _owner(self, name: str) -> int | None:
        """The id of the parameter that has a name, if it is still there."""
        owner = self._owners[name]() if name in self._owners else None
        return None if owner is None else id(owner)

    def _new_sums(self, names: tuple[str, ...]) -> BucketSum:
        assert self._pipeline is not None
        seat = Seat(self._pipeline)
        allreduce = self._allreduce(seat, self._forms_of(names), names, self._implementation)
        return BucketSum(names, seat, allreduce, self._feedback, on_host=self._implementation == "cpu")

    def _allreduce(
        self,
        summation: Summation,
        forms: RequestedForm | Mapping[str, RequestedForm],
        names: Sequence[str],
        implementation: Literal["cpu", "gpu"],
    ) -> Allreduce:
        return Allreduce(
            summation,
            forms=forms,
            sparse=() if self._feedback is None else names,
            index=self._index,
            predict=self._predict,
            limbs=self._limbs,
            seed=self._seed,
            network=self._network,
            average=True,
            implementation=implementation,
            span=_profiled,
        )

    def _check_forms(self) -> None:
        """Have an Allreduce refuse now what it would refuse in the first step, and forms of unknown names."""
        try:
            self._allreduce(LocalSummation.group(1)[0], self._forms, (), "cpu")
        except ValueError as error:
            raise HookConfigError(str(error)) from error
        unknown = set() if isinstance(self._forms, str) else set(self._forms) - set(self._owners)
        if self._owners and unknown:
            raise HookConfigError(
                f"forms: {min(unknown)!r} is not among `names`; correct it, or give the names of all modules"
            )

    def _forms_of(self, names: tuple[str, ...]) -> RequestedForm | Mapping[str, RequestedForm]:
        """What was asked for a bucket's parameters: an Allreduce knows of no others."""
        if isinstance(self._forms, str):
            return self._forms
        return {name: form for name, form in self._forms.items() if name in names}

    def _wait_for(self, work: Future[None]) -> None:
        """At the end of a backward pass, which then raises what the work raised.

        Where PyTorch waits for the bucket's future, in C++, an error would lose its type. It is raised when
        all of DDP's callbacks, too, have been called.
        """
        started = time.perf_counter()
        with _profiled("wait"):
            error = work.exception()
        self._wait_s += time.perf_counter() - started
        if error is not None:
            _call_back(lambda: work.result())

    def _count(self, result: StepResult) -> None:
        with self._lock:
            self._stats = self._stats.plus(result)

    def _drain(self) -> None:
        if self._pipeline is not None:
            self._pipeline.drain()


def _profiled(phase: str) -> torch.profiler.record_function:
    """A range in the traces of torch's profiler."""
    return torch.profiler.record_function(f"peelsum::{phase}")


def _left() -> HookError:
    return HookError("state: has left its job, by close(); make a new one to go on")


def _call_back(function: Callable[[], None]) -> None:
    """Have it called at the end of this thread's backward pass, after what else is to be called by then."""
    torch.autograd.Variable._execution_engine.queue_callback(function)
