"""A small experiment, as a user's own file."""

import pytest

from benchmarks import rows

MINE = '''\
"""Squares; each call leaves a line in a file beside this one's rows."""

import time

from benchmarks import Experiment, Plot, Size


def measure(seed, width, way):
    time.sleep(PAUSE_S)
    figures = {"area": width * width + seed, "label": way, "lost": None if way == "b" else 0.5}
    return figures | ({"note": "b, has no loss"} if way == "b" else {})


PAUSE_S = 0.0
EXPERIMENT = Experiment(
    name="squares",
    title="Squares",
    about="Areas of squares.",
    measure=measure,
    columns={
        "area": "cells, more with a larger seed",
        "label": "what it is called",
        "lost": "share that is lost",
    },
    modelled_columns=("lost",),
    sizes={
        "quick": Size([{"width": (1, 2), "way": ("a",)}], 2),
        "usual": Size([{"width": (1, 2, 4), "way": ("a", "b")}, {"width": (8,), "way": ("a",)}], 3),
    },
    plots=[Plot("areas", x="width", y="area", lines="way", log="xy")],
    modelled={"way": ("b",)},
)
'''


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch):
    """Rows without measured times are measured here, too: a process takes seconds for its imports."""
    monkeypatch.setattr(rows, "_FEW", 1000)


@pytest.fixture
def mine(tmp_path):
    """The path of the file of an experiment with 21 rows."""
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path
