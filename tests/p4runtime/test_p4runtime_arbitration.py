import grpc
import pytest
from finsy.proto import U128, p4r, rpc_code
from p4runtime_client import Client

from peelsum.softswitch.p4runtime.arbitration import Arbiter


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
        ({"device_id": 1, "role": p4r.Role(id=7)}, "UNIMPLEMENTED"),
    ],
    ids=["another device", "an election id in use", "a role by number"],
)
def test_what_ends_a_stream(connect, fields, code):
    holder = connect().stream()
    holder.bid(5)
    stream = connect().stream()
    stream.send(arbitration=p4r.MasterArbitrationUpdate(**fields))
    with pytest.raises(grpc.RpcError) as error:
        stream.receive()
    assert error.value.code().name == code
    assert holder.bid(5).status.code == rpc_code.OK


def test_only_the_primary_writes(client, connect, schema):
    backup = connect(0)
    for refused in (
        lambda: backup.write(),
        lambda: backup.set_pipeline(schema.get_pipeline_config(), "VERIFY"),
    ):
        with pytest.raises(grpc.RpcError) as error:
            refused()
        assert error.value.code().name == "PERMISSION_DENIED"
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


def test_asking_for_the_primary_adds_no_election():
    # The data plane asks without the lock, so what it added could replace the election of a bid.
    arbiter = Arbiter(1)
    assert arbiter.primary is None
    assert not arbiter._elections
