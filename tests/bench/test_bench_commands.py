"""`peelsum bench` and `plan`: wrong options end in one line, and old names in one that says what to write."""

import pytest
import typer
from command_line import peelsum

from peelsum.cli import bench

PLAN = ("plan", "--elements", "1000000", "--gbps", "10", "--rtt", "0.001", "--density")
OF_BENCH = {
    ("run", "density", "--quick"): "in a checkout of peelsum, write: python -m benchmarks density --quick",
    ("run", "switch", "--lanes", "32"): "run: is gone; write: peelsum bench switch --lanes 32",
    ("draw", "density"): "write: python -m benchmarks draw density",
    ("loss",): "loss: is none of allreduce, switch, endpoint, codec, train; in a checkout of peelsum, write: "
    "python -m benchmarks loss",
    ("switch", "--lanes", "33"): "--lanes: '33' is unknown; use one of 32, 64, 128, 256, 512, 1024, 2048",
    ("codec", "--density", "many"): "--density: 'many' is no list of numbers; write numbers like 1,10",
    ("codec", "--density", "0.5,2"): "--density: 2 is out of range; use 1e-09 to 1",
    ("codec", "--elements", "99999999999"): "--elements: 99,999,999,999 at density",
    ("codec", "--support", "cube"): "--support: 'cube' is unknown; use one of uniform, ",
    ("codec", "--device", "abacus"): "--device: 'abacus' ",
    ("endpoint", "--repetitions", "0"): "--repetitions: 0 is out of range; use 1 to 1000",
    ("train", "--model", "resnet"): "'resnet' is unknown; use ncf, lstm, vgg19, bert",
    ("train", "--gbps", "fast"): "'fast' is no list of numbers",
    ("train", "--gbps", "0"): "--gbps: 0 is out of range",
    ("train", "--workers", "1"): "--workers: 1 is out of range",
    ("train", "--top-k", "2"): "--top-k: 2 is out of range",
}
ERRORS = {("bench", *words): message for words, message in OF_BENCH.items()} | {
    ("plan", "--elements", str(2**40), *PLAN[3:], "1"): "--elements: 1099511627776 is out of range; ",
    (*PLAN, "1.5"): "--density: 1.5 is out of range; use 0 to 1",
    (*PLAN, "0.6", "--support", "columns"): "--density: 0.6 is out of range; use 0 to 0.5",
}


@pytest.mark.parametrize("arguments", ERRORS)
def test_what_cannot_be_measured_is_one_line(arguments):
    done = peelsum(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    *_, line = done.stderr.splitlines()  # on a busy machine after lines of progress
    assert ERRORS[arguments] in line


def test_a_table_of_repetitions_hides_no_wrong_sum(capsys):
    """Of five repetitions one was wrong, whose median was 0, and the first was exact."""

    def measure(seed, **point):
        return [{"way": "a", "time": float(seed), "wrong": 7 * (seed == 3), "exact": seed != 3}]

    with pytest.raises(typer.Exit) as ended:
        bench._measure(measure, [{}], ["way"], ["time", "wrong", "exact"], bench._Runs(repetitions=5))
    assert ended.value.exit_code == 1
    assert capsys.readouterr().out.split() == ["way", "time", "wrong", "exact", "a", "2", "7", "no"]
