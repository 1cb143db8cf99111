"""Processes for tests of torchft: its lighthouse, and replicas that train the example, with more sums."""

import atexit
import os
import sys
import traceback
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from forked_children import inherit_no_ends, start_apart
from patience import PATIENCE_S
from torch_ranks import _CONTEXT
from torchft import Manager
from torchft.coordination import LighthouseServer
from trainer_ranks import EXAMPLES

from peelsum.torch.torchft import ProcessGroupPeelsum

_NUMBERS = 5000


class Process:
    """A process that runs work(pipe, *arguments), and what it sends."""

    def __init__(self, work, *arguments):
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_run, args=(theirs, work, *arguments))
        start_apart(self._process)
        theirs.close()
        self.send = self._pipe.send

    def receive(self):
        """Its next message. Raises RuntimeError with the traceback if it has failed."""
        assert self._pipe.poll(PATIENCE_S), "no message in time"
        failed, message = self._pipe.recv()
        if failed:
            raise RuntimeError(message)
        return message

    def close(self):
        """Kill it, if it has not ended."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _run(pipe, work, *arguments):
    inherit_no_ends()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        work(pipe, *arguments)
    except BaseException:
        pipe.send((True, traceback.format_exc()))
    atexit._run_exitfuncs()
    os._exit(0)


def lighthouse(pipe, options):
    """Run torchft's lighthouse until the process is killed; send its port."""
    server = LighthouseServer(bind="[::]:0", **options)
    pipe.send((False, int(server.address().rpartition(":")[2])))
    pipe.recv()


def numbers(quorum, rank):
    """The numbers that a rank adds to the sums of a quorum."""
    return np.random.default_rng([quorum, rank]).integers(-(2**62), 2**62, _NUMBERS)


class SummedNumbers(ProcessGroupPeelsum):
    """Before every all-reduce, sums numbers, and compares the sum with NumPy's, modulo 2**64."""

    def __init__(self, timeout_s):
        super().__init__(timedelta(seconds=timeout_s))
        #: How many ranks each sum had.
        self.sizes = []
        self.wrong_sums = 0

    def allreduce(self, tensors, opts):
        """See `ProcessGroupPeelsum`."""
        quorum, ranks = self._quorum_id or 0, self.size()
        summed = torch.from_numpy(numbers(quorum, self._rank or 0))
        super().allreduce([summed], dist.ReduceOp.SUM).wait()
        expected = np.sum([numbers(quorum, rank) for rank in range(ranks)], axis=0)
        self.wrong_sums += not np.array_equal(summed.numpy(), expected)
        self.sizes.append(ranks)
        return super().allreduce(tensors, opts)


def trained(pipe, environment, timeout_s, steps, wait_at):
    """Send each step's number before its quorum, at last parameters, sizes and wrong sums.

    At step `wait_at`, wait for a message.
    """
    os.environ.update(environment)
    sys.path.insert(0, str(EXAMPLES))
    import task
    import with_torchft

    groups = []

    class Reporting(Manager):  # torchft has no type information
        def __init__(self, **options):
            groups.append(options["pg"])
            super().__init__(**options, hostname="127.0.0.1")
            self._waits = True

        def start_quorum(self, *arguments, **options):
            pipe.send((False, self.current_step()))
            if self._waits and self.current_step() >= wait_at:
                self._waits = False
                pipe.recv()
            super().start_quorum(*arguments, **options)

    with_torchft.socket.gethostname = lambda: "127.0.0.1"
    with_torchft.STEPS, with_torchft.Manager = steps, Reporting
    with_torchft.ProcessGroupPeelsum = lambda: SummedNumbers(timeout_s)
    parameters = task.parameters(with_torchft.train().model).numpy()
    pipe.send((False, (parameters, groups[0].sizes, groups[0].wrong_sums)))
