"""Looks after a job that was admitted: switches that lost it, by a restart above all, get it back unasked.

Owns what is noticed and what is done about it. Refuses to know when to look: who has a clock calls `look`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from peelsum.control.errors import NotPrimaryError, SwitchError
from peelsum.control.fabric import Fabric

#: How long a switch that is back may take to answer. One that is not back is asked again at the next look.
_PATIENCE_S = 1.0


@dataclass(frozen=True)
class SwitchLost:
    """A switch that no longer answers, or not as it did, and why."""

    p4runtime: str
    reason: str

    def __str__(self) -> str:
        return f"{self.reason}; connecting again"


@dataclass(frozen=True)
class SwitchRegained:
    """A switch that answers again. `restored`: it had lost the job, and has it back."""

    p4runtime: str
    restored: bool

    def __str__(self) -> str:
        job = "had lost the job's tables; they are back" if self.restored else "has the job still"
        return f"switch: {self.p4runtime}: {job}"


class Watch:
    """Looks after one job in the generation of its admission.

    Theory of operation. A look costs a switch one read, of the job's row, and needs no charge of it. If that
    fails, the switch went away: it is connected to again, look after look, until it answers. A switch without
    the row has lost its tables: who watches takes charge, unless another controller is just then, which may
    be one that puts back its own job; puts in the pipeline, if there is none, and the job; and stands back.
    A switch that stays away is told of once.
    """

    def __init__(self, fabric: Fabric, generation: int, json_path: Path, p4info_path: Path) -> None:
        self._fabric, self._generation = fabric, generation
        self._files = (json_path, p4info_path)
        self._away: set[int] = set()
        self._halfway: set[int] = set()

    def look(self) -> list[SwitchLost | SwitchRegained]:
        """Look at every switch once, and put back what is missing. What came about, in words by `str`.

        Raises ControlError where a switch has the job closed or in another generation, or runs another
        program: then this job is over.
        """
        return [event for switch in range(len(self._fabric.switches)) for event in self._look_at(switch)]

    def _look_at(self, switch: int) -> Iterator[SwitchLost | SwitchRegained]:
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
        """Connect if need be, and put back what is missing; whether the job was."""
        if switch in self._away:
            self._fabric.reconnect(switch, timeout_s=_PATIENCE_S)
        with self._fabric.as_primary(switch, patience_s=_PATIENCE_S):
            self._fabric.give_pipeline(switch, *self._files)
            # Half of a job put back looks like one that was evicted.
            if switch not in self._halfway and self._fabric.holds(switch, self._generation):
                return False
            self._halfway.add(switch)
            self._fabric.put_back(switch, self._generation)
            self._halfway.discard(switch)
            return True
