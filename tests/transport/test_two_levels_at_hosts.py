"""Server and worker of a job with racks, row by row."""

from dataclasses import replace

import numpy as np
import pytest
from job_hosts import CONFIG as ONE_LEVEL
from job_hosts import LANES, partial, result, sent

from peelsum.transport import (
    AggregationServer,
    JobConfig,
    Stalled,
    TransportConfigError,
    WorkerEndpoint,
)
from peelsum.wire import EVERYONE, Flag, Kind, packet_fields

CONFIG = replace(ONE_LEVEL, workers=6, racks=(3, 1, 2))
OF_RACK, OF_RACKS = Flag.NONE, Flag.SPINE


def up(chunk: int, bitmap: int, value: int, flags: Flag = OF_RACK, sender: int = 0) -> np.ndarray:
    return partial(chunk, bitmap, value, flags=flags, sender=sender)


def need(chunk: int, flags: Flag, bitmap: int, *lanes: int) -> np.ndarray:
    batch = result(chunk, kind=Kind.NEED, flags=flags, bitmap=bitmap)
    packet_fields(batch, LANES)["lanes"][0, : len(lanes)] = lanes
    return batch


def test_workers_are_numbered_by_rack_and_place() -> None:
    assert CONFIG.worker_ids == (0, 1, 2, 32, 64, 65)
    assert CONFIG.expected_mask == 0b111
    assert CONFIG.rack_masks == (0b111, 0b1, 0b11)


@pytest.mark.parametrize(
    ("racks", "message"),
    [
        ((3, 2), r"racks: \(3, 2\) add up to 5, not to workers = 6"),
        ((6, 0), r"racks\[1\]: 0 is out of range"),
        ((1,) * 5, "racks: their number: 5 is out of range; give a number from 1 to 4"),
    ],
)
def test_racks_that_make_no_job(racks: tuple[int, ...], message: str) -> None:
    with pytest.raises(TransportConfigError, match=message):
        replace(ONE_LEVEL, workers=6, racks=racks)


def test_only_with_racks_there_are_more_than_32_workers() -> None:
    assert len(replace(ONE_LEVEL, workers=64, racks=(32, 32)).worker_ids) == 64
    with pytest.raises(TransportConfigError, match="workers: 64 is out of range"):
        replace(ONE_LEVEL, workers=64)


def test_a_complete_sum_of_racks_becomes_everybody_s_result() -> None:
    server = AggregationServer(CONFIG)
    server.receive(up(5, 0b111, 42, OF_RACKS), 0.0)
    (packet,) = sent(server)
    assert (packet["kind"], packet["sender"], packet["bitmap"]) == (Kind.RESULT, EVERYONE, 0b111)
    assert (packet["flags"], packet["lanes"].tolist()) == (Flag.SPINE, [42] * LANES)
    assert (server.stats().chunks_in_switch, server.stats().chunks_at_server) == (1, 0)


@pytest.mark.parametrize(
    ("parts", "value", "duplicates"),
    [
        ([(0b101, 1, OF_RACK, 2), (0b110, 10, OF_RACKS, 0), (0b010, 100, OF_RACK, 0)], 111, 0),
        # A rack takes the place of its worker 64, and workers 65 and 32 are in it.
        (
            [
                *((0b01, 5, OF_RACK, 64), (0b110, 30, OF_RACKS, 0), (0b10, 7, OF_RACK, 65)),
                *((0b1, 8, OF_RACK, 32), (0b001, 2, OF_RACKS, 0)),
            ],
            32,
            2,
        ),
    ],
)
def test_racks_and_workers_of_racks_add_up(
    parts: list[tuple[int, int, Flag, int]], value: int, duplicates: int
) -> None:
    server = AggregationServer(CONFIG)
    for part in parts:
        server.receive(up(0, *part), 0.0)
    (packet,) = sent(server)
    assert (packet["flags"], packet["bitmap"], packet["lanes"].tolist()) == (OF_RACKS, 0b111, [value] * LANES)
    stats = server.stats()
    assert (stats.chunks_in_switch, stats.chunks_at_server, stats.duplicates) == (0, 1, duplicates)


def test_equal_bits_of_different_racks_do_not_overlap_and_those_of_one_are_not_added() -> None:
    server = AggregationServer(CONFIG)
    server.receive(up(0, 0b001, 1, sender=0), 0.0)
    server.receive(up(0, 0b01, 1, sender=64), 0.0)
    assert (server.stats().merged, server.stats().duplicates) == (1, 0)
    assert server.stalled(0.0).missing_workers == (1, 2, 32, 65)
    server.receive(up(0, 0b101, 1, OF_RACKS), 0.0)  # contains both
    server.receive(up(0, 0b110, 1, OF_RACKS), 0.0)  # overlaps in rack 2, brings rack 1
    assert server.stats().overlaps == 1
    assert server.stalled(0.0).missing_workers == (32,)


def test_both_levels_are_asked_and_workers_are_named_by_rack() -> None:
    server = AggregationServer(CONFIG)
    server.receive(up(3, 0b010, 1, OF_RACKS | Flag.CE), 1.0)
    server.receive(up(3, 0b100, 1, sender=2), 1.0)
    server.expire(1.01)
    asked = [(p["kind"], p["flags"], p["sender"], p["bitmap"]) for p in sent(server)]
    resend = Kind.RESEND
    assert asked == [(resend, OF_RACK, 0, 0), (resend, Flag.SPINE, EVERYONE, 0), (resend, OF_RACK, 64, 0)]
    server.expire(1.02)
    *again, last = sent(server)
    assert len(again) == 3
    assert (last["kind"], last["flags"], last["sender"]) == (Kind.NEED, Flag.SPINE, EVERYONE)
    assert (last["bitmap"], last["lanes"][:3].tolist()) == (0b101, [0b011, 0, 0b11])


