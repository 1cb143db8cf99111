"""Every shell block of the README, docs and examples runs as pasted."""

import re
from pathlib import Path

import pytest
from mininet_missing import mininet_missing
from snippets import blocks, play

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("examples/**/*.md"))]
#: Tests of their own run these: two are sessions, two need several machines.
APART = (
    ROOT / "docs/tutorial/one-chunk.md",
    ROOT / "docs/how-to/aggregate-on-a-server.md",
    ROOT / "docs/how-to/train-on-several-nodes.md",
    ROOT / "docs/how-to/use-p4runtime-shell.md",
)
RUN = [page for page in PAGES if page not in APART and blocks(page.read_text(encoding="utf-8"))]
#: Networks or training: from ten seconds to half a minute of processor time. Training over networks: minutes.
LONG = {
    "docs/how-to/choose-a-form.md": pytest.mark.system,
    "docs/how-to/deploy.md": pytest.mark.system,
    "docs/how-to/run-the-demo.md": pytest.mark.system,
    "docs/how-to/see-a-packets-way.md": pytest.mark.system,
    "docs/how-to/train-with-sparse-tables.md": pytest.mark.system,
    "docs/how-to/use-bmv2-and-mininet.md": pytest.mark.system,
    "docs/how-to/use-with-your-trainer.md": pytest.mark.system,
    "docs/reference/topology.md": pytest.mark.system,
    "docs/reference/torch.md": pytest.mark.system,
    "docs/reference/traces.md": pytest.mark.system,
    "docs/tutorial/from-a-network-to-a-plot.md": pytest.mark.system,
    "docs/tutorial/train-a-model.md": pytest.mark.slow,
    "examples/README.md": pytest.mark.slow,
}
#: What blocks of a page print besides, as patterns.
SAID = {
    "run-the-demo.md": [rf"worker {n}: row 7 sums up to 3; 0.3% is not zero; " for n in (0, 1)]
    + [r"completed\W+[1-9]"],
    "train-a-model.md": [
        re.escape(line)
        for line in (ROOT / "docs/tutorial/train-a-model.md").read_text(encoding="utf-8").splitlines()
        if re.match(r"table: |\d+ kB a step, ", line)
    ],
}


def _named(page):
    name = str(page.relative_to(ROOT))
    return pytest.param(page, id=name, marks=[LONG[name]] if name in LONG else [])


@pytest.mark.parametrize("page", [_named(page) for page in RUN])
def test_blocks_of_a_page_run_in_order(page):
    if any(block.needs_mininet for block in blocks(page.read_text(encoding="utf-8"))) and mininet_missing():
        pytest.skip(mininet_missing())
    done = play(page)
    assert done.returncode == 0, done.stderr
    for said in SAID.get(page.name, ()):
        assert re.search(said, done.stdout), done.stdout
