"""Runs a Jupyter notebook without Jupyter. `python notebooks.py FILE` also writes the outputs into it.

Cells run in order in one namespace. Outputs are what a cell prints, and the value of its last expression: a
PNG if it has `_repr_png_`, else text.
"""

import ast
import base64
import json
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path


def run(notebook):
    """Return the outputs of each code cell of a notebook (its parsed JSON). Errors of cells propagate."""
    namespace = {"__name__": "__main__"}
    return [_outputs("".join(cell["source"]), namespace) for cell in code_cells(notebook)]


def code_cells(notebook):
    """Return the code cells, in order."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _outputs(source, namespace):
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = StringIO(), None
    with redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), namespace)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)
    outputs = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_png_"):
            data["image/png"] = base64.b64encode(value._repr_png_()).decode()
        outputs.append({"output_type": "execute_result", "data": data, "metadata": {}})
    return outputs


def write_outputs(path):
    """Run a notebook and write its outputs into the file."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for count, (cell, outputs) in enumerate(zip(code_cells(notebook), run(notebook), strict=True), 1):
        for output in outputs:
            if output["output_type"] == "execute_result":
                output["execution_count"] = count
        cell.update(execution_count=count, outputs=outputs)
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_outputs(Path(sys.argv[1]))