@pytest.mark.parametrize(
    ("bitmap", "flags", "sender", "to"),
    [
        (0b11, OF_RACK, 65, EVERYONE),  # both of rack 2
        (0b101, OF_RACK, 2, EVERYONE),  # two of rack 0's three
        (0b001, OF_RACKS, 1, EVERYONE),
        (0b111, OF_RACKS, 1, EVERYONE),
        (0b110, OF_RACKS, 64, EVERYONE),  # a rack of one, and another
        (0b010, OF_RACKS, 32, 32),  # a rack of one
        (0b10, OF_RACK, 65, 65),
    ],
)
def test_all_get_the_result_again_that_did_not_pass_a_switch(
    bitmap: int, flags: Flag, sender: int, to: int
) -> None:
    server = AggregationServer(CONFIG)
    server.receive(up(0, 0b111, 42, OF_RACKS), 0.0)
    sent(server)
    server.receive(up(0, bitmap, 1, flags, sender=sender), 0.01)
    (packet,) = sent(server)
    assert (packet["kind"], packet["flags"], packet["sender"]) == (Kind.RESULT, OF_RACKS, to)
    assert packet["lanes"][0] == 42


def test_a_worker_takes_its_turn_among_its_rack() -> None:
    for worker, chunks in ((0, [0, 3]), (2, [2]), (32, [0, 1, 2, 3, 4]), (65, [1, 3])):
        endpoint = WorkerEndpoint(CONFIG, worker)
        endpoint.submit(np.zeros(8 * LANES, np.uint32), "add")
        sent(endpoint)
        endpoint.receive(result(7, flags=OF_RACKS), 0.001)
        assert {p["kind"] for p in sent(endpoint, 0.001)} == {Kind.RETRY}
        endpoint.expire(1.0)
        assert [int(p["chunk_id"]) for p in sent(endpoint, 1.0) if p["kind"] == Kind.RESEND] == chunks


@pytest.mark.parametrize(
    ("config", "bitmap", "flags", "sender"),
    [
        (CONFIG, 0b1000, OF_RACKS, 0),
        (CONFIG, 0, OF_RACKS, 0),
        (CONFIG, 0b10, OF_RACK, 32),
        (CONFIG, 0b1, OF_RACK, 96),
        (CONFIG, 1, OF_RACK, EVERYONE),
        (ONE_LEVEL, 0b111, OF_RACKS, 0),  # one level
    ],
)
def test_racks_and_workers_that_the_job_lacks_are_refused(
    config: JobConfig, bitmap: int, flags: Flag, sender: int
) -> None:
    server = AggregationServer(config)
    server.receive(up(0, bitmap, 1, flags, sender), 0.0)
    assert server.stats().dropped["foreign_worker"] == 1


def test_a_stall_names_racks_and_when_their_workers_were_last_seen() -> None:
    server = AggregationServer(CONFIG)
    server.receive(up(0, 0b111, 1, OF_RACKS), 0.0)
    server.receive(up(1, 0b001, 1, OF_RACKS), 1.0)
    server.receive(up(2, 0b10, 1, sender=65), 2.0)
    server.receive(up(1, 0b01, 1, sender=64), 2.0)
    (stall,) = server.expire(6.0)
    assert stall == Stalled(9, 1, (32, 65), 5.0, last_seen=(6.0, 4.0), racks=3)
    assert "workers 32 (rack 1, last seen 6.0 s ago), 65 (rack 2, last seen 4.0 s ago)" in str(stall)


def test_a_worker_contributes_its_place_in_the_rack() -> None:
    worker = WorkerEndpoint(CONFIG, 65)
    worker.submit(np.arange(LANES, dtype=np.uint32), "add")
    (packet,) = sent(worker)
    assert (packet["kind"], packet["sender"], packet["bitmap"], packet["flags"]) == (
        Kind.CONTRIBUTION,
        65,
        0b10,
        0,
    )
    for stranger in (3, 33, 66, -1):
        with pytest.raises(TransportConfigError, match="give 0, 1, 2, 32, 64, 65"):
            WorkerEndpoint(CONFIG, stranger)


def test_a_worker_resends_only_when_its_rack_s_lane_names_it() -> None:
    worker = WorkerEndpoint(CONFIG, 65)
    worker.submit(np.zeros(LANES, np.uint32), "add")
    sent(worker)
    worker.receive(need(0, Flag.SPINE, 0b001, 0b111), 0.01)  # another rack
    worker.receive(need(0, Flag.SPINE, 0b100, 0, 0, 0b01), 0.01)  # another of the rack
    worker.receive(need(0, Flag.SPINE, 0b001, 0b001, 0, 0b11), 0.01)  # its lane does not count
    worker.receive(need(0, OF_RACK, 0b11), 0.01)  # means workers of the only rack, which there is not
    assert sent(worker, 0.01) == []
    assert worker.stats().dropped["unexpected_kind"] == 1
    worker.receive(need(0, Flag.SPINE, 0b101, 0b100, 0, 0b10), 0.02)
    (packet,) = sent(worker, 0.02)
    assert (packet["kind"], packet["sender"]) == (Kind.RESEND, 65)
    stall = worker.stalled(3.0)
    assert (stall.missing_workers, stall.racks) == ((2, 65), 3)
    assert "workers 2 (rack 0), 65 (rack 2); see" in str(stall)
