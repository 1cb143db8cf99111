"""How commands print errors, progress, JSON and tables."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from peelsum.processes.progress import ProgressCallback, progress_reporter
from peelsum.processes.user_errors import InterruptContext, exit_on_errors

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table


def aligned(rows: Sequence[Sequence[str]], text_columns: Collection[str] = ()) -> list[str]:
    """Return a table's lines. The first row has the headings.

    Columns whose headings are in `text_columns` are left-justified, the others right-justified.
    """
    columns = [
        [cell.ljust(width) if column[0] in text_columns else cell.rjust(width) for cell in column]
        for column in zip(*rows, strict=True)
        for width in [max(map(len, column))]
    ]
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]


@contextmanager
def measuring(*errors: type[Exception]) -> Iterator[ProgressCallback]:
    """Report these errors in one line with exit status 2, and Ctrl-C with the status that shells expect.

    The context's value is a function that prints progress messages on stderr.
    """
    with exit_on_errors(*errors), InterruptContext():
        yield progress_reporter()


def print_json(value: object) -> None:
    """Print a value as indented JSON; dataclasses in it become objects."""
    sys.stdout.write(json_format.dumps(value, indent=2, default=asdict) + "\n")


def empty_table(headings: Iterable[str], *, text_columns: Iterable[str] = (), **options: Any) -> Table:
    """Return a table without rows. Columns not in `text_columns` are right-justified.

    options: those of rich.table.Table.
    """
    from rich import box
    from rich.table import Table

    table = Table(**{"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), **options})
    for heading in headings:
        table.add_column(heading, justify="left" if heading in text_columns else "right", overflow="fold")
    return table


def progress_bar(console: Console) -> Progress:
    """Return a progress bar with counts and the remaining time; without a terminal it shows nothing."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def print_tables(*parts: str | tuple[Sequence[str], Iterable[Sequence[str]]]) -> None:
    """Print texts and tables, each of which has headings and rows of texts, which may have rich's markup."""
    from rich.console import Console
    from rich.table import Column, Table

    console = Console()
    for part in parts:
        if isinstance(part, str):
            console.print(part)
            continue
        headings, rows = part
        # A narrow terminal wraps long words, such as paths; by default they would be cut off.
        table = Table(*(Column(heading, overflow="fold") for heading in headings))
        for row in rows:
            table.add_row(*row)
        console.print(table)
