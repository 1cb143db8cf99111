"""A process group for torchft, which configures it anew for each quorum: each time, with a job of its own.

torchft's manager decides which replica groups train, and calls `configure` whenever these change. The old
group then ends without waiting, and the new one requests a job for its ranks from `peelsum job serve`.
"""

# No `from __future__ import annotations`: DDP inspects the annotations of its hook as objects.

import concurrent.futures
import threading
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket, Store  # type: ignore[attr-defined]  # not exported, but documented
from torchft import ddp
from torchft.process_group import ProcessGroupWrapper

from peelsum.allreduce.history_loops import warm_up
from peelsum.torch.errors import HookFailedError
from peelsum.torch.process_group import SwitchOptions, SwitchProcessGroup
from peelsum.transport import warming

#: Words in a packet when loops are compiled ahead of use. The compiled loops take packets of any size.
_LANES = 32


class ProcessGroupPeelsum(ProcessGroupWrapper):  # type: ignore[misc]  # torchft has no type information
    """A process group of torchft that sums over the switch: `torchft.Manager(pg=ProcessGroupPeelsum(), ...)`.

    PEELSUM_JOB names a `peelsum job serve`, whose description needs spare ports for two groups of all ranks.

    After an error, all calls of the group fail until `configure`. The manager does not commit the step.
    """

    def __init__(
        self, timeout: timedelta = timedelta(seconds=60), options: SwitchOptions | None = None
    ) -> None:
        """Compile what groups need, so that `configure` does not; this takes a minute or two the first time.

        timeout: how long `configure` and calls may take. options: see `SwitchOptions`.
        """
        super().__init__(timeout)
        self._pg: Any = None
        warm_up()
        warming.warm_up(_LANES)
        self._options = options
        self._error: Exception | None = None

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return torchft's name of this kind of group."""
        return "torchft-peelsum"

    def errored(self) -> Exception | None:
        """Return why the calls of this group fail, or None: a call over the switch has failed, or `abort`."""
        failure = self._pg.failure if isinstance(self._pg, SwitchProcessGroup) else None
        return failure if isinstance(failure, Exception) else self._error

    def abort(self, errored: bool = True) -> None:
        """Fail all calls over the switch, and leave the job, without waiting for other ranks.

        errored: whether this is an error, which `errored` then returns.
        """
        if errored:
            self._error = HookFailedError("group: was aborted on this rank; configure it again")
        super().abort(errored)

    def shutdown(self) -> None:
        """Leave the job in order, once the other ranks have the results of all calls, or after 2 s."""
        group, self._pg = self._pg, None
        if group is not None:
            group.shutdown()

    def _create_pg(self, store: Store, rank: int, world_size: int) -> SwitchProcessGroup:
        """Return a group in a job of its own. Raises an error, or HookFailedError after the timeout."""
        self._error = None
        made: Future[SwitchProcessGroup] = Future()
        timeout, options = self._timeout, self._options

        def make() -> None:
            try:
                made.set_result(
                    SwitchProcessGroup(
                        store, rank, world_size, timeout, options, further=True, needs_job=True
                    )
                )
            except BaseException as error:  # `configure` raises it
                made.set_exception(error)

        # In a thread, because some of its waits for other ranks have longer limits, for ranks that compile.
        threading.Thread(target=make, name="peelsum configures", daemon=True).start()
        try:
            return made.result(timeout.total_seconds())
        except concurrent.futures.TimeoutError:
            made.add_done_callback(_abort_group)
            raise HookFailedError(
                f"configure: not all of {world_size} ranks are ready after {timeout.total_seconds():g} s; "
                "see whether they run, or give the process group a longer timeout"
            ) from None

    def _opts_hook(self, opts: Any) -> Any:
        """Return the options of an all-reduce if torchft gives the operation only."""
        if not isinstance(opts, dist.ReduceOp | dist.ReduceOp.RedOpType):
            return opts
        options: Any = dist.AllreduceOptions()
        options.reduceOp = opts
        return options


def _abort_group(made: Future[SwitchProcessGroup]) -> None:
    """Abort a group that was made too late."""
    if made.exception() is None:
        made.result().abort()


class DistributedDataParallel(ddp.DistributedDataParallel):  # type: ignore[misc]  # likewise
    """torchft's DistributedDataParallel, whose `backward` also returns after an all-reduce has failed.

    The manager then does not commit the step. torchft 0.2's own `backward` raises an AssertionError or
    AttributeError, with any process group.
    """

    @staticmethod
    def _comm_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average a bucket by the manager `state`, which keeps an error for itself."""
        buffer = bucket.buffer()
        state.allreduce(buffer).wait()
        devices: list[Any] = [buffer.device] if buffer.is_cuda else []
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        future.set_result(buffer)
        return future
