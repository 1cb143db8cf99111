"""The saved and the running pipeline: which of them reads, writes, packets and commits concern."""

from __future__ import annotations

import grpc
import pytest
from finsy.proto import p4r
from p4runtime_client import forward
from p4runtime_entries import FRAME, packet_out, route


def test_after_a_save_and_a_reconciliation_reads_are_of_the_running_pipeline(client, schema, device):
    config, kept = schema.get_pipeline_config(), route(schema)
    client.update("INSERT", table_entry=kept)
    running = device.switch
    client.set_pipeline(config, "VERIFY_AND_SAVE")
    client.update("INSERT", table_entry=route(schema, "10.2.0.0/16"))
    everything = p4r.TableEntry(table_id=kept.table_id)
    assert client.read(table_entry=everything) == [route(schema, "10.2.0.0/16")]
    config.cookie.cookie = 5
    client.set_pipeline(config, "RECONCILE_AND_COMMIT")
    assert device.switch is running
    assert client.read(table_entry=everything) == [kept]
    assert client.get_pipeline("COOKIE_ONLY").cookie.cookie == 5


def test_reconciliation_keeps_the_running_state_not_the_saved_one(client, schema, device):
    config, kept = schema.get_pipeline_config(), route(schema, metadata=b"mine")
    client.update("INSERT", table_entry=kept)
    client.set_pipeline(config, "VERIFY_AND_SAVE")
    client.update("INSERT", table_entry=route(schema, "10.2.0.0/16"))
    config.p4_device_config += b"\n"
    client.set_pipeline(config, "RECONCILE_AND_COMMIT")
    assert client.read(table_entry=p4r.TableEntry(table_id=kept.table_id)) == [kept]
    assert client.get_pipeline() == config


def test_a_commit_forgets_what_was_saved(client, schema):
    config = schema.get_pipeline_config()
    client.set_pipeline(config, "VERIFY_AND_SAVE")
    client.set_pipeline(config)
    with pytest.raises(grpc.RpcError) as error:
        client.set_pipeline(None, "COMMIT")
    assert error.value.code().name == "FAILED_PRECONDITION"


def test_another_p4info_is_another_pipeline(client, schema, device):
    config, running = schema.get_pipeline_config(), device.switch
    config.p4info.tables[0].size += 1
    client.set_pipeline(config, "RECONCILE_AND_COMMIT")
    assert device.switch is not running


def test_reconciliation_before_any_commit_commits(connect, schema, device):
    client = connect()
    client.become_primary()
    client.set_pipeline(schema.get_pipeline_config(), "RECONCILE_AND_COMMIT")
    assert "MatchEverything.route" in device.switch.tables


def test_packets_go_by_the_running_pipelines_headers(client, schema, device):
    """A saved program with other headers changes nothing for packets until it is committed."""
    config = schema.get_pipeline_config()
    for header in config.p4info.controller_packet_metadata:
        del header.metadata[:]
    client.set_pipeline(config, "VERIFY_AND_SAVE")
    client.primary.send(packet=packet_out(5))
    assert forward(device) == [(5, FRAME)]
    device.deliver_to_cpu([b"\1\2" + FRAME])
    assert client.primary.receive().packet.payload == FRAME


def test_packets_that_waited_for_the_old_pipeline_are_dropped(client, schema, device):
    client.primary.send(packet=packet_out(5))
    # The bid is answered after the packet before it was handled.
    client.primary.bid(1)
    client.set_pipeline(schema.get_pipeline_config())
    client.primary.send(packet=packet_out(6))
    assert forward(device) == [(6, FRAME)]


def test_packets_enter_in_the_order_in_which_they_were_sent(client, device):
    for port in (5, 6, 7):
        client.primary.send(packet=packet_out(port))
    client.primary.bid(1)
    assert forward(device) == [(port, FRAME) for port in (5, 6, 7)]


def test_packets_come_to_the_primary_in_order(client, device):
    device.deliver_to_cpu([bytes([0, 2 * number]) + FRAME for number in range(3)])
    numbers = [client.primary.receive().packet.metadata[1].value for _ in range(3)]
    assert numbers == [b"\0", b"\2", b"\4"]
