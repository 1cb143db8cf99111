"""Choose program, session and driver for the kind of a switch.

A switch runs the v1model program and speaks P4Runtime, or it is a Tofino and speaks BF Runtime.
"""

from __future__ import annotations

from pathlib import Path

from peelsum.control.bfruntime import BfRuntimeSession
from peelsum.control.errors import SwitchError
from peelsum.control.sections import TofinoSection
from peelsum.control.session import Session, pipeline_schema
from peelsum.control.tofino import ARCHITECTURES, Tofino
from peelsum.control.v1model import V1Model
from peelsum.pipelines import pipeline
from peelsum.pipelines.tofino import P4INFO, STRATUM_CONFIG
from peelsum.tls import TlsIdentity


def program_files(lanes: int, tofino: TofinoSection | None) -> tuple[Path, Path]:
    """Return the paths of a switch's compiled program and of its P4Info.

    lanes: 32-bit values per packet of the v1model program; not used for a Tofino.
    Raises PipelineError if the program is not compiled for so many lanes.
    """
    if tofino is not None:
        return Path(tofino.program) / STRATUM_CONFIG, Path(tofino.program) / P4INFO
    compiled = pipeline(lanes)
    return compiled.json_path, compiled.p4info_path


def open_session(
    address: str,
    device_id: int = 1,
    tofino: TofinoSection | None = None,
    *,
    timeout_s: float = 4.0,
    connect_s: float | None = None,
    identity: TlsIdentity | None = None,
) -> Session:
    """Connect to a switch as a backup, by the API of its kind; return the session.

    tofino: a Tofino's section; None for other switches. timeout_s, connect_s, identity: as for `Session`.
    Raises SwitchError if the connection fails, ControlError if files of a Tofino's program are missing.
    """
    if tofino is None:
        return Session(address, device_id, timeout_s=timeout_s, connect_s=connect_s, identity=identity)
    program = pipeline_schema(*program_files(0, tofino))
    return BfRuntimeSession(
        address, program, device_id, timeout_s=timeout_s, connect_s=connect_s, identity=identity
    )


def driver_of(session: Session) -> V1Model | Tofino:
    """Return the driver for a session's switch. Raises SwitchError for a Tofino program over P4Runtime."""
    if isinstance(session, BfRuntimeSession):
        return Tofino(session)
    if session.running_schema().p4info.pkg_info.arch in ARCHITECTURES:
        raise SwitchError(
            f"switch: {session.address} runs the program of a Tofino, which takes BF Runtime; give the "
            "address of bf_switchd, and [switch.tofino]"
        )
    return V1Model(session)
