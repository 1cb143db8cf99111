"""The drawing of the layers in docs/explanation/rounds.md is that of pyproject.toml's import contracts."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def layers_of(container):
    """Return the layers of a package's contract, highest first."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (layers,) = (
        contract["layers"]
        for contract in tool["contracts"]
        if contract["type"] == "layers" and contract["containers"] == [container]
    )
    return layers


def rows(layers, name):
    """Return the lines of a flowchart with a row per layer, each above those that it may import."""
    lines = [f'    {name}{number}["{layer.replace(" |", ",")}"]' for number, layer in enumerate(layers)]
    return [*lines, "    " + " --> ".join(f"{name}{number}" for number in range(len(layers)))]


def drawing():
    inside = rows(layers_of("peelsum.softswitch"), "inside")
    return "\n".join(
        [
            "flowchart TD",
            *rows(layers_of("peelsum"), "layer"),
            "    subgraph softswitch_layers [inside the softswitch]",
            *(f"    {line}" for line in inside),
            "    end\n",
        ]
    )


def test_the_page_draws_the_layers_that_are_checked():
    page = (ROOT / "docs/explanation/rounds.md").read_text(encoding="utf-8")
    (drawn,) = re.findall(r"```mermaid\n(flowchart.*?)```", page.partition("## Layers")[2], re.DOTALL)
    assert drawn == drawing(), f"put this into docs/explanation/rounds.md:\n{drawing()}"
