"""The worker's end of the protocol, row by row of its table, and its configuration."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from job_hosts import CONFIG, LANES, WORKER_CONFIG, WRAP, WRAPPING, chunks_of, result, sending, sent

from peelsum import transport
from peelsum.transport.layout import rows_of, run_start, unwrap, well_formed
from peelsum.wire import Flag, Kind, empty, malformed, packet_fields

RACKS = replace(CONFIG, workers=6, racks=(3, 1, 2))


def test_contributions_carry_identity_lanes_and_padding_across_the_chunk_id_wrap():
    endpoint = transport.WorkerEndpoint(WRAPPING, 2)
    words = np.arange(10, dtype=np.uint32) + 0x01020304
    endpoint.submit(words, "or")
    packets = sent(endpoint)
    assert [int(p["chunk_id"]) for p in packets] == [0xFFFFFFFE, 0xFFFFFFFF, 0]
    np.testing.assert_array_equal(np.concatenate([p["lanes"] for p in packets]), [*words, 0, 0])
    for packet in packets:
        assert (packet["kind"], packet["flags"], packet["job_id"]) == (Kind.CONTRIBUTION, Flag.OR, 9)
        assert (packet["generation"], packet["sender"], packet["bitmap"]) == (77, 2, 4)
    assert sent(endpoint) == []


def test_tensors_complete_in_any_order_and_only_once():
    endpoint = transport.WorkerEndpoint(WRAPPING, 0)
    first = endpoint.submit(np.zeros(5, np.uint32), "add")
    second = endpoint.submit(np.zeros(3, np.uint32), "add")
    assert len(sent(endpoint)) == 3
    assert endpoint.receive(result(-2, 10), 1.0) == []
    (event,) = endpoint.receive(result(0, 30), 1.0)
    assert isinstance(event, transport.TensorCompleted)
    assert (event.ticket, event.words.tolist()) == (second, [30] * 3)
    (event,) = endpoint.receive(np.concatenate([result(-1, 20), result(-1, 99), result(-2, 99)]), 1.0)
    assert isinstance(event, transport.TensorCompleted)
    assert (event.ticket, event.words.tolist()) == (first, [10, 10, 10, 10, 20])
    assert endpoint.outstanding == 0
    assert endpoint.stats().duplicates == 2, "which replace nothing"
    assert endpoint.next_timer() is None


def test_no_more_than_the_window_is_outstanding():
    endpoint = sending(100, first_chunk=WRAP)
    endpoint.receive(result(-1), 0.1)
    assert sent(endpoint) == []
    endpoint.receive(result(-2), 0.1)
    assert [int(p["chunk_id"]) for p in sent(endpoint)] == [6, 7]


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (result(-2, version=9), "malformed"),
        (result(-2, job_id=8), "foreign_job"),
        (result(-2, generation=76), "wrong_generation"),
        (result(-2, flags=0x80), "malformed"),
        *(
            (result(-2, kind=kind), "unexpected_kind")
            for kind in Kind
            if kind not in (Kind.RESULT, Kind.NEED)
        ),
        (result(1), "out_of_window"),
        (result(-2 - 8 - 1), "out_of_window"),
        (result(1 << 31), "out_of_window"),
        (result(-2 - (1 << 31)), "out_of_window"),
    ],
)
def test_what_is_not_for_this_worker_is_dropped_and_counted(packet, reason):
    endpoint = sending(3, first_chunk=WRAP)
    assert endpoint.receive(packet, 0.1) == []
    dropped = endpoint.stats().dropped
    assert dropped[reason] == 1
    assert sum(dropped.values()) == 1
    assert endpoint.stats().results == 0


def test_random_bytes_change_nothing():
    endpoint = sending(3, first_chunk=WRAP)
    numbers = np.random.default_rng(3)
    noise = numbers.integers(0, 256, (20_000, 16 + 4 * LANES), dtype=np.uint8)
    noise[::2, 0] = 1
    noise[::4, 1:6] = [Kind.RESULT, 0, 9, 0, 77]
    noise[::4, 8:12] = numbers.integers(0, 256, (5000, 4)) & [0x7F, 255, 255, 254]
    noise[::4, 8] |= 1
    assert endpoint.receive(noise, 0.1) == []
    assert sum(endpoint.stats().dropped.values()) == 20_000
    assert sent(endpoint) == []


def test_need_is_heeded_even_for_an_answered_chunk_but_only_if_it_names_me():
    endpoint = transport.WorkerEndpoint(WRAPPING, 1)
    words = np.arange(3 * LANES, dtype=np.uint32)
    endpoint.submit(words, "add")
    sent(endpoint)
    endpoint.receive(np.concatenate([result(chunk) for chunk in (-2, -1, 0)]), 0.1)
    endpoint.receive(result(-1, kind=Kind.NEED, bitmap=0b101), 0.2)
    assert sent(endpoint) == []
    endpoint.receive(np.concatenate([result(-1, kind=Kind.NEED, bitmap=0b010)] * 2), 0.2)
    (packet,) = sent(endpoint)
    assert (packet["kind"], packet["chunk_id"], packet["sender"]) == (Kind.BYPASS, 0xFFFFFFFF, 1)
    np.testing.assert_array_equal(packet["lanes"], words[LANES : 2 * LANES])
    for chunk in (1, -3, 1 << 31):
        endpoint.receive(result(chunk, kind=Kind.NEED, bitmap=0b010), 0.2)
    assert sent(endpoint) == [], "never sent"


def test_a_stall_names_job_chunk_and_the_workers_the_server_misses():
    endpoint = transport.WorkerEndpoint(replace(WRAPPING, timers=transport.Timers(stall=2.0)), 0)
    endpoint.submit(np.zeros(1, np.uint32), "add")
    sent(endpoint, 5.0)
    assert endpoint.expire(6.9) == []
    endpoint.receive(result(-2, kind=Kind.NEED, bitmap=0b110), 6.9)
    (event,) = endpoint.expire(7.0)
    assert event == transport.Stalled(9, 0xFFFFFFFE, (1, 2), 2.0, generation=77)
    assert "job 9" in str(event)
    assert "4294967294" in str(event)
    assert "workers 1, 2" in str(event)
    assert endpoint.expire(7.1) == []


def test_finish_waits_for_the_results_then_for_the_fin_chunk():
    endpoint = sending(1, first_chunk=WRAP)
    endpoint.finish(0.1)
    assert sent(endpoint) == []
    (event,) = endpoint.receive(result(-2), 0.2)
    assert isinstance(event, transport.TensorCompleted)
    (fin,) = sent(endpoint, 0.2)
    assert (fin["kind"], fin["flags"], fin["chunk_id"]) == (Kind.CONTRIBUTION, Flag.FIN, 0xFFFFFFFF)
    assert not fin["lanes"].any()
    assert endpoint.receive(result(-1, flags=Flag.FIN), 0.3) == [transport.JobFinished(9, confirmed=True)]
    assert endpoint.finished
    assert (endpoint.outstanding, sent(endpoint, 0.3), endpoint.next_timer()) == (0, [], None)


def test_finish_gives_up_after_a_bounded_wait():
    endpoint = transport.WorkerEndpoint(replace(WORKER_CONFIG, timers=transport.Timers(linger=3.0)), 0)
    endpoint.finish(1.0)
    sent(endpoint, 1.0)
    endpoint.expire(3.9)
    assert not endpoint.finished
    assert transport.JobFinished(9, confirmed=False) in endpoint.expire(4.0)
    assert endpoint.finished


def test_what_the_caller_can_get_wrong():
    endpoint = transport.WorkerEndpoint(WORKER_CONFIG, 0)
    with pytest.raises(transport.TransportConfigError, match=r"worker_id: 3 .*0 to 2"):
        transport.WorkerEndpoint(WORKER_CONFIG, 3)
    with pytest.raises(transport.TransportConfigError, match="op: 'max'"):
        endpoint.submit(np.zeros(1, np.uint32), "max")
    with pytest.raises(transport.TransportConfigError, match="words: int32"):
        endpoint.submit(np.zeros(1, np.int32), "add")
    endpoint.finish(0.0)
    with pytest.raises(transport.TransportConfigError, match="submit before finish"):
        endpoint.submit(np.zeros(1, np.uint32), "add")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("job_id", 0),
        ("generation", 1 << 16),
        ("workers", 33),
        ("lanes", 0),
        ("window", 0),
        ("first_chunk", -1),
    ],
)
def test_a_job_out_of_range_names_field_value_and_remedy(field, value):
    with pytest.raises(transport.TransportConfigError, match=rf"{field}: {value} .*give a number from"):
        replace(WORKER_CONFIG, **{field: value})


def test_timers_are_checked():
    with pytest.raises(transport.TransportConfigError, match=r"timers\.linger: 0"):
        transport.Timers(linger=0)
    with pytest.raises(transport.TransportConfigError, match=r"timers\.need: 2\.0 s is above need_most"):
        transport.Timers(need=2, need_most=1)


def test_window_stays_within_what_the_sockets_hold():
    """A limit below the job's window caps the outstanding chunks, even without losses."""
    config = transport.JobConfig(job_id=1, generation=1, workers=1, lanes=4, window=64, initial_window=64)
    worker, server = transport.WorkerEndpoint(config, 0), transport.AggregationServer(config)
    worker.limit_window(10)
    worker.submit(np.arange(4 * 200, dtype=np.uint32), "add")
    count = 0
    while worker.outstanding:
        batch = worker.to_send(0.0).copy()
        assert 0 < len(batch) <= 10
        count += len(batch)
        packet_fields(batch, 4)["kind"] = Kind.BYPASS
        server.receive(batch, 0.0)
        worker.receive(server.to_send(0.0), 0.0)
    assert count == 200


