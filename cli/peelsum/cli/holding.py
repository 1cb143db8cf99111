"""What `peelsum job admit --hold` and `peelsum job serve` share: their patience, their events and counts."""

from __future__ import annotations

from collections.abc import Callable

from peelsum.cli.options import logged
from peelsum.metrics import Values, controller_values
from peelsum.processes import say

LOOK_EVERY_S = 1.0
#: How long to wait while another controller is primary, e.g. to admit or restore a job.
PATIENCE_S = 10.0
LOADING = "loading the pipeline, which a switch that has not run it before compiles"


def event_teller(log_format: str | None, json: bool, **known: object) -> Callable[[object], None]:
    """Return what logs a controller's events, if a format is given, or prints them. Raises LogsError."""

    def show(event: object) -> None:
        if json:
            say(event=str(event))
        else:
            print(event, flush=True)

    return logged(log_format, "controller", show, **known)


class ControllerCounts:
    """Counts of one job's admissions and of its switches' failures, for its controller's metrics."""

    def __init__(self, job_id: int) -> None:
        self._job_id = job_id
        names = ("generation", "admissions", "lost", "regained", "restored", "errors")
        self._counts = dict.fromkeys(names, 0)

    def admitted(self, generation: int) -> None:
        """Note an admission."""
        self._counts["generation"] = generation
        self._counts["admissions"] += 1

    def ended(self) -> None:
        """Note that the job is not held any more."""
        self._counts["generation"] = 0

    def note(self, news: object) -> None:
        """Count an event of a `Watch`, or an error."""
        from peelsum.control import SwitchLost, SwitchRegained

        if isinstance(news, SwitchLost):
            self._counts["lost"] += 1
        elif isinstance(news, SwitchRegained):
            self._counts["regained"] += 1
            self._counts["restored"] += news.restored
        elif isinstance(news, Exception):
            self._counts["errors"] += 1

    def values(self) -> Values:
        """Return the values of the metrics."""
        return controller_values(self._job_id, self._counts)
