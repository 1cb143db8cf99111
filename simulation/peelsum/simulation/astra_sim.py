"""Write the time of a collective as a custom collective of ASTRA-sim: a Chakra trace for each rank.

ASTRA-sim has no switch that sums. A trace with one node, which takes the simulated time, stands for the sum:
every rank is busy for so long, and sends nothing. Formats: Chakra's schema/protobuf/et_def.proto (messages
with their length before them; the first is GlobalMetadata, the others are Nodes) and ASTRA-sim's system file.
"""

from __future__ import annotations

import json
from pathlib import Path

from peelsum.simulation.trains import SimulationError

#: `NodeType.COMP_NODE`, and the schema's version as ASTRA-sim's own examples name it.
_COMP_NODE, _SCHEMA = 4, "1.0.2-chakra.0.0.4"


def write_costs(folder: Path, name: str, ranks: int, seconds: float) -> Path:
    """Write NAME.RANK.et for each rank, and return NAME.json, which makes them ASTRA-sim's all_reduce.

    seconds: what the collective takes, rounded to whole microseconds, the trace's unit; at least one.
    ASTRA-sim ignores the size that a workload asks for: the time is the simulated size's. Raises
    SimulationError if the folder cannot be written to, or there are no ranks.
    """
    if ranks < 1:
        raise SimulationError(f"ranks: {ranks} is not a number of ranks; use 1 or more")
    trace = chakra_trace(name, max(round(1e6 * seconds), 1))
    system = {
        "scheduling-policy": "FIFO",
        "preferred-dataset-splits": 1,
        "all-reduce-implementation-custom": [str(folder.resolve() / name)],
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(ranks):
            (folder / f"{name}.{rank}.et").write_bytes(trace)
        path = folder / f"{name}.json"
        path.write_text(json.dumps(system, indent=2) + "\n")
    except OSError as error:
        raise SimulationError(f"{folder}: {error.strerror}; give a folder that can be written to") from None
    return path


def chakra_trace(name: str, micros: int) -> bytes:
    """Return a trace of one rank that computes for so many microseconds."""
    schema = _text(1, "schema") + _text(29, _SCHEMA)
    metadata = _text(1, _SCHEMA) + _block(2, schema)
    # Field 1, the id, is 0, which protobuf leaves out.
    node = _text(2, name) + _number(3, _COMP_NODE) + _number(7, micros)
    return b"".join(_varint(len(one)) + one for one in (metadata, node))


def _varint(value: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first; all but the last have their top bit set."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _block(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _block(field, text.encode())
