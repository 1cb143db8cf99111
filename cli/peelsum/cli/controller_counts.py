"""What a job's controller counts, for its metrics."""

from __future__ import annotations

from peelsum.control import SwitchLost, SwitchRegained
from peelsum.metrics import Values, controller_values


class ControllerCounts:
    """Counts of one job's admissions and of its switches' failures."""

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
