"""Every page of the built site is complete: no markup is left, and what it loads is there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

ROOT = Path(__file__).parents[2]
#: Words of a markup that nothing has turned into a page.
RAW = re.compile(r"`|\|\s*[-—]{2,}|:::|\]\(|[.:!?]\*\*(\s|$)")
DIAGRAM = re.compile(r"\s*(sequenceDiagram|stateDiagram|flowchart|graph [A-Z]+$|packet-beta)")
#: Elements with words that are not prose.
CODE = ("code", "pre", "script", "style", "noscript")


def defects(page: Path) -> list[str]:
    """Return what is wrong with a page of the built site."""
    site, problems = BeautifulSoup(page.read_text(), "html.parser"), []
    for element in site.select(
        "img, script[src], link[rel~=stylesheet], link[rel~=preload], link[rel~=icon]"
    ):
        place = element.get("src") or element.get("href", "")
        if re.match(r"(https?:)?//", place):
            problems.append(f"elsewhere: {place}")
        elif element.name == "img" and not place.startswith("data:") and not (page.parent / place).exists():
            problems.append(f"picture: {place}")
    problems += [f"markup: {code.text.strip()[:80]}" for code in site("pre") if DIAGRAM.match(code.text)]
    for paragraph in site.select("article p:has(+ ol), article p:has(+ ul)"):
        if re.search(r"[\w,(]$", text := paragraph.text.strip()):
            problems.append(f"list in mid-sentence: {text[-40:]}")
    for code in site(CODE):
        code.decompose()
    return problems + [f"markup: {text[:80]}" for text in site.stripped_strings if RAW.search(text)]


GOOD = """<h1>Title</h1><p>Pictures, <code>`code`</code> and a list, 2**3:</p><ol><li>one</li></ol>
<img src="data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>">"""


@pytest.mark.parametrize(
    ("body", "defect"),
    [
        ("", None),
        ("<img src='missing.svg'>", "picture: missing.svg"),
        ("<p>|---|---|</p>", "markup: |---|"),
        ("<p>```text</p>", "markup: ```text"),
        ("<p>See {ref}`here`.</p>", "markup: See {ref}`here`."),
        ("<p>Up to 2**19 remain.** More.</p>", "markup: Up to 2**19 remain."),
        ("<p>See [this](page.md).</p>", "markup: See [this](page.md)."),
        ("<p>a :::</p>", "markup: a :::"),
        ("<pre class='mermaid'>sequenceDiagram\n  A->>B: x</pre>", "markup: sequenceDiagram"),
        ("<pre>\nflowchart TD\n  a --> b</pre>", "markup: flowchart"),
        ("<p>OmniReduce (algorithm</p><ol><li>is a model</li></ol>", "list in mid-sentence: "),
        ("<script src='https://cdn.example/x.js'></script>", "elsewhere: https://cdn.example/x.js"),
    ],
)
def test_a_defect_is_seen(tmp_path, body, defect):
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><meta charset=utf-8><body><article>{GOOD}{body}</article>")
    problems = defects(page)
    assert problems[0].startswith(defect) if defect else problems == []


@pytest.mark.system
def test_every_page_is_complete(tmp_path):
    """One build, because that takes a minute."""
    build = [sys.executable, "-m", "sphinx", "-q", "-b", "html", "docs", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True)
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > 100
    by_page = {page.relative_to(tmp_path).as_posix(): defects(page) for page in pages}
    assert {page: problems for page, problems in by_page.items() if problems} == {}
