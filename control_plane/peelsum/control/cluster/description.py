"""The file of `peelsum controller run`, in TOML: the cluster's switches, and where its state is kept."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from peelsum.control.description import file_text, parsed_toml, validated
from peelsum.control.sections import PlacedSwitch, Section


class ControllerSection(Section):
    """`[controller]`: what the controllers of a cluster share."""

    state: str = Field(min_length=1)
    """The SQLite file with the admitted jobs; a relative path starts at this file's folder."""
    poll_s: float = Field(default=1.0, ge=0.05, le=60.0)
    """Seconds between two checks of a switch, and of the primary."""


class ClusterDescription(Section):
    """A cluster: switches with one primary controller, and its backup.

    >>> found = parse_cluster('''
    ... [controller]
    ... state = "cluster.sqlite"
    ... [[switches]]
    ... p4runtime = "10.0.0.1:9559"
    ... [[switches]]
    ... p4runtime = "10.0.0.2:9559"
    ... pipeline_lanes = 32
    ... ''')
    >>> [switch.pipeline_lanes for switch in found.switches]
    [256, 32]
    """

    controller: ControllerSection
    """What the controllers share."""
    switches: tuple[PlacedSwitch, ...] = Field(strict=False, min_length=1)
    """The switches, which nobody else writes to, by the addresses that the jobs' descriptions give."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for number, switch in enumerate(self.switches):
            switch.check_program(f"switches.{number}")
        for (address, device_id), count in Counter(switch.place for switch in self.switches).items():
            if count > 1:
                raise ValueError(
                    f"switches: {address!r}, device_id {device_id}: is listed {count} times; list it once"
                )
        return self


def parse_cluster(text: str, source: str = "cluster description") -> ClusterDescription:
    """Return the cluster in a TOML text. Raises DescriptionError naming `source`, field, value and remedy."""
    return validated(ClusterDescription, parsed_toml(text, source), source, "a cluster description")


def read_cluster(path: Path) -> ClusterDescription:
    """Return the cluster in a file. Raises DescriptionError as `parse_cluster`, or for an unreadable file."""
    return parse_cluster(file_text(path, "a cluster description"), str(path))
