"""Plans, and malformed experiments and options, which end in one line that names file, field and remedy."""

import pytest
from command_line import benchmarks

from benchmarks.experiment import find, load, plan

CHANGES = {
    "size": ('"usual": Size(', '"huge": Size(', "sizes: quick, huge cannot be all; add 'usual'"),
    "repetitions": (
        '("a",)}], 2)',
        '("a",)}], 0)',
        "sizes.quick: has no points; give each parameter a value",
    ),
    "plot": (
        'x="width"',
        'x="wide"',
        "plots: 'wide' is no parameter of measure and no column; use one of width, way",
    ),
    "modelled": (
        'modelled={"way"',
        'modelled={"ways"',
        "modelled: 'ways' is no parameter of measure and no column",
    ),
    "missing": ("EXPERIMENT = Experiment(", "OTHER = Experiment(", "mine.py: EXPERIMENT: is None; set it"),
    "column": ('"area": width', '"volume": width', "measure: area, volume: is only in"),
    "syntax": ("EXPERIMENT = Experiment(", "EXPERIMENT = Experiment((", "mine.py, line "),
    "row": ("return figures |", "return [] and figures |", "measure: returned list; return a dict"),
}
OPTIONS = {
    ("unheard",): "unheard: cannot be read; use the path of a file, or one of accuracy, ",
    ("densities", "--model", "ncf"): "densities: is gone; use peelsum trace record --model MODEL, then",
    (): "NAME: is missing; use",
    ("slots", "--slots", "0"): "--slots: '0' cannot be used; use 256 to 1048576",
    ("slots", "--slot", "512"): "--slot: is no parameter of slots; use one of --slots, --jobs",
    ("slots", "--slots", "many"): "--slots: 'many' cannot be used; use 256 to",
    ("scale", "--elements", "1.5"): "--elements: '1.5' is not of type int; give such a value",
    ("codec", "--support", "cube"): "--support: 'cube' cannot be used; use uniform, rows, columns",
    ("slots", "--slots", "300", "--jobs", "1", "--links", "long", "--quick"): "300 is not a power of two",
    ("draw", "slots"): "slots/rows.csv: No such file or directory; pass a file of rows",
}


def one_line(*arguments):
    done = benchmarks(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    *_, line = done.stderr.splitlines()  # on a busy machine after lines of progress
    return line


@pytest.mark.parametrize("change", CHANGES)
def test_a_malformed_experiment_is_one_line(mine, tmp_path, change):
    before, after, said = CHANGES[change]
    assert before in mine.read_text()
    mine.write_text(mine.read_text().replace(before, after, 1))
    assert one_line(str(mine), "--quick", "--out", str(tmp_path)).startswith(f"peelsum: {said}")


@pytest.mark.parametrize("arguments", OPTIONS)
def test_invalid_options_are_one_line(arguments, tmp_path):
    assert OPTIONS[arguments] in one_line(*arguments, "--out", str(tmp_path))


def test_the_same_seed_gives_the_same_plan(mine):
    experiment = load(find(str(mine)))
    tasks = plan(experiment, "usual", 3)
    assert tasks == plan(experiment, "usual", 3) != plan(experiment, "usual", 4)
    for repetition in range(3):
        block = tasks[7 * repetition :][:7]
        assert {(task.repetition, task.seed) for task in block} == {(repetition, 3 + repetition)}
        assert len({(task.point["width"], task.point["way"]) for task in block}) == 7
    assert [task.point for task in tasks[:7]] != [task.point for task in tasks[7:14]]


def test_a_point_of_two_parts_is_measured_once():
    """Parts that name a parameter that the other leaves to its default have it in another place."""
    options = {"level": ("packet",), "way": ("peelsum",), "workers": (4, 8), "loss": (0.001,)}
    tasks = plan(load(find("scale")), "usual", 0, options)
    assert [(task.point["workers"], task.repetition) for task in tasks if task.repetition == 0] in (
        [(4, 0), (8, 0)],
        [(8, 0), (4, 0)],
    )
