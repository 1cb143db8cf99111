"""A switch with no room for a call: a controller's Write waits for room, up to a time limit."""

from itertools import pairwise

import grpc
import pytest

from peelsum.control import SwitchError
from peelsum.control.tables import bridge_entries


class Full(grpc.RpcError):
    """How gRPC refuses a call beyond the most that run at once."""

    def code(self):
        return grpc.StatusCode.RESOURCE_EXHAUSTED

    def details(self):
        return "Concurrent RPC limit exceeded!"

    def trailing_metadata(self):
        return ()


def refuse(controller, monkeypatch, times, refusal=Full):
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


class FullTable(Full):
    """How a switch refuses a Write that it has looked at: with the reason for each update."""

    def trailing_metadata(self):
        return (("grpc-status-details-bin", b""),)


def test_a_write_that_the_switch_has_looked_at_is_not_sent_again(controller, monkeypatch):
    came = refuse(controller, monkeypatch, 10_000, FullTable)
    with pytest.raises(SwitchError, match="writing"):
        controller.session.write([+row for row in bridge_entries({1: 1})])
    assert len(came) == 1


class UnknownEntity(Full):
    """How BMv2 refuses to read an entity of a kind that it does not know."""

    def code(self):
        return grpc.StatusCode.UNKNOWN

    def details(self):
        return "Incorrect entity type"


def test_a_job_is_admitted_at_a_switch_that_knows_no_secrets(controller, description, monkeypatch):
    read = controller.session._stub.Read

    def read_known(request, timeout):
        if any(entity.HasField("extern_entry") for entity in request.entities):
            raise UnknownEntity
        return read(request, timeout=timeout)

    monkeypatch.setattr(controller.session._stub, "Read", read_known)
    assert controller.admit(description).generation
    assert [job.job_id for job in controller.jobs()] == [3]
