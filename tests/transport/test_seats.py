"""Seats, by which hosts connect to their switch ports."""

import pytest

from peelsum.transport import TransportConfigError
from peelsum.transport.seats import plug_in


def test_a_seat_of_another_program_is_refused():
    """In a network whose job has a program of its own, `peelsum exec` gives hosts such seats."""
    seat = {"worker_id": 0, "switch_host": "127.0.0.1", "switch_port": 1, "job": 1, "lanes": 64}
    with pytest.raises(TransportConfigError, match=r"^seat: has no admission; use a seat of a job that runs"):
        plug_in(seat)
