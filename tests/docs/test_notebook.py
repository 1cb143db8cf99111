"""The notebook of examples/ runs, and prints what is committed in it."""

import json
from pathlib import Path

from notebooks import code_cells, run

NOTEBOOK = Path(__file__).parents[2] / "examples/one_sum.ipynb"


def texts(outputs):
    """Return printed texts and values, without pictures, which differ between versions of Matplotlib."""
    return [
        output.get("text") or output["data"]["text/plain"]
        for output in outputs
        if "image/png" not in output.get("data", {})
    ]


def pictures(outputs):
    return sum("image/png" in output.get("data", {}) for output in outputs)


def test_the_notebook_prints_what_is_committed_in_it():
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    committed = [cell["outputs"] for cell in code_cells(notebook)]
    outputs = run(notebook)
    assert [texts(cell) for cell in outputs] == [texts(cell) for cell in committed]
    assert [pictures(cell) for cell in outputs] == [pictures(cell) for cell in committed]
    assert sum(map(pictures, outputs)) >= 3
