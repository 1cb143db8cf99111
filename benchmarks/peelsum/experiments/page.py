"""The page of an experiment: Markdown, made of its rows alone, so that equal rows make equal pages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from statistics import median
from textwrap import wrap

from peelsum.experiments.experiment import Column, Experiment, Value
from peelsum.experiments.running import Failed
from peelsum.experiments.store import PART, Row, value_of
from peelsum.experiments.summaries import CONFIDENCE, Group, Summary, grouped, ours

#: The longest line of text.
_COLUMNS = 110
#: What begins a list, a heading or a quotation if it begins a line.
_MARK = re.compile(r"^(\s*)(?:(\d+)(?=[.)]\s)|(?=[-+*#>]\s))")
#: A line in mid-sentence, outside of lists.
_UNFINISHED = re.compile(r"(?!\s|\d+[.)]\s|[-+*#>]\s).*[^.:;!?]")


def page(
    experiment: Experiment, rows: Sequence[Row], *, command: str, expected: int, failed: Sequence[Failed] = ()
) -> str:
    """Return the page of these rows; `expected` is the number of rows that the run has when complete."""
    groups = grouped(experiment, rows)
    figures = [f"![{plot.title}]({plot.name}.svg)" for plot in experiment.plots if rows]
    parts = [
        [f"# {experiment.title}"],
        figures[:1],
        _opening(experiment),
        _missing(sum(row.get(PART, "1 of").startswith("1 of") for row in rows), expected, failed),
        list(_literal(experiment.about.strip().splitlines())),
        _published(experiment, groups),
        figures[1:],
        text_of(experiment, rows).splitlines() if rows else [],
        _lessons(experiment),
        _columns(experiment),
        list(_measured(rows, command)) if rows else [],
    ]
    lines = "\n\n".join("\n".join(part) for part in parts if part).splitlines()
    return "\n".join(wrapped for line in lines for wrapped in _wrapped(line)) + "\n"


def objects(experiment: Experiment, rows: Sequence[Row]) -> list[dict[str, Value]]:
    """Return rows with the values that were measured: their labels and figures."""
    names = (*experiment.labels, *experiment.figures)
    return [{name: value_of(row[name]) for name in names} for row in rows]


def text_of(experiment: Experiment, rows: Sequence[Row]) -> str:
    """Return the table of rows, in Markdown."""
    return "\n".join(table(experiment, grouped(experiment, rows)))


def table(experiment: Experiment, groups: Sequence[Group]) -> Iterator[str]:
    """Yield the lines of a table of all points. Parameters that never vary stand above it."""
    varying = _varying(experiment, groups)
    fixed = [name for name in experiment.labels if name not in varying]
    if fixed:
        yield ", ".join(f"{name} {groups[0].point[name]}" for name in fixed) + "."
        yield ""
    # Without underscores, a browser breaks long names.
    yield _line([name.replace("_", " ") for name in (*varying, *experiment.figures)])
    yield "|---" * (len(varying) + len(experiment.figures)) + "|"
    for group in groups:
        yield _line([*(group.point[name] or "-" for name in varying), *map(shown, group.figures.values())])
    notes = dict.fromkeys(note for group in groups for note in group.notes)
    if notes:
        yield ""
        yield "Missing figures: " + "; ".join(notes) + "."


def shown(figure: Summary | str | None) -> str:
    """Return a figure as text: a median with its interval in brackets, unless all values are the same."""
    if not isinstance(figure, Summary):
        return figure or "-"
    middle, low, high = map(plain, (figure.median, figure.low, figure.high))
    return middle if low == high else f"{middle} [{low}, {high}]"


def plain(value: float) -> str:
    """Return a number with four significant digits, or all digits of a whole number, and no exponent."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{float(f'{value:.4g}'):.10f}".rstrip("0").rstrip(".")


