"""A forked child of a process with a queue of sums ends as any child, and is told not to use the queue."""

import subprocess
import sys

from patience import PATIENCE_S

HEAD = """
import os, sys
import torch
from peelsum.allreduce import LocalSummation
from peelsum.torch import SwitchAllreduceState, process_group
from peelsum.torch.sum_queue import SumQueue

def try_in_the_child(*calls):
    if not child:
        for call in calls:
            try:
                call()
            except Exception as error:
                print(type(error).__name__, error)
        sys.stdout.flush()
        os._exit(3)  # at a normal exit gloo would join its threads, which the child has not
"""
#: A queue whose threads hold its lock while the child is forked.
QUEUE = """
(seat,) = LocalSummation.group(1)
queue = SumQueue(seat, owns_backend=False)
queue.submit(lambda: None).result()
with queue._pool._turn_changed:
    child = os.fork()
"""
CALLS = """
submit = lambda: queue.submit(lambda: None).result()
try_in_the_child(submit, queue.drain, queue.close)
"""
PROCESS_GROUP = """
from torch.distributed import HashStore
from datetime import timedelta
(seat,) = LocalSummation.group(1)
process_group.connect_rank = lambda *_: seat
group = process_group.SwitchProcessGroup(HashStore(), 0, 1, timedelta(seconds=300))
group.allreduce([torch.ones(3)]).wait()
child = os.fork()
try_in_the_child(lambda: group.allreduce([torch.ones(3)]).wait(), lambda: group.barrier().wait())
"""
STATE = """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
state = SwitchAllreduceState(over=LocalSummation.group(1)[0])
state.average(torch.ones(3))
child = os.fork()
try_in_the_child(lambda: state.average(torch.ones(3)), state.state_dict)
"""
TAIL = """
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
REFUSED = (
    "HookError sum: this process was forked from the one that is connected; sum there, or make a new state "
    "or process group here, for a worker of its own"
)


def test_a_forked_child_is_refused_and_ends():
    """One that ends by itself, and one that uses a queue, a process group or a state."""
    sections = {QUEUE + "if not child: sys.exit(3)": 0, QUEUE + CALLS: 3, PROCESS_GROUP: 2, STATE: 2}
    command = [sys.executable, "-c", HEAD + "".join(section + TAIL for section in sections)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    lines = [line for line in done.stdout.splitlines() if not line.startswith("[Gloo]")]  # torch before 2.12
    assert lines == [line for count in sections.values() for line in (*[REFUSED] * count, "3")], done.stderr
