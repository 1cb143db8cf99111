"""A switch with no room for a call: a controller's Write waits for room, up to a time limit."""

from itertools import pairwise

import grpc
import pytest

from peelsum.control import SwitchError
from peelsum.control.tables import bridge_entries


class Refused(grpc.RpcError):
    """A refused call, with what a client can ask of it."""

    def __init__(self, code, details, *trailing):
        self.code, self.details, self.trailing_metadata = lambda: code, lambda: details, lambda: trailing


#: How gRPC refuses a call beyond the most that run at once.
FULL = Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!")
#: How a switch refuses a Write that it has looked at: with the reason for each update.
FULL_TABLE = Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "", ("grpc-status-details-bin", b""))
#: How BMv2 refuses to read an entity of a kind that it does not know.
UNKNOWN_ENTITY = Refused(grpc.StatusCode.UNKNOWN, "Incorrect entity type")


def refuse(controller, monkeypatch, times, refusal=FULL):
    """Let the next Writes fail, so many; return a list that grows by each one that came."""
    came, send = [], controller.session._stub.Write

    def write(request, timeout):
        came.append(request)
        if len(came) <= times:
            raise refusal
        return send(request, timeout=timeout)

    monkeypatch.setattr(controller.session._stub, "Write", write)
    return came


def test_a_write_that_finds_no_room_is_sent_again(controller, description, monkeypatch):
    came = refuse(controller, monkeypatch, 3)
    controller.admit(description)
    assert came[0] == came[3]
    assert [job.job_id for job in controller.jobs()] == [3]


def test_a_switch_that_stays_full_is_an_error(controller, description, monkeypatch):
    controller.session._timeout_s = 0.2
    came = refuse(controller, monkeypatch, 10_000)
    with pytest.raises(SwitchError, match="refused writing: Concurrent RPC limit exceeded!"):
        controller.admit(description)
    assert len(came) > 1


def test_a_table_that_is_full_is_an_error_at_once(controller, monkeypatch):
    """The switch has taken part of that Write: sent again, it could only fail again."""
    came = refuse(controller, monkeypatch, 0)
    rows = bridge_entries(dict.fromkeys(range(1, 1200), 1))
    with pytest.raises(SwitchError, match="writing"):
        controller.session.write([+row for row in rows])
    assert len(came) == 5  # of 256 rows each: the table has 1,024
    assert all(one != other for one, other in pairwise(came))


def test_a_write_that_the_switch_has_looked_at_is_not_sent_again(controller, monkeypatch):
    came = refuse(controller, monkeypatch, 10_000, FULL_TABLE)
    with pytest.raises(SwitchError, match="writing"):
        controller.session.write([+row for row in bridge_entries({1: 1})])
    assert len(came) == 1


def test_a_job_is_admitted_at_a_switch_that_knows_no_secrets(controller, description, monkeypatch):
    read = controller.session._stub.Read

    def read_known(request, timeout):
        if any(entity.HasField("extern_entry") for entity in request.entities):
            raise UNKNOWN_ENTITY
        return read(request, timeout=timeout)

    monkeypatch.setattr(controller.session._stub, "Read", read_known)
    assert controller.admit(description).generation
    assert [job.job_id for job in controller.jobs()] == [3]
