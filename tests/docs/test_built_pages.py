"""Every page of the built site is complete: no markup is left, and what it loads is there."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Words of a markup that nothing has turned into a page.
RAW = re.compile(r"`|\|\s*[-—]{2,}|:::|\]\(|[.:!?]\*\*(\s|$)")
DIAGRAM = re.compile(r"\s*(sequenceDiagram|stateDiagram|flowchart|graph [A-Z]+$|packet-beta)")
#: Elements with words that are not prose.
CODE = ("code", "pre", "script", "style", "noscript")
#: Attributes by which a page has something loaded.
LOADED = {"img": "src", "script": "src", "link": "href"}


class Defects(HTMLParser):
    """Lists the defects of a page in `found`."""

    def __init__(self, page):
        super().__init__()
        self.page, self.found = page, []
        self._open, self._in_article = [], False
        #: The paragraph that is read, or None; and the one that ended last, if nothing has begun since.
        self._paragraph, self._before = None, ""
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        if tag in ("ol", "ul") and re.search(r"[\w,(]$", self._before.strip()):
            self.found.append(f"list in mid-sentence: {self._before.strip()[-40:]}")
        if tag in CODE:
            self._open.append(tag)
        self._before = ""
        self._in_article |= tag == "article"
        if tag == "p" and self._in_article:
            self._paragraph = ""
        self._check_loaded(tag, dict(attrs))

    def _check_loaded(self, tag, attributes):
        place = attributes.get(LOADED.get(tag, ""), "")
        if tag == "link" and attributes.get("rel") not in ("stylesheet", "preload", "icon"):
            return
        if re.match(r"(https?:)?//", place):
            self.found.append(f"elsewhere: {place}")
        elif tag == "img" and not place.startswith("data:") and not (self.page.parent / place).exists():
            self.found.append(f"picture: {place}")

    def handle_endtag(self, tag):
        if tag in self._open:
            self._open.remove(tag)
        self._in_article &= tag != "article"
        if tag == "p":
            self._before, self._paragraph = self._paragraph or "", None
        else:
            self._before = ""

    def handle_data(self, data):
        if self._paragraph is not None:
            self._paragraph += data
        if (not self._open and RAW.search(data)) or ("pre" in self._open and DIAGRAM.match(data)):
            self.found.append(f"markup: {data.strip()[:80]}")


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
    found = Defects(page).found
    assert found[0].startswith(defect) if defect else found == []


@pytest.mark.system
def test_every_page_is_complete(tmp_path):
    """One build, because that takes a minute."""
    build = [sys.executable, "-m", "sphinx", "-q", "-b", "html", "docs", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True)
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > 100
    found = {page.relative_to(tmp_path).as_posix(): Defects(page).found for page in pages}
    assert {page: seen for page, seen in found.items() if seen} == {}
