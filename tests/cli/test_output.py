"""Tables on narrow terminals."""

import pytest

from peelsum.cli.output import empty_table, print_tables

PATH = "/var/cache/a-user-of-this-machine/peelsum/compiled"


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")


def cell_text(output):
    """Return the text of a table's first column."""
    return "".join(line.strip("│┃ ").split("│")[0].strip() for line in output.splitlines())


def test_long_words_are_wrapped(narrow, capsys):
    print_tables((("folder", "expected"), [(PATH, "the user's cache")]))
    assert PATH in cell_text(capsys.readouterr().out)


def test_long_words_are_wrapped_in_tables_without_lines(narrow, capsys):
    from rich.console import Console

    table = empty_table(("folder",), text_columns=("folder",))
    table.add_row(PATH)
    Console().print(table)
    assert PATH in cell_text(capsys.readouterr().out)
