"""The compiled check of a packet's header agrees with the wire format's."""

import itertools

import numpy as np

from peelsum.transport.layout import rows_of, well_formed
from peelsum.wire import empty, malformed


def test_the_compiled_check_accepts_what_the_wire_format_accepts() -> None:
    versions, kinds, jobs = (0, 1, 2, 255), (*range(9), 255), (0, 1, 255)
    headers = np.array(list(itertools.product(versions, kinds, range(256), jobs)), np.uint8)
    batch = empty(len(headers), 1)
    batch[:, :4] = headers
    valid = [bool(well_formed(row)) for row in rows_of(batch)]
    assert valid == (~malformed(batch, 1)).tolist()
    assert 0 < sum(valid) < len(valid)
