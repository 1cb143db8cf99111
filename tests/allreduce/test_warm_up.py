"""After `warm_up`, no step compiles a loop."""

import subprocess
import sys

STEPS = """
import sys
import numpy as np
from peelsum.allreduce import Allreduce, LocalSummation
from peelsum.allreduce.history_loops import warm_up

warm_up()


def signatures():
    mine = ("peelsum.codec", "peelsum.allreduce")
    modules = [one for name, one in list(sys.modules.items()) if name.startswith(mine)]
    loops = [one for module in modules for one in vars(module).values() if hasattr(one, "signatures")]
    return {f"{one.py_func.__qualname__} {found}" for one in loops for found in one.signatures}


before = signatures()
assert len(before) > 30, before
rng = np.random.default_rng(0)
for values in ("compact", "sketch", "auto"):
    reduce = Allreduce(LocalSummation.group(1)[0], values=values, forms={"thin": "sparse"})
    for step in range(6):
        thin = np.where(rng.random(60_000) < 0.01, rng.standard_normal(60_000), 0).astype(np.float32)
        thin *= 2.0 ** (9 * (step % 2))
        few = np.where(rng.random(900) < 0.05, 1, 0).astype(np.float32)
        full, none = np.ones((3, 5), np.float32), np.zeros(7, np.float32)
        plain = {"thin": thin, "few": few, "full": full, "none": none}
        frozen = rng.standard_normal(70).astype(np.float32)
        frozen.setflags(write=False)
        reduce.sum(plain, in_place=bool(step % 2))
        reduce.sum(plain | {"frozen": frozen, "strided": np.ones((6, 6), np.float32)[:, ::2]})
print("\\n".join(sorted(signatures() - before)))
"""


def test_no_step_compiles_a_loop_after_warming_up():
    ran = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n") == ["", ""]
