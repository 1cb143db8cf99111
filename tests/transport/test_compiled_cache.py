"""Compiled loops that are cached on disk follow the wire format, which is declared in another file."""

import shutil
import subprocess
import sys
from pathlib import Path

from peelsum import wire
from peelsum.transport import layout

#: A module with a compiled loop that has a field's place in it, as the endpoint's and the server's have.
LOOP = """
import numpy as np
from peelsum.transport.layout import BITMAP, compiled, get, rows_of
from peelsum.wire import pack

@compiled
def bitmap(row):
    return get(row, BITMAP)

packet = pack(np.zeros((1, 1), np.uint32), chunk_id=1, bitmap=2)
print(bitmap(rows_of(packet)[0]), sum(bitmap.stats.cache_hits.values()))
"""


def seen(root: Path) -> str:
    """Return the bitmap that the loop reads from a packet with bitmap 2, and its cache hits."""
    command = [sys.executable, "-c", "import peelsum.transport.loop"]
    # Python's own cache goes by size and seconds, which a quick change leaves as they were.
    environment = {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_changed_format_is_compiled_again(tmp_path) -> None:
    transport = tmp_path / "peelsum" / "transport"
    transport.mkdir(parents=True)
    (transport / "__init__.py").touch()
    (transport / "loop.py").write_text(LOOP)
    shutil.copy(layout.__file__, transport)
    copied = shutil.copytree(
        Path(wire.__file__).parent,
        tmp_path / "peelsum" / "wire",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    assert seen(tmp_path) == "2 0"
    assert seen(tmp_path) == "2 1"
    declared = copied / "format.py"
    before = declared.read_text()
    chunk_id, bitmap = 'Field("chunk_id", 32),', 'Field("bitmap", 32),'
    above, _, below = before.partition(chunk_id)
    declared.write_text(above + bitmap + below.replace(bitmap, chunk_id))
    assert seen(tmp_path) == "2 0"