def test_a_short_chunk_is_padded_with_zeros_though_its_row_held_a_full_one():
    worker = transport.WorkerEndpoint(WORKER_CONFIG, 0)
    full = np.full(2 * WORKER_CONFIG.window * LANES, 0xFFFFFFFF, np.uint32)
    worker.submit(full, "add")
    for chunk in range(2 * WORKER_CONFIG.window):
        assert all((packet["lanes"] == 0xFFFFFFFF).all() for packet in sent(worker))
        worker.receive(result(chunk), 0.0)
    worker.submit(np.array([7], np.uint32), "or")
    (packet,) = sent(worker)
    assert packet["lanes"].tolist() == [7] + [0] * (LANES - 1)
    assert (packet["flags"], packet["chunk_id"]) == (Flag.OR, 2 * WORKER_CONFIG.window)


def test_contributions_and_results_are_known_a_window_behind_and_no_further():
    worker, window = transport.WorkerEndpoint(WORKER_CONFIG, 0), WORKER_CONFIG.window
    words = np.arange(20 * LANES, dtype=np.uint32)
    worker.submit(words, "add")
    for chunk in range(20):
        sent(worker)
        worker.receive(result(chunk), 0.1)
    worker.receive(result(20 - window), 0.1)
    assert (worker.stats().duplicates, worker.stats().dropped["out_of_window"]) == (1, 0)
    worker.receive(result(20 - window - 1), 0.1)
    assert (worker.stats().duplicates, worker.stats().dropped["out_of_window"]) == (1, 1)
    worker.receive(np.concatenate([result(chunk, kind=Kind.NEED, bitmap=1) for chunk in range(20)]), 0.2)
    packets = sent(worker)
    assert chunks_of(packets) == list(range(20 - window, 20))
    lanes = np.concatenate([p["lanes"] for p in packets])
    np.testing.assert_array_equal(lanes, words[(20 - window) * LANES :])


