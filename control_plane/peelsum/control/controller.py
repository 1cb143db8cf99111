"""A controller of one switch, over P4Runtime only: it works with any switch that runs our program."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from peelsum.control import admission, status
from peelsum.control.admission import Admission
from peelsum.control.description import JobDescription
from peelsum.control.drivers import open_session
from peelsum.control.sections import TofinoSection
from peelsum.control.session import Session, pipeline_schema
from peelsum.control.status import AdmittedJob, SwitchStatus
from peelsum.control.tables import Placement
from peelsum.tls import Identity
from peelsum.wire import Verdict


class Controller:
    """One switch's controller, as a context manager."""

    def __init__(self, session: Session, clock: Callable[[], float] = time.time) -> None:
        #: The connection to the switch.
        self.session = session
        self._clock = clock

    @classmethod
    def connect(
        cls,
        address: str,
        device_id: int = 1,
        *,
        election_id: int = 1,
        timeout_s: float = 4.0,
        patience_s: float = 0.0,
        identity: Identity | None = None,
    ) -> Controller:
        """Connect to a switch as its primary; `identity` is as for `Session`.

        Raises SwitchError if it cannot be reached, NotPrimaryError as `become_primary`.
        """
        controller = cls.observe(address, device_id, timeout_s=timeout_s, identity=identity)
        try:
            controller.become_primary(election_id, patience_s=patience_s)
        except BaseException:
            controller.close()
            raise
        return controller

    @classmethod
    def observe(
        cls,
        address: str,
        device_id: int = 1,
        *,
        timeout_s: float = 4.0,
        identity: Identity | None = None,
        tofino: TofinoSection | None = None,
    ) -> Controller:
        """Connect to a switch as a backup, which may read; `tofino` is its description if it is one.

        Raises SwitchError if it cannot be reached, ControlError if its program's files are missing.
        """
        return cls(open_session(address, device_id, tofino, timeout_s=timeout_s, identity=identity))

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection. The switch keeps running as it is."""
        self.session.close()

    def become_primary(self, election_id: int = 1, *, patience_s: float = 0.0) -> None:
        """Become the primary. Raises NotPrimaryError if another controller still is after `patience_s`."""
        self.session.become_primary(election_id, patience_s=patience_s)

    def become_backup(self) -> None:
        """Leave the role of primary to other controllers; this one can still read."""
        self.session.become_backup()

    def load_pipeline(self, json_path: Path, p4info_path: Path) -> bool:
        """Commit a compiled pipeline, unless the switch runs it already. This removes all jobs.

        Returns whether it was committed. Raises ControlError.
        """
        wanted = pipeline_schema(json_path, p4info_path)
        if self.session.runs(wanted):
            return False
        self.session.commit(wanted)
        return True

    def admit(
        self, description: JobDescription, *, free_slots: bool = True, secret: str | None = None
    ) -> Admission:
        """Admit a job in a new generation, as a `Fabric` of this one switch does.

        free_slots: False leaves the slots as they are, for a switch that just started.
        secret: as for `admission.admit`.
        Raises DescriptionError if the pipeline cannot hold the job, SwitchError if the switch refuses.
        """
        (plan,) = description.plans()
        placed = [Placement(self.session, plan)]
        return admission.admit(description, placed, self._clock(), free=free_slots, secret=secret)

    def evict(self, job_id: int) -> None:
        """Refuse a job's packets from now on. Raises ControlError if the job is not admitted."""
        admission.evict(self.session, job_id)

    def jobs(self) -> list[AdmittedJob]:
        """Return the admitted jobs, by number."""
        return status.read_jobs(self.session)

    def verdicts(self) -> dict[Verdict, int]:
        """Return how many packets met each verdict since the pipeline was loaded."""
        return status.read_verdicts(self.session)

    def status(self) -> SwitchStatus:
        """Return everything that an operator wants to see at once."""
        return status.read_status(self.session)
