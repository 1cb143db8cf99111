"""`peelsum bench`: old names end in one line that says what to write now, as wrong options do."""

import pytest
from command_line import peelsum

ERRORS = {
    ("run", "density", "--quick"): "in a checkout of peelsum, write: python -m benchmarks density --quick",
    ("run", "switch", "--lanes", "32"): "run: is gone; write: peelsum bench switch --lanes 32",
    ("draw", "density"): "write: python -m benchmarks draw density",
    ("loss",): "loss: is none of allreduce, switch, endpoint, codec, train; in a checkout of peelsum, write: "
    "python -m benchmarks loss",
    ("switch", "--lanes", "33"): "--lanes: '33' is unknown; use one of 32, 64, 128, 256, 512, 1024, 2048",
    ("codec", "--density", "many"): "--density: 'many' is no list of numbers; write numbers like 1,10",
    ("codec", "--density", "0.5,2"): "--density: 2 is out of range; use 1e-09 to 1",
    ("endpoint", "--repetitions", "0"): "--repetitions: 0 is out of range; use 1 to 1000",
}


@pytest.mark.parametrize("arguments", ERRORS)
def test_what_cannot_be_measured_is_one_line(arguments: tuple[str, ...]) -> None:
    done = peelsum("bench", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.endswith(ERRORS[arguments])