@pytest.mark.parametrize("window", [1, 8, 512, 1 << 16])
def test_where_runs_start(window):
    ring, joined = 2 * window, (1 << 32) + 100
    ways = (1 << 31) // ring - 2
    last = (1 << 32) - 1
    numbers = {0: 1, 1: 2, ways - 1: ways, ways: 1, ways + 1: 2, last: 1 + last % ways}
    for number, rings in numbers.items():
        assert run_start(joined, number, window) == joined + ring * rings
    assert run_start(joined, ways - 1, window) - joined <= (1 << 31) - 2 * ring


def test_a_worker_names_only_those_missing_from_its_oldest_chunk():
    config = replace(CONFIG, window=4, timers=transport.Timers(stall=2.0))
    worker = transport.WorkerEndpoint(config, 0)
    worker.submit(np.zeros(2 * LANES, np.uint32), "add")
    worker.to_send(0.0)

    def need(chunk, missing):
        return result(chunk, kind=Kind.NEED, bitmap=missing)

    worker.receive(need(2**30, 0b110), 0.1)
    worker.receive(need(1, 0b010), 0.1)
    assert worker.stalled(0.2).missing_workers == ()
    worker.receive(need(0, 0b100), 0.1)
    for chunk in (1, 2, 2**30, 2**32 - 1):
        worker.receive(need(chunk, 0b010), 0.2)
    assert worker.stalled(0.2).missing_workers == (2,)


@pytest.mark.parametrize("near", [1 << 32, (1 << 32) + 7, (5 << 32) - 1])
def test_positions_reach_half_of_all_chunk_ids_back_and_one_less_ahead(near):
    for away in (-(1 << 31), 1 - (1 << 31), -1, 0, 1, (1 << 31) - 1):
        assert unwrap(near + away & 0xFFFFFFFF, near) == near + away


