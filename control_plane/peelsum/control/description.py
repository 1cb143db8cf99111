"""The description of a job on one switch, in TOML: its workers, and the ports they are behind."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from peelsum.control.errors import DescriptionError
from peelsum.control.plan import Member, SwitchPlan
from peelsum.control.sections import HostAddress, JobSection, Port, Section, SwitchSection, check_ports
from peelsum.control.validation import first_validation_error
from peelsum.wire import Level

Model = TypeVar("Model", bound=Section)


class PortsSection(Section):
    """`[ports]`: the switch's ports to the aggregation server and to worker 0, 1, ..."""

    server: Port
    workers: tuple[Port, ...] = Field(strict=False)
    spare: tuple[Port, ...] = Field(default=(), strict=False)
    """Ports for further groups of workers: each takes one for each of its ranks, and one for its server."""


class JobDescription(Section):
    """A job on one switch."""

    job: JobSection
    """The job's number, workers, window and timeout."""
    switch: SwitchSection = SwitchSection()
    """The switch, and how it is set up."""
    ports: PortsSection
    """The switch's ports to the participants."""
    hosts: dict[str, HostAddress] = Field(default_factory=dict)
    """Addresses of hosts, by the number of the port that leads to them."""

    @model_validator(mode="after")
    def _consistent(self) -> JobDescription:
        if len(self.ports.workers) != self.job.workers:
            raise ValueError(
                f"ports.workers: {list(self.ports.workers)}: lists {len(self.ports.workers)} ports for "
                f"job.workers = {self.job.workers}; give each worker one"
            )
        check_ports("", [self.ports.server, *self.ports.workers, *self.ports.spare], self.hosts)
        self.switch.check("switch", self.hosts)
        return self

    @property
    def expected_mask(self) -> int:
        """The worker bitmap of a complete sum."""
        return (1 << self.job.workers) - 1

    @property
    def rack_sizes(self) -> tuple[int, ...]:
        """Workers per rack: always empty, as one switch has no racks."""
        return ()

    @property
    def server_port(self) -> int:
        """The port of the aggregation server."""
        return self.ports.server

    @property
    def worker_ports(self) -> tuple[int, ...]:
        """The workers' ports, in the order of their numbers."""
        return self.ports.workers

    def plans(self) -> tuple[SwitchPlan, ...]:
        """Return what each switch gets; here for the only one."""
        return (
            SwitchPlan(
                switch=self.switch,
                job_id=self.job.id,
                window=self.job.window,
                level=Level.ONLY,
                up_port=self.ports.server,
                members=tuple(Member(port, 1 << n, n) for n, port in enumerate(self.ports.workers)),
                return_ports=dict(enumerate(self.ports.workers)),
                hosts={int(name): host for name, host in self.hosts.items()},
            ),
        )

    @classmethod
    def parse(cls, text: str, source: str = "job description") -> Self:
        """Return the description in a TOML text.

        Raises DescriptionError naming `source`, field, value and remedy.
        """
        return validated(cls, parsed_toml(text, source), source)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the description in a file. Raises DescriptionError as `parse`, or for an unreadable file."""
        return cls.parse(file_text(path), str(path))


def file_text(path: Path) -> str:
    """Return the text of a description's file. Raises DescriptionError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DescriptionError(f"{path}: {error.strerror}; give the path of a job description") from None
    except UnicodeDecodeError as error:
        raise DescriptionError(f"{path}: is not UTF-8 (byte {error.start}); save it as such") from None


def parsed_toml(text: str, source: str) -> dict[str, Any]:
    """Parse TOML. Raises DescriptionError naming `source`."""
    try:
        text.encode()  # TOML is UTF-8; whatever stores or sends the text relies on that
        return tomllib.loads(text)
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise DescriptionError(
            f"{source}: line {line}: {text[error.start]!r}: is no Unicode character; remove it"
        ) from None
    except ValueError as error:  # not only TOMLDecodeError: Python limits the digits of a number
        raise DescriptionError(f"{source}: is not TOML: {error}") from None
    except RecursionError:
        raise DescriptionError(f"{source}: has lists or tables nested too deeply; remove them") from None


def validated(model: type[Model], values: Mapping[str, Any], source: str) -> Model:
    """Build a description from parsed TOML. Raises DescriptionError naming `source`, field, value, remedy."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        reason = first_validation_error(error, "a job description", model)
        raise DescriptionError(f"{source}: {reason}") from None
