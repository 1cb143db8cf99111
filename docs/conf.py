"""Sphinx configuration. `make docs` builds the site into build/docs; a warning is an error."""

import html
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

project = "peelsum"
author = "the peelsum authors"
copyright = "the peelsum authors, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
# For those who browse the folder.
exclude_patterns = ["README.md"]

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_title = "peelsum"
html_show_sphinx = False
man_pages = [
    ("reference/command-line", "peelsum", "exact in-network aggregation of sparse gradients", author, 1)
]

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4
copybutton_exclude = ".linenos, .gp, .go"

default_role = "code"
autodoc_default_options = {"members": True, "member-order": "bysource", "show-inheritance": True}
autodoc_typehints_format = "short"
autodoc_class_signature = "separated"

# What has a meaning in reStructuredText and none in this project's docstrings.
_MARKUP = re.compile(r"[*|\\]|(?<=\w)_(?=\W|$)")


def _plain(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape markup outside of `code`, in place: docstrings are plain text, and their tables are literal."""
    plain: list[str] = []
    for line in lines:
        if line.startswith("|"):
            plain += [f" {line}"] if plain[-1] else ["::", "", f" {line}"]
            continue
        parts = line.split("`")
        parts[::2] = [_MARKUP.sub(r"\\\g<0>", part) for part in parts[::2]]
        plain.append("`".join(parts))
    lines[:] = plain


def _write(page: Path, text: str) -> None:
    """Write a page, unless it has this text already: Sphinx reads again what has changed."""
    if not page.exists() or page.read_text() != text:
        page.write_text(text)


def _api_pages(app: Any) -> None:
    """Write reference/api/PACKAGE.md for each package in modules.toml, with the docstrings of its modules."""
    folder = Path(app.srcdir) / "reference" / "api"
    packages = tomllib.loads((folder / "modules.toml").read_text())
    for former in folder.glob("*.md"):
        if former.stem not in (*packages, "index"):  # of a package that had another name
            former.unlink()
    for package, modules in packages.items():
        parts = [f"# peelsum.{package}"]
        for name in (f"peelsum.{module}" for module in modules):
            options = [f".. automodule:: {name}"]
            if _exports(name):
                options.append("   :imported-members:")
            if name == "peelsum.torch":  # described on the page of peelsum.compress
                options.append("   :exclude-members: RandomK, StrategyStats, Threshold, TopK")
            parts += [f"## {name}"] * (name != f"peelsum.{package}")
            parts.append("\n".join(["```{eval-rst}", *options, "```"]))
        _write(folder / f"{package}.md", "\n\n".join(parts) + "\n")


def _exports(name: str) -> bool:
    """Return whether a package exports what its modules define."""
    spec = find_spec(name)
    is_package = spec is not None and spec.origin is not None and spec.submodule_search_locations is not None
    return is_package and "__all__" in Path(spec.origin).read_text()


def _command_line(app: Any) -> None:
    """Write reference/command-line.md, from the commands' own help."""
    command = [sys.executable, "-m", "typer", "peelsum.cli.app", "utils", "docs", "--name", "peelsum"]
    text = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    hidden = re.compile(
        r"## `peelsum (?:demo-worker|experiment)`.*?(?=^## )|^\* `(?:demo-worker|experiment)`[^\n]*\n",
        re.DOTALL | re.MULTILINE,
    )
    text = hidden.sub("", html.unescape(text)).replace("# `peelsum`", "# The peelsum command", 1)
    # In a list, typer cuts help off, also within `code`: then a backtick has no partner.
    alone = re.compile(r"^((?:[^`\n]*`[^`\n]*`)*[^`\n]*)`([^`\n]*[.]{3})$", re.MULTILINE)
    text = alone.sub(r"\1\2", text)
    _write(Path(app.srcdir) / "reference" / "command-line.md", text)


def setup(app: Any) -> None:
    """Connect the three to Sphinx."""
    app.connect("builder-inited", _api_pages)
    app.connect("builder-inited", _command_line)
    app.connect("autodoc-process-docstring", _plain)