ADMISSION = {
    "job_id": 1,
    "generation": 2,
    "workers": 2,
    "lanes": 32,
    "window": 64,
    "timeout_s": 30,
    "slots": 128,
    "worker_ports": [0, 510],
    "server_port": 510,
    "news": "for others",
}


def test_an_admission_may_use_half_of_the_slots_and_every_port_of_a_switch():
    job = transport.job_config(ADMISSION)
    assert (job.window, job.timers.stall, job.first_chunk) == (64, 30.0, 0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"slots": 127}, "window: 64 is more than half of the switch's 127 slots"),
        ({"worker_ports": [0, 511]}, "port 511 is not a switch port"),
        ({"worker_ports": [-1, 5]}, "port -1 is not a switch port"),
        ({"server_port": 511}, "port 511 is not a switch port"),
        ({"worker_ports": [1]}, "worker_ports: 1 ports for 2 workers"),
        ({"racks": 5}, "racks: 5 is not a list of integers"),
        ({"racks": [1, "x"]}, r"racks\[1\]: 'x' is not an integer"),
        ({"window": [64]}, r"window: \[64\] is not an integer"),
        ({"job_id": 1.5}, "job_id: 1.5 is not an integer"),
        ({"lanes": None}, "lanes: None is not an integer"),
        ({"window": 0}, "window: 0 is out of range"),
        ({"timers": {}}, "timers: belong to each host"),
        ({"timeout_s": "30"}, "timeout_s: '30' is not a number of seconds"),
        ({"timeout_s": None}, "timeout_s is missing"),
        ({"timeout_s": 0}, "timeout_s: 0 is not a number of seconds"),
        ({"timeout_s": float("inf")}, "timeout_s: inf is not a number of seconds"),
        ({"lanes": True}, "lanes: True is not an integer"),
    ],
)
def test_an_admission_that_no_switch_can_have_is_refused(changed, message):
    with pytest.raises(transport.TransportConfigError, match=message):
        transport.job_config({**ADMISSION, **changed})


@pytest.mark.parametrize("admission", [None, [], "{}"])
def test_an_admission_that_is_not_an_object_is_refused(admission):
    with pytest.raises(
        transport.TransportConfigError, match=r"^admission: .* is not a JSON object; give what `peelsum"
    ):
        transport.job_config(admission)


def test_a_worker_that_waits_for_nothing_never_stalls():
    worker = transport.WorkerEndpoint(replace(WORKER_CONFIG, timers=transport.Timers(stall=2.0)), 0)
    assert (sent(worker, 5.0), worker.next_timer(), worker.expire(100.0)) == ([], None, [])
    worker.submit(np.zeros(1, np.uint32), "add")
    assert len(sent(worker, 200.0)) == 1
    worker.receive(result(0), 200.1)
    assert (sent(worker, 201.0), worker.next_timer(), worker.expire(300.0)) == ([], None, [])


def in_a_run():
    """Return a worker that has joined by chunk 0 and sent two chunks of its run, and the first one's id."""
    worker = transport.WorkerEndpoint(WORKER_CONFIG, 1)
    worker.submit(np.full(1, 77, np.uint32), "add")
    assert len(sent(worker)) == 1
    worker.receive(result(0, kind=Kind.NEED, bitmap=0b100), 0.0)
    worker.receive(result(0), 0.0)
    worker.start_run(5)
    worker.submit(np.full(2 * LANES, 88, np.uint32), "add")
    first, second = chunks_of(sent(worker))
    assert second == first + 1
    return worker, first


def test_a_need_for_the_first_sum_or_for_the_first_chunk_of_the_run_is_heeded():
    worker, first = in_a_run()
    for chunk, word, kind in ((0, 77, Kind.BYPASS), (first, 88, Kind.RESEND), (first + 1, 88, Kind.RESEND)):
        worker.receive(result(chunk, kind=Kind.NEED, bitmap=0b010), 0.1)
        (packet,) = sent(worker, 0.1)
        assert (packet["kind"], packet["chunk_id"], packet["lanes"][0]) == (kind, chunk, word)
    for chunk in (1, first - 1, first + 2):
        worker.receive(result(chunk, kind=Kind.NEED, bitmap=0b010), 0.1)
    assert sent(worker, 0.1) == []


