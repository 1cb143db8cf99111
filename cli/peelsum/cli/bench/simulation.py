"""`peelsum bench simulation`: allreduces in virtual time, by formula, and beside an emulated network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from peelsum.cli.bench.output import exit_if, measuring, print_json, show, table_of
from peelsum.cli.options import Json
from peelsum.topology import TopologyError

if TYPE_CHECKING:
    from rich.table import Table

    from peelsum.bench.simulation.emulated import Compared
    from peelsum.bench.simulation.rows import Check, Row

_SETTING = ("algorithm", "level", "workers", "loss", "slots", "jobs", "density")
_HEADINGS = (*_SETTING, "us", "Gbit/s", "in switch", "resends", "wrong")


def simulation(
    what: Annotated[
        Literal["scale", "loss", "slots", "density", "check", "calibrate", "emulated"],
        typer.Argument(
            help="Time by workers, loss, slots or density; formulas beside packets; "
            "the formulas' factors; simulated beside emulated."
        ),
    ],
    json: Json = False,
) -> None:
    """Simulate allreduces of peelsum and its rivals on the same links. Each takes up to a few minutes."""
    from peelsum.bench.simulation import emulated, rows
    from peelsum.simulation import SimulationError

    with measuring(SimulationError, TopologyError, json=json) as tell:
        if what == "calibrate":
            print_json(rows.calibrated())
        elif what == "emulated":
            found = list(_told(emulated.compared_rows(), tell))
            show(found, _emulated_table, json=json)
            exit_if(any(row.wrong for row in found))
        elif what == "check":
            show(list(_told(rows.check_rows(), tell)), _check_table, json=json)
        else:
            each: dict[str, Callable[[], Iterator[Row]]] = {
                "scale": rows.scale_rows,
                "loss": rows.loss_rows,
                "slots": rows.slots_rows,
                "density": rows.density_rows,
            }
            done: list[Row] = list(_told(each[what](), tell))
            show(done, _table, json=json)
            exit_if(any(row.wrong for row in done))


def _told(rows: Iterable[Any], tell: Any) -> Iterable[Any]:
    for number, row in enumerate(rows, 1):
        name = getattr(row, "algorithm", "peelsum")
        tell(f"simulating: {number} rows, the last of {name} with {row.workers} workers")
        yield row


def _table(rows: Sequence[Row]) -> Table:
    table = table_of(_HEADINGS, left=("algorithm", "level"))
    for row in rows:
        table.add_row(
            row.algorithm if row.timers == "quick" or row.level == "formula" else f"{row.algorithm}, default",
            row.level,
            f"{row.workers:,}",
            f"{row.loss:.1%}",
            f"{row.slots:,}",
            str(row.jobs),
            f"{row.density:.2%}",
            f"{row.seconds * 1e6:,.1f}",
            f"{row.goodput_gbps:.2f}",
            "" if row.in_switch is None else f"{row.in_switch:.1%}",
            f"{row.resends:,}",
            str(row.wrong),
        )
    return table


def _emulated_table(rows: Sequence[Compared]) -> Table:
    from statistics import median

    table = table_of(
        ("workers", "Mbit/s", "elements", "emulated ms", "simulated ms", "error", "wrong", "load"),
        caption=f"median of absolute errors: {median(abs(row.error) for row in rows):.1%}",
    )
    for row in rows:
        times = (f"{row.emulated_s * 1e3:,.1f}", f"{row.simulated_s * 1e3:,.1f}", f"{row.error:+.1%}")
        shape = (str(row.workers), f"{row.mbit:g}", f"{row.elements:,}")
        table.add_row(*shape, *times, str(row.wrong), f"{row.load:.1f}")
    return table


def _check_table(rows: Sequence[Check]) -> Table:
    from statistics import median

    others = [abs(row.error) for row in rows if not row.fitted]
    table = table_of(
        ("algorithm", "workers", "elements", "Gbit/s", "packets us", "formula us", "error", "fitted"),
        left=("algorithm",),
        caption=f"median error of the cases not fitted: {median(others):.1%}",
    )
    for row in rows:
        times = (f"{row.packet_s * 1e6:,.1f}", f"{row.formula_s * 1e6:,.1f}", f"{row.error:+.1%}")
        shape = (row.algorithm, str(row.workers), f"{row.elements:,}", f"{row.gbps:g}")
        table.add_row(*shape, *times, "yes" if row.fitted else "no")
    return table
