"""The election among streams, without gRPC: notifications, and the highest election id."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from finsy.proto import U128, p4r, rpc_code
from p4runtime_client import Client, status_of
from patience import PATIENCE_S

from peelsum.softswitch.p4runtime import stream as stream_module
from peelsum.softswitch.p4runtime.status import RequestError
from peelsum.softswitch.p4runtime.stream import Arbiter

PRIMARY, BACKUP, NOBODY = rpc_code.OK, rpc_code.ALREADY_EXISTS, rpc_code.NOT_FOUND
LEAVES = None


class Stream:
    """A client that records its notifications."""

    client_name = staticmethod(lambda: "process 7 at 10.0.0.1:5")

    def __init__(self, arbiter):
        self.told = []
        arbiter.open(self)

    def send(self, response):
        answer = response.arbitration
        assert answer.device_id == 7
        self.told.append((answer.status.code, U128.decode(answer.election_id)))


def bid(arbiter, stream, election_id, role=""):
    fields = {"election_id": U128.encode(election_id), "role": p4r.Role(name=role)}
    arbiter.bid(stream, p4r.MasterArbitrationUpdate(device_id=7, **fields))


#: Election ids that streams bid one after the other, who is then the primary, and what each is told.
ELECTIONS = {
    "backups hear of the primary's raised bid, and from now on it counts": (
        [("a", 5), ("b", 3), ("a", 8), ("b", 6)],
        "a",
        {"a": [(PRIMARY, 5), (PRIMARY, 8)], "b": [(BACKUP, 5), (BACKUP, 8), (BACKUP, 8)]},
    ),
    "a backup's bid is told to it alone, and its leaving to nobody": (
        [("a", 5), ("b", 3), ("b", 4), ("b", LEAVES)],
        "a",
        {"a": [(PRIMARY, 5)], "b": [(BACKUP, 5), (BACKUP, 5)]},
    ),
    "streams that never bid are told nothing": ([("a", 5), ("a", LEAVES)], None, {"a": [(PRIMARY, 5)]}),
    "an idle stream does not keep the last bid alive": (
        [("a", 100), ("a", LEAVES), ("b", 1)],
        "b",
        {"a": [(PRIMARY, 100)], "b": [(PRIMARY, 1)]},
    ),
    "a bidding backup keeps the last bid alive": (
        [("a", 100), ("b", 50), ("a", LEAVES), ("c", 99), ("b", LEAVES), ("c", 100)],
        "c",
        {"a": [(PRIMARY, 100)], "b": [(BACKUP, 100), (NOBODY, 100)], "c": [(NOBODY, 100), (PRIMARY, 100)]},
    ),
    "an equal bid after stepping down wins again": (
        [("a", 5), ("b", 1), ("a", 4), ("a", 5)],
        "a",
        {"a": [(PRIMARY, 5), (NOBODY, 5), (PRIMARY, 5)], "b": [(BACKUP, 5), (NOBODY, 5), (BACKUP, 5)]},
    ),
    "a bid of a stream that ended is forgotten": ([("a", LEAVES), ("a", 5)], None, {}),
    "two without election id do not collide": (
        [("a", 0), ("b", 0)],
        None,
        {"a": [(NOBODY, 0)], "b": [(NOBODY, 0)]},
    ),
}


@pytest.mark.parametrize(("steps", "primary", "told"), ELECTIONS.values(), ids=ELECTIONS)
def test_who_is_the_primary_and_who_hears_of_it(steps, primary, told):
    arbiter = Arbiter(7)
    streams = {name: Stream(arbiter) for name in "abc"}
    for name, election_id in steps:
        if election_id is LEAVES:
            arbiter.close(streams[name])
        else:
            bid(arbiter, streams[name], election_id)
    assert arbiter.packet_receivers == ([streams[primary]] if primary else [])
    assert {name: stream.told for name, stream in streams.items() if stream.told} == told


def write_code(arbiter, role="", **fields):
    """The code with which a write is refused; None if it is permitted."""
    try:
        arbiter.require_primary(p4r.WriteRequest(role=role, **fields))
    except RequestError as error:
        return error.code.name
    return None


@pytest.mark.parametrize("election_id", [0, 4, 6, 1 << 64 | 5])
def test_only_the_primarys_present_bid_may_write(election_id):
    arbiter = Arbiter(7)
    stream = Stream(arbiter)
    assert write_code(arbiter, election_id=U128.encode(5)) == "PERMISSION_DENIED"
    bid(arbiter, stream, 5)
    assert write_code(arbiter, election_id=U128.encode(5)) is None
    assert write_code(arbiter, election_id=U128.encode(election_id)) == "PERMISSION_DENIED"
    bid(arbiter, stream, 6)
    assert write_code(arbiter, election_id=U128.encode(5)) == "PERMISSION_DENIED"


def test_without_an_election_everybody_may_write():
    """As in BMv2: requests without election id, as long as no stream has bid."""
    arbiter = Arbiter(7)
    stream = Stream(arbiter)
    assert write_code(arbiter) is None
    assert write_code(arbiter, "job 1") == write_code(arbiter, role_id=7) == "PERMISSION_DENIED"
    bid(arbiter, stream, 0)
    assert write_code(arbiter) == "PERMISSION_DENIED"
    arbiter.close(stream)
    assert write_code(arbiter) is None


def test_a_client_that_opens_a_new_stream_need_not_wait_for_the_end_of_the_old_one(monkeypatch):
    monkeypatch.setattr(stream_module, "ENDING_S", PATIENCE_S)
    arbiter = Arbiter(7)
    old, new = Stream(arbiter), Stream(arbiter)
    bid(arbiter, old, 1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(bid, arbiter, new, 1)
        arbiter.close(old)
        waiting.result(PATIENCE_S)
    assert new.told == [(PRIMARY, 1)]


def test_each_role_has_a_primary_that_may_write(monkeypatch):
    arbiter = Arbiter(7)
    writer, holder, other, late = (Stream(arbiter) for _ in range(4))
    bid(arbiter, holder, 1, "job 1")
    bid(arbiter, other, 3, "job 2")
    assert arbiter.packet_receivers == [holder, other]
    bid(arbiter, writer, 5)
    assert (writer.told, holder.told, other.told) == ([(PRIMARY, 5)], [(PRIMARY, 1)], [(PRIMARY, 3)])
    assert arbiter.packet_receivers == [writer]
    assert write_code(arbiter, "job 2", election_id=U128.encode(3)) is None
    assert write_code(arbiter, "job 1", election_id=U128.encode(3)) == "PERMISSION_DENIED"
    assert write_code(arbiter, "job 3", election_id=U128.encode(3)) == "PERMISSION_DENIED"
    # A number is part of a role: nobody has bid for these.
    assert write_code(arbiter, role_id=2, election_id=U128.encode(5)) == "PERMISSION_DENIED"
    assert write_code(arbiter, "job 2", role_id=2, election_id=U128.encode(3)) == "PERMISSION_DENIED"
    monkeypatch.setattr(stream_module, "ENDING_S", 0.0)
    with pytest.raises(RequestError, match=r"id 1 already exists, of process 7 at 10\.0\.0\.1:5; bid"):
        bid(arbiter, late, 1, "job 1")
    with pytest.raises(RequestError, match=r"role: 'job 1': this stream has another"):
        bid(arbiter, other, 2, "job 1")
    arbiter.close(holder)
    bid(arbiter, late, 1, "job 1")
    assert late.told == [(PRIMARY, 1)]
    assert arbiter.is_primary(late)
    assert not arbiter.is_primary(holder)


def test_a_role_may_have_a_number():
    """As in P4Runtime before 1.4, and still in clients that set `role_id`."""
    arbiter = Arbiter(7)
    stream, other = Stream(arbiter), Stream(arbiter)
    answers = []
    stream.send = lambda response: answers.append(response.arbitration)
    update = p4r.MasterArbitrationUpdate(device_id=7, election_id=U128.encode(4), role=p4r.Role(id=2))
    arbiter.bid(stream, update)
    assert (answers[0].role, answers[0].status.code) == (p4r.Role(id=2), PRIMARY)
    bid(arbiter, other, 4, "2")
    assert other.told == [(PRIMARY, 4)], "a name that looks like a number is another role"
    for role_id, code in ((2, None), (3, "PERMISSION_DENIED"), (0, "PERMISSION_DENIED")):
        assert write_code(arbiter, role_id=role_id, election_id=U128.encode(4)) == code
    for name, text in (("", "3"), ("job 1", "'job 1' with number 3")):
        update.role.CopyFrom(p4r.Role(name=name, id=3))
        with pytest.raises(RequestError, match=f"role: {text}: this stream has another"):
            arbiter.bid(stream, update)


def told(stream):
    arbitration = stream.receive().arbitration
    return arbitration.status.code, U128.decode(arbitration.election_id)


def test_all_hear_who_is_the_primary_and_that_it_has_left(connect):
    first, second = connect().stream(), connect().stream()
    assert first.bid(5).status.code == rpc_code.OK
    backup = second.bid(3)
    assert (backup.status.code, U128.decode(backup.election_id)) == (rpc_code.ALREADY_EXISTS, 5)
    assert second.bid(7).status.code == rpc_code.OK
    assert told(first) == (rpc_code.ALREADY_EXISTS, 7)
    second.close()
    assert told(first) == (rpc_code.NOT_FOUND, 7)


def test_a_broken_connection_counts_as_leaving(connect, server):
    backup = connect().stream()
    dying = Client(server.address)
    assert dying.stream().bid(9).status.code == rpc_code.OK
    backup.bid(4)
    dying.channel.close()
    assert told(backup) == (rpc_code.NOT_FOUND, 9)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"device_id": 2}, "NOT_FOUND"),
        ({"device_id": 1, "election_id": U128.encode(5)}, "INVALID_ARGUMENT"),
        ({"device_id": 1, "role": p4r.Role(id=7, config={})}, "UNIMPLEMENTED"),
    ],
    ids=["another device", "an election id in use", "a role with a config"],
)
def test_what_ends_a_stream(connect, fields, code):
    holder = connect().stream()
    holder.bid(5)
    stream = connect().stream()
    stream.send(arbitration=p4r.MasterArbitrationUpdate(**fields))
    assert status_of(stream.receive)[0] == code
    assert holder.bid(5).status.code == rpc_code.OK


def test_only_the_primary_writes(client, connect, schema):
    backup = connect(0)
    for refused in (backup.write, lambda: backup.set_pipeline(schema.get_pipeline_config(), "VERIFY")):
        assert status_of(refused)[0] == "PERMISSION_DENIED"
    # Backups may read.
    assert backup.read(table_entry=p4r.TableEntry())


def test_a_stream_that_ended_makes_room(connect):
    client = connect()
    for _ in range(20):
        stream = client.stream()
        assert stream.bid(1).status.code == rpc_code.OK
        stream.close()
        with pytest.raises(EOFError):
            stream.receive()
