"""Every page of the site in Chromium, on a wide and on a narrow window: complete, and without the network."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from chromium import Chromium, chromium

ROOT = Path(__file__).parents[2]
BROWSER = shutil.which("chromium")
#: Pixels of a laptop's window, and of a telephone.
WIDTHS = (1280, 390)
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        BROWSER is None, reason="chromium is not on PATH; on Debian: apt-get install chromium"
    ),
]

#: Lists the defects of a page, when all of its pictures have been decoded, or could not be.
DEFECTS = r"""(async () => {
  await Promise.all([...document.images].map(image => image.decode().catch(() => null)));
  const found = [];
  for (const image of document.images)
    if (!image.naturalWidth) found.push(`picture: ${image.src}`);

  // Words of a markup that nothing has turned into a page.
  const raw = /`|\|\s*[-—]{2,}|:::|\]\(|[.:!?]\*\*(\s|$)/;
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (words.nextNode()) {
    const text = words.currentNode;
    if (!text.parentElement.closest('code, pre, script, style, noscript') && raw.test(text.data))
      found.push(`markup: ${text.data.trim().slice(0, 80)}`);
  }
  for (const block of document.querySelectorAll('pre, .mermaid'))
    if (/^\s*(sequenceDiagram|stateDiagram|flowchart|graph [A-Z]+$|packet-beta)/.test(block.textContent))
      found.push(`markup: ${block.textContent.trim().slice(0, 80)}`);
  for (const list of document.querySelectorAll('article p + ol, article p + ul'))
    if (/[\w,(]$/.test(list.previousElementSibling.textContent.trim()))
      found.push(`list in mid-sentence: ${list.textContent.trim().slice(0, 80)}`);

  // A box that holds the title is the page: it may not scroll sideways, while a table's own box may.
  const style = element => getComputedStyle(element);
  const isOwnBox = box => style(box).overflowX != 'visible' && !box.querySelector('h1');
  const isBoxed = element => {
    for (let one = element; one && one != document.body; one = one.parentElement)
      if (style(one).position == 'fixed' || (one != element && isOwnBox(one))) return true;
    return false;
  };
  const width = document.documentElement.clientWidth;
  for (const element of document.body.querySelectorAll('*')) {
    const place = element.getBoundingClientRect();
    if (place.width && place.right > width + 1 && !isBoxed(element)) {
      found.push(`${Math.round(place.right)} wide in a window of ${width}: <${element.localName}>`);
      break;
    }
  }
  return found;
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(BROWSER, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def defects(browser: Chromium, page: Path) -> list[str]:
    """Return the defects of a page at both widths, and what it asked of others."""
    browser.resize(WIDTHS[0])
    seen = browser.open(page.as_uri())
    found = dict.fromkeys(browser.evaluate(DEFECTS))
    browser.resize(WIDTHS[1])
    found |= dict.fromkeys(browser.evaluate(DEFECTS))
    elsewhere = [url for url in seen.requests if not url.startswith(("file:", "data:", "blob:"))]
    return [*found, *(f"fetched: {url}" for url in elsewhere), *(f"console: {said}" for said in seen.errors)]


GOOD = """<h1>Title</h1><p>Pictures, <code>`code`</code> and a table, 2**3:</p><ol><li>one</li></ol>
<div style="overflow-x: auto"><table><tr><td><div style="width: 2000px">wide</div></td></tr></table></div>
<img src="data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>">"""


@pytest.mark.parametrize(
    ("body", "defect"),
    [
        ("", None),
        ("<img src='missing.svg'>", "picture: "),
        ("<p>|---|---|</p>", "markup: |---|"),
        ("<p>```text</p>", "markup: ```text"),
        ("<p>See {ref}`here`.</p>", "markup: See {ref}`here`."),
        ("<p>Up to 2**19 remain.** More.</p>", "markup: Up to 2**19 remain."),
        ("<p>See [this](page.md).</p>", "markup: See [this](page.md)."),
        ("<p>a :::</p>", "markup: a :::"),
        ("<pre class='mermaid'>sequenceDiagram\n  A->>B: x</pre>", "markup: sequenceDiagram"),
        ("<pre>\nflowchart TD\n  a --> b</pre>", "markup: flowchart"),
        ("<p>OmniReduce (algorithm</p><ol><li>is a model</li></ol>", "list in mid-sentence: is a model"),
        ("<script src='https://cdn.example/x.js'></script>", "fetched: https://cdn.example/x.js"),
        (
            "<script type='module'>import 'https://cdn.example/y.js'</script>",
            "fetched: https://cdn.example/y.js",
        ),
        ("<script>console.error('oh')</script>", "console: oh"),
        ("<script>throw new Error('ah')</script>", "console: Error: ah"),
        ("<div style='width: 1300px'>wide</div>", "1308 wide in a window of "),
        ("<div style='width: 500px'>wide</div>", "508 wide in a window of 390"),
        ("<style>html { overflow-x: hidden }</style><div style='width: 1300px'>cut</div>", "1308 wide in a "),
    ],
)
def test_a_defect_is_seen(browser, tmp_path, body, defect):
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><meta charset=utf-8><body><article>{GOOD}{body}</article>")
    found = defects(browser, page)
    assert any(one.startswith(defect) for one in found) if defect else found == []


def test_every_page_is_complete_and_no_wider_than_the_window(browser, tmp_path):
    """One build, because that takes a minute."""
    build = [sys.executable, "-m", "sphinx", "-q", "-b", "html", "docs", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True)
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > 100
    found = {page.relative_to(tmp_path).as_posix(): defects(browser, page) for page in pages}
    assert {page: seen for page, seen in found.items() if seen} == {}
