"""The part of a compiled Tofino program that tests of controllers need, in tests/control/tofino_program.

To bring it up to date, run this with the folder that `peelsum switch compile --tofino --out` wrote for
`tofino`.
"""

import json
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "control" / "tofino_program"
_KINDS = ("MatchAction_Direct", "Counter", "Register", "RegisterParam")


def needed(folder):
    """Return bf-rt.json without snapshots and all lanes but the first, and P4Info."""
    schema = json.loads((folder / "bf-rt.json").read_text())
    schema["tables"] = [
        table
        for table in schema["tables"]
        if table["table_type"] in _KINDS and ("lane_" not in table["name"] or "lane_0." in table["name"])
    ]
    p4info = (folder / "p4info.txtpb").read_text()
    return {"bf-rt.json": json.dumps(schema, separators=(",", ":")) + "\n", "p4info.txtpb": p4info}


if __name__ == "__main__":
    for name, text in needed(Path(sys.argv[1])).items():
        (FOLDER / name).write_text(text)
