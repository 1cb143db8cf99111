"""Watch an admitted job, and give it back to switches that lost it, e.g. in a restart.

A `Watch` has no clock: the caller polls `look()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from peelsum.control.errors import NotPrimaryError, SwitchError
from peelsum.control.fabric import Fabric

#: How long a switch may take to answer a new connection. One that does not is tried again at the next poll.
_PATIENCE_S = 1.0


@dataclass(frozen=True)
class SwitchLost:
    """A switch stopped responding."""

    p4runtime: str
    """The switch's P4Runtime server, host:port."""
    reason: str
    """The error, in one line."""

    def __str__(self) -> str:
        return f"{self.reason}; connecting again"


@dataclass(frozen=True)
class SwitchRegained:
    """A switch responds again and has the job."""

    p4runtime: str
    """The switch's P4Runtime server, host:port."""
    restored: bool
    """Whether it had lost the job, and has been given it back."""

    def __str__(self) -> str:
        job = "had lost the job's tables; they are back" if self.restored else "has the job still"
        return f"switch: {self.p4runtime}: {job}"


class Watch:
    """One job in the generation of its admission.

    Theory of operation. A poll reads one row of each switch, the job's, as a backup. If that fails, the
    switch is lost: each poll tries to connect again, until it answers. A switch without the row has lost its
    tables.
    The watch then becomes the primary, loads the pipeline if there is none, puts the job back, and becomes
    the backup again. While another controller is the primary, e.g. to put back its own job, it waits for the
    next poll. A switch that stays away is reported once.
    """

    def __init__(self, fabric: Fabric, generation: int, json_path: Path, p4info_path: Path) -> None:
        self._fabric, self._generation = fabric, generation
        self._files = (json_path, p4info_path)
        self._away: set[int] = set()
        self._halfway: set[int] = set()

    @property
    def misses_switch(self) -> bool:
        """Whether a switch did not respond at the last poll."""
        return bool(self._away)

    def look(self) -> list[SwitchLost | SwitchRegained]:
        """Poll every switch once, and restore a job that is missing. `str` turns an event into a sentence.

        Raises ControlError if a switch has the job closed or in another generation, or runs another program:
        the job has then ended.
        """
        return [event for switch in range(len(self._fabric.switches)) for event in self._poll(switch)]

    def _poll(self, switch: int) -> Iterator[SwitchLost | SwitchRegained]:
        if switch not in self._away:
            try:
                if self._fabric.holds(switch, self._generation):
                    return
            except SwitchError as error:
                yield self._lost(switch, error)
        try:
            restored = self._regain(switch)
        except NotPrimaryError:
            return
        except SwitchError as error:
            if switch not in self._away:
                yield self._lost(switch, error)
            return
        self._away.discard(switch)
        yield SwitchRegained(self._fabric.switches[switch], restored)

    def _lost(self, switch: int, error: SwitchError) -> SwitchLost:
        self._away.add(switch)
        return SwitchLost(self._fabric.switches[switch], str(error).partition(";")[0])

    def _regain(self, switch: int) -> bool:
        """Connect again and restore pipeline and job if necessary; return whether the job was missing."""
        if switch in self._away:
            self._fabric.reconnect(switch, timeout_s=_PATIENCE_S)
        with self._fabric.as_primary(switch, patience_s=_PATIENCE_S):
            self._fabric.give_pipeline(switch, *self._files)
            # A job that was only half put back looks like an evicted one.
            if switch not in self._halfway and self._fabric.holds(switch, self._generation):
                return False
            self._halfway.add(switch)
            self._fabric.put_back(switch, self._generation)
            self._halfway.discard(switch)
            return True
