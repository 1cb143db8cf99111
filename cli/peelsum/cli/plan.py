"""`peelsum plan`: the ways to send a tensor, as tables, with the reasons for the recommended one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from peelsum.bench.point import Point
from peelsum.cli.options import Json, with_settings
from peelsum.cli.output import aligned, measuring, print_json

#: Columns of each table by heading: the row's key and the format.
_WAYS = {
    "form": ("form", ""),
    "index": ("index", ""),
    "bytes": ("bytes", ","),
    "exchanges": ("exchanges", ""),
    "words ms": ("words_ms", ".3f"),
    "exch. ms": ("exchanges_ms", ".3f"),
    "codec ms": ("codec_ms", ".3f"),
    "total ms": ("total_ms", ".3f"),
}
_CHECKED = {
    "measured": ("measured_bytes", ","),
    "error": ("bytes_error", "+.1%"),
    "measured codec ms": ("measured_codec_ms", ".3f"),
    "codec error": ("codec_error", "+.0%"),
}
_METHODS = {
    "method": ("method", ""),
    "bytes": ("sent_bytes", ","),
    "latency ms": ("latency_ms", ".3f"),
    "words ms": ("words_ms", ".3f"),
    "codec ms": ("codec_ms", ".3f"),
    "total ms": ("total_ms", ".3f"),
}
_TEXT_COLUMNS = ("form", "index", "layout", "method")
_UNITS = {"gbps": "Gbit/s", "latency_s": "s of latency", "ratio": "of all elements", "elements": "elements"}


@with_settings
def plan(
    request: Point,
    check: Annotated[
        bool,
        typer.Option(help="Measure each on this machine too, and show the errors of predictions."),
    ] = False,
    json: Json = False,
) -> None:
    """Compare all ways to sum a tensor, with predicted bytes and time, and explain the recommended one.

    The first table has the ways through the switch, by form and index. The second has dense and sparse
    collectives, and below it the values of rate, latency, ratio and size at which the fastest changes.
    """
    from peelsum.bench import plan as bench
    from peelsum.bench.codec.timing import NotEnoughMemoryError, NotExactError

    with measuring(NotEnoughMemoryError, NotExactError):
        planned = bench.plan(request, check=check)
        if json:
            print_json(planned)
            return
        columns = {**_WAYS, **(_CHECKED if check else {}), "layout": ("layout", "")}
        lines = [*_table(planned["candidates"], columns), "", *planned["why"], ""]
        for form in planned["forms"]:
            line = f"{form['form']}: {form['predicted_ms']:.4g} ms a step, predicted"
            if form["ms"] is None:
                lines.append(f"{line}; not measured.")
            else:
                codec, network = form["codec_ms"], form["ms"] - form["codec_ms"]
                parts = f"{codec:.4g} ms of codec, measured, and {network:.4g} ms of network, simulated."
                lines.append(f"{line}; {parts}")
        lines.append("")
        if planned["methods"]:
            lines += [*_table(planned["methods"], _METHODS), ""]
        for change in planned["crossovers"]:
            axis, (above, below) = _UNITS[change["axis"]], (change["above"], change["below"])
            lines.append(f"At {change['at']:.3g} {axis}, {above} becomes faster than {below}.")
        print(*lines, planned["advice"], sep="\n")


def _table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, tuple[str, str]]) -> list[str]:
    cells = [[format(row[key], spec) for key, spec in columns.values()] for row in rows]
    return aligned([list(columns), *cells], _TEXT_COLUMNS)
