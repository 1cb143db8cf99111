"""The election among streams, without gRPC: notifications, and the highest election id."""

import grpc
import pytest
from finsy.proto import U128, p4r, rpc_code

from peelsum.softswitch.p4runtime.arbitration import Arbiter
from peelsum.softswitch.p4runtime.status import RequestError

PRIMARY, BACKUP, NOBODY = rpc_code.OK, rpc_code.ALREADY_EXISTS, rpc_code.NOT_FOUND


class Stream:
    """A client that records its notifications."""

    def __init__(self, arbiter):
        self.told = []
        arbiter.enter(self)

    def send(self, response):
        answer = response.arbitration
        assert answer.device_id == 7
        self.told.append((answer.status.code, U128.decode(answer.election_id)))


@pytest.fixture
def arbiter():
    return Arbiter(7)


def bid(arbiter, stream, election_id):
    update = p4r.MasterArbitrationUpdate(device_id=7, election_id=U128.encode(election_id))
    arbiter.bid(stream, update)


def test_backups_hear_of_the_primarys_raised_bid(arbiter):
    primary, backup = Stream(arbiter), Stream(arbiter)
    bid(arbiter, primary, 5)
    bid(arbiter, backup, 3)
    bid(arbiter, primary, 8)
    assert primary.told == [(PRIMARY, 5), (PRIMARY, 8)]
    assert backup.told == [(BACKUP, 5), (BACKUP, 8)]
    # From now on the new bid counts.
    bid(arbiter, backup, 6)
    assert backup.told[-1] == (BACKUP, 8)
    assert arbiter.primary is primary


def test_a_backups_bid_is_told_to_it_alone(arbiter):
    primary, backup = Stream(arbiter), Stream(arbiter)
    bid(arbiter, primary, 5)
    bid(arbiter, backup, 3)
    bid(arbiter, backup, 4)
    assert (primary.told, backup.told) == ([(PRIMARY, 5)], [(BACKUP, 5), (BACKUP, 5)])


def test_streams_that_never_bid_are_told_nothing(arbiter):
    idle, primary = Stream(arbiter), Stream(arbiter)
    bid(arbiter, primary, 5)
    arbiter.leave(primary)
    assert idle.told == []


def test_an_idle_stream_does_not_keep_the_last_bid_alive(arbiter):
    idle, first = Stream(arbiter), Stream(arbiter)
    bid(arbiter, first, 100)
    arbiter.leave(first)
    bid(arbiter, idle, 1)
    assert idle.told == [(PRIMARY, 1)]


def test_a_bidding_backup_keeps_the_last_bid_alive(arbiter):
    first, backup, late = Stream(arbiter), Stream(arbiter), Stream(arbiter)
    bid(arbiter, first, 100)
    bid(arbiter, backup, 50)
    arbiter.leave(first)
    assert backup.told[-1] == (NOBODY, 100)
    bid(arbiter, late, 99)
    assert late.told == [(NOBODY, 100)]
    arbiter.leave(backup)
    bid(arbiter, late, 100)
    assert late.told[-1] == (PRIMARY, 100)


def test_a_backup_that_leaves_changes_nothing(arbiter):
    primary, backup = Stream(arbiter), Stream(arbiter)
    bid(arbiter, primary, 5)
    bid(arbiter, backup, 3)
    arbiter.leave(backup)
    assert arbiter.primary is primary
    assert primary.told == [(PRIMARY, 5)]


def test_an_equal_bid_after_stepping_down_wins_again(arbiter):
    stream, backup = Stream(arbiter), Stream(arbiter)
    bid(arbiter, stream, 5)
    bid(arbiter, backup, 1)
    bid(arbiter, stream, 4)
    assert (arbiter.primary, backup.told[-1]) == (None, (NOBODY, 5))
    bid(arbiter, stream, 5)
    assert (arbiter.primary, backup.told[-1]) == (stream, (BACKUP, 5))


def test_a_bid_of_a_stream_that_ended_is_forgotten(arbiter):
    stream = Stream(arbiter)
    arbiter.leave(stream)
    bid(arbiter, stream, 5)
    assert (arbiter.primary, stream.told) == (None, [])


def test_two_without_election_id_do_not_collide(arbiter):
    one, other = Stream(arbiter), Stream(arbiter)
    bid(arbiter, one, 0)
    bid(arbiter, other, 0)
    assert one.told == other.told == [(NOBODY, 0)]


def test_an_election_id_in_use_leaves_everything_as_it_is(arbiter):
    holder, other = Stream(arbiter), Stream(arbiter)
    bid(arbiter, holder, 5)
    bid(arbiter, other, 3)
    with pytest.raises(RequestError) as error:
        bid(arbiter, other, 5)
    assert error.value.code == grpc.StatusCode.INVALID_ARGUMENT
    assert arbiter.primary is holder
    assert holder.told == [(PRIMARY, 5)]
    bid(arbiter, holder, 5)
    assert holder.told[-1] == (PRIMARY, 5)


@pytest.mark.parametrize("election_id", [0, 4, 6, 1 << 64 | 5])
def test_only_the_primarys_present_bid_may_write(arbiter, election_id):
    stream = Stream(arbiter)
    with pytest.raises(RequestError):
        arbiter.require_primary(U128.encode(5), "")
    bid(arbiter, stream, 5)
    arbiter.require_primary(U128.encode(5), "")
    with pytest.raises(RequestError) as error:
        arbiter.require_primary(U128.encode(election_id), "")
    assert error.value.code == grpc.StatusCode.PERMISSION_DENIED
    bid(arbiter, stream, 6)
    with pytest.raises(RequestError):
        arbiter.require_primary(U128.encode(5), "")
    with pytest.raises(RequestError) as error:
        arbiter.require_primary(U128.encode(6), "operator")
    assert error.value.code == grpc.StatusCode.UNIMPLEMENTED


def test_roles_by_number_are_not_implemented(arbiter):
    stream = Stream(arbiter)
    update = p4r.MasterArbitrationUpdate(device_id=7, election_id=U128.encode(1), role=p4r.Role(id=2))
    with pytest.raises(RequestError) as error:
        arbiter.bid(stream, update)
    assert error.value.code == grpc.StatusCode.UNIMPLEMENTED
