"""The drawing of the layers in docs/explanation/rounds.md is that of pyproject.toml's import contracts."""

import re
import tomllib
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).parents[2]


def layers_of(container):
    """Return the layers of a package's contract, highest first."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (layers,) = (
        contract["layers"]
        for contract in tool["contracts"]
        if contract["type"] == "layers" and contract["containers"] == [container]
    )
    return [layer.replace("|", "│") for layer in layers]


def drawing():
    """Return a row for each layer, above those that it may import; the softswitch's own stand below."""
    rows = [line for layer in layers_of("peelsum") for line in wrap(layer, 80, subsequent_indent="  ")]
    return "\n".join([*rows, "", "in softswitch: " + " ► ".join(layers_of("peelsum.softswitch")), ""])


def test_the_page_draws_the_layers_that_are_checked():
    page = (ROOT / "docs/explanation/rounds.md").read_text(encoding="utf-8")
    (drawn,) = re.findall(r"```text\n(.*?)```", page.partition("## Layers")[2], re.DOTALL)
    assert drawn == drawing(), f"put this into docs/explanation/rounds.md:\n{drawing()}"