def test_the_compiled_check_accepts_what_the_wire_format_accepts():
    versions, kinds, jobs = (0, 1, 2, 255), (*range(9), 255), (0, 1, 255)
    headers = np.array(list(itertools.product(versions, kinds, range(256), jobs)), np.uint8)
    batch = empty(len(headers), 1)
    batch[:, :4] = headers
    valid = [bool(well_formed(row)) for row in rows_of(batch)]
    assert valid == (~malformed(batch, 1)).tolist()
    assert 0 < sum(valid) < len(valid)


def need(chunk, flags, bitmap, *lanes):
    batch = result(chunk, kind=Kind.NEED, flags=flags, bitmap=bitmap)
    packet_fields(batch, LANES)["lanes"][0, : len(lanes)] = lanes
    return batch


def test_workers_are_numbered_by_rack_and_place():
    assert RACKS.worker_ids == (0, 1, 2, 32, 64, 65)
    assert RACKS.expected_mask == 0b111
    assert RACKS.rack_masks == (0b111, 0b1, 0b11)


@pytest.mark.parametrize(
    ("racks", "message"),
    [
        ((3, 2), r"racks: \(3, 2\) add up to 5, not to workers = 6"),
        ((6, 0), r"racks\[1\]: 0 is out of range"),
        ((1,) * 5, "racks: their number: 5 is out of range; give a number from 1 to 4"),
    ],
)
def test_racks_that_make_no_job(racks, message):
    with pytest.raises(transport.TransportConfigError, match=message):
        replace(WORKER_CONFIG, workers=6, racks=racks)


def test_only_with_racks_there_are_more_than_32_workers():
    assert len(replace(WORKER_CONFIG, workers=64, racks=(32, 32)).worker_ids) == 64
    with pytest.raises(transport.TransportConfigError, match="workers: 64 is out of range"):
        replace(WORKER_CONFIG, workers=64)


def test_a_worker_takes_its_turn_among_its_rack():
    for worker, chunks in ((0, [0, 3]), (2, [2]), (32, [0, 1, 2, 3, 4]), (65, [1, 3])):
        endpoint = transport.WorkerEndpoint(RACKS, worker)
        endpoint.submit(np.zeros(8 * LANES, np.uint32), "add")
        sent(endpoint)
        endpoint.receive(result(7, flags=Flag.SPINE), 0.001)
        assert {p["kind"] for p in sent(endpoint, 0.001)} == {Kind.RETRY}
        endpoint.expire(1.0)
        assert [int(p["chunk_id"]) for p in sent(endpoint, 1.0) if p["kind"] == Kind.RESEND] == chunks


def test_a_worker_contributes_its_place_in_the_rack():
    worker = transport.WorkerEndpoint(RACKS, 65)
    worker.submit(np.arange(LANES, dtype=np.uint32), "add")
    (packet,) = sent(worker)
    assert (packet["kind"], packet["sender"]) == (Kind.CONTRIBUTION, 65)
    assert (packet["bitmap"], packet["flags"]) == (0b10, 0)
    for stranger in (3, 33, 66, -1):
        with pytest.raises(transport.TransportConfigError, match="give 0, 1, 2, 32, 64, 65"):
            transport.WorkerEndpoint(RACKS, stranger)


def test_a_worker_resends_only_when_its_rack_s_lane_names_it():
    worker = transport.WorkerEndpoint(RACKS, 65)
    worker.submit(np.zeros(LANES, np.uint32), "add")
    sent(worker)
    worker.receive(need(0, Flag.SPINE, 0b001, 0b111), 0.01)  # another rack
    worker.receive(need(0, Flag.SPINE, 0b100, 0, 0, 0b01), 0.01)  # another of the rack
    worker.receive(need(0, Flag.SPINE, 0b001, 0b001, 0, 0b11), 0.01)  # its lane does not count
    worker.receive(need(0, Flag.NONE, 0b11), 0.01)  # means workers of the only rack, which there is not
    assert sent(worker, 0.01) == []
    assert worker.stats().dropped["unexpected_kind"] == 1
    worker.receive(need(0, Flag.SPINE, 0b101, 0b100, 0, 0b10), 0.02)
    (packet,) = sent(worker, 0.02)
    assert (packet["kind"], packet["sender"]) == (Kind.RESEND, 65)
    stall = worker.stalled(3.0)
    assert (stall.missing_workers, stall.racks) == ((2, 65), 3)
    assert "workers 2 (rack 0), 65 (rack 2); see" in str(stall)
