"""Writes the frames that pass a switch's ports to pcap files, one per port and direction.

The format is classic pcap with nanoseconds and link type Ethernet (draft-ietf-opsawg-pcap).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import Literal

import numpy as np

from peelsum.softswitch.errors import SoftswitchError
from peelsum.softswitch.runtime.frames import Frames

#: Magic number, version 2.4, time zone, accuracy, longest frame, link type.
_FILE_HEADER = np.array([0xA1B23C4D, 4 << 16 | 2, 0, 0, 1 << 18, 1], "<u4").tobytes()
_RECORD_HEADER_BYTES = 16


class Capture:
    """Writes each port's frames to `NAME_in.pcap` and `NAME_out.pcap` in a folder.

    Datagrams that the configured loss drops are in `_out` files, but not in `_in` files. If a file cannot be
    written, capturing ends with a message on standard error, and the switch continues.
    """

    def __init__(
        self,
        names: Mapping[int, str],
        folder: Path,
        *,
        overwrite: bool = False,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """names: of the files, by port. overwrite: whether to replace files that exist.

        clock: returns nanoseconds since 1970. Raises SoftswitchError if a file cannot be made.
        """
        self._clock = clock
        self._open_files = ExitStack()
        self._files: dict[tuple[int, str], FileIO] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for port, name in names.items():
                for direction in ("in", "out"):
                    path = folder / f"{name}_{direction}.pcap"
                    # Without a buffer, the file can be read while the switch runs.
                    file = path.open("wb" if overwrite else "xb", buffering=0)
                    self._open_files.enter_context(file)
                    file.write(_FILE_HEADER)
                    self._files[port, direction] = file
        except OSError as error:
            self._open_files.close()
            raise SoftswitchError(
                f"capture: {error.filename}: {error.strerror}; give a folder that is empty or does not exist"
            ) from error

    def close(self) -> None:
        """Close the files."""
        try:
            self._open_files.close()
        except OSError as error:
            self._stop_capturing(error)

    def write(self, direction: Literal["in", "out"], frames: Frames) -> None:
        """Write frames that arrived ("in") or leave ("out") to the files of their ports."""
        # Each frame has a record header before it: the time, and the frame's length twice.
        header = np.empty((len(frames), 4), "<u4")
        header[:, 0], header[:, 1] = divmod(self._clock(), 10**9)
        header[:, 2:] = frames.length[:, None]
        records = np.hstack([header.view(np.uint8), frames.data])
        try:
            for port in set(frames.port.tolist()):
                if (file := self._files.get((port, direction))) is None:
                    continue
                rows = frames.port == port
                lengths = frames.length[rows] + _RECORD_HEADER_BYTES
                is_content = np.arange(records.shape[1]) < lengths[:, None]
                file.write(records[rows][is_content].tobytes())
        except OSError as error:
            self._stop_capturing(error)

    def _stop_capturing(self, error: OSError) -> None:
        self._files.clear()
        print(f"peelsum: capture: {error.strerror}; nothing is captured any more", file=sys.stderr)