def _wrapped(line: str) -> list[str]:
    """Return the lines of a paragraph or of an item of a list; tables and commands keep their lines."""
    if len(line) <= _COLUMNS or line.startswith(("|", "#", "!", "- Command")):
        return [line]
    indent = "  " if line.startswith("- ") else ""
    first, *others = wrap(
        line, _COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [first, *map(_escaped, others)]


def _literal(lines: Sequence[str]) -> Iterator[str]:
    """Yield a text's lines. A number or a dash in mid-sentence begins no list, wherever a line begins."""
    before = ""
    for line in lines:
        yield _escaped(line) if _UNFINISHED.fullmatch(before) else line
        before = line


def _escaped(line: str) -> str:
    return _MARK.sub(r"\1\2\\", line)


def _varying(experiment: Experiment, groups: Sequence[Group]) -> list[str]:
    return [name for name in experiment.labels if len({group.point[name] for group in groups}) > 1]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _missing(there: int, expected: int, failed: Sequence[Failed]) -> list[str]:
    if there == expected:
        return []
    said = f" The first that failed: {failed[0].error}." if failed else ""
    return [
        f"**{expected - there} of {expected} rows are missing.**{said} Run the command again to add them."
    ]


def _published(experiment: Experiment, groups: Sequence[Group]) -> list[str]:
    if not experiment.published or not groups:
        return []
    lines = ["| | published | ours | ours is |", "|---|---|---|---|"]
    for one in experiment.published:
        found = ours(groups, one)
        beside = "-" if found is None else shown(found[1])
        where = "no row" if found is None else _kind(experiment.columns[one.column], found[0])
        if found is not None:
            varying = _varying(experiment, groups)
            where += " at " + ", ".join(f"{name} {found[0].point[name]}" for name in varying)
        lines.append(_line([f"{one.what} ({one.source})", plain(one.value), beside, where]))
    return lines


def _kind(column: Column, group: Group) -> str:
    return "modelled" if column.modelled or group.modelled else "measured"


def _opening(experiment: Experiment) -> list[str]:
    one = experiment.sentences
    if one is None:
        return []
    return [
        f"**What was measured.** {one.measured}",
        "",
        f"**What it shows.** {one.shows}",
        "",
        f"**Where we lose.** {one.loses}",
        "",
        f"(Written about the run of {one.run}.)",
    ]


def _lessons(experiment: Experiment) -> list[str]:
    one = experiment.sentences
    if one is None:
        return []
    return [
        f"**What it does not show.** {one.does_not_show}",
        "",
        f"**What surprised.** {one.surprised}",
    ]


def _columns(experiment: Experiment) -> list[str]:
    lines = ["## Columns", ""]
    for name, column in experiment.columns.items():
        lines.append(f"- `{name}`, {'modelled' if column.modelled else 'measured'}: {column.meaning}.")
    for name, values in experiment.modelled.items():
        chosen = ", ".join(f"`{value}`" for value in values)
        lines.append(f"- In rows with `{name}` {chosen}, all columns are modelled.")
    return lines


def _measured(rows: Sequence[Row], command: str) -> Iterator[str]:
    times, repetitions = sorted(row["started"] for row in rows), {row["repetition"] for row in rows}
    loads = [float(row["load"]) for row in rows]
    others = [float(row["others"]) for row in rows if row["others"]]
    disturbed = sum(row["disturbed"] == "True" for row in rows)
    yield "## How it was measured"
    yield ""
    yield f"- Command: `{command}`"
    seconds = sum(float(row["wall_s"]) for row in rows)
    yield f"- Date: {times[0]} to {times[-1]}; {seconds:,.0f} s in all rows."
    yield f"- Machine: {_each(rows, 'machine')}."
    yield f"- Commit {_each(rows, 'commit')}, experiment's file {_each(rows, 'source')}."
    yield f"- {_each(rows, 'versions')}."
    yield f"- [Rows](rows.csv): {len(rows)}, in random order; seeds {_each(rows, 'seed')}."
    yield f"- {_confidence(len(repetitions))}"
    yield f"- Load average: median {median(loads):.1f}, at most {max(loads):.1f}."
    if others:
        yield (
            f"- Other programs used {median(others):.0%} of the processors (median of rows; at most "
            f"{max(others):.0%}). {disturbed} rows were disturbed in all their attempts, of which there were "
            f"at most {max(int(row['attempt'].split()[-1]) for row in rows)}."
        )


def _confidence(count: int) -> str:
    if count == 1:
        return "Each point was measured once, so there are no intervals."
    reached = 1 - 2 / 2**count
    if reached >= CONFIDENCE:
        return f"Medians of {count} repetitions; in brackets, {CONFIDENCE:.0%} intervals by order statistics."
    return (
        f"Medians of {count} repetitions; in brackets, least and most, which hold the true median with a "
        f"confidence of {reached:.0%}: {CONFIDENCE:.0%} takes six repetitions."
    )


def _each(rows: Sequence[Row], name: str) -> str:
    return "; ".join(sorted({row[name] for row in rows}))
