"""Frames of rivals' programs, for tests that send them one by one."""

from benchmarks.rivals.program_bench import pack
from peelsum.wire import FRAME_HEADER_BYTES, encapsulation

#: As in the comment of switch/rivals/thc.p4.
THC_LEVELS = (0, 3, 6, 8, 10, 12, 13, 14, 16, 17, 18, 20, 22, 24, 27, 30)


def frame(of, message):
    """Return a message's frame."""
    data, sizes = pack(of, [message])
    payload = data[0, : sizes[0] - FRAME_HEADER_BYTES].tobytes()
    return encapsulation(len(payload)) + payload
