"""What reduce-scatter, all-gather and broadcast send, and that few of their packets are sent twice."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from job_hosts import sent
from rounds import LANES, QUIET, SERVER_PORT, Round, check, quiet, submit_all

from peelsum.topology import Star
from peelsum.transport import SwitchSummation, TransportConfigError, WorkerEndpoint, job_config
from peelsum.transport.endpoint_state import GATHER, SCATTER
from peelsum.wire import Flag, Kind, packet_fields


def quietly(rounds, *, window=128, racks=(), **changed):
    """Play rounds of workers that submit at once, on a network that loses nothing; check the results.

    Returns the server's statistics, and the workers.
    """
    workers = len(rounds[0].inputs)
    network = quiet(1, racks=len(racks))
    config = replace(QUIET, workers=workers, window=window, racks=racks, initial_window=window, **changed)
    actors = network.admit(config, SERVER_PORT[1])
    submit_all(network, actors, rounds)

    def done():
        return all(len(actor.sums) == len(rounds) for actor in actors)

    network.run_until(done, seconds=1.0, packets=100_000)
    check(actors, rounds)
    return network.actors[SERVER_PORT[1]].machine.stats(), [actor.machine for actor in actors]


def words(workers, chunks, seed=0):
    numbers = np.random.default_rng(seed)
    return [numbers.integers(0, 1 << 32, chunks * LANES, dtype=np.uint32) for _ in range(workers)]


@pytest.mark.parametrize(("workers", "chunks"), [(2, 100), (4, 75), (5, 40)])
def test_a_piece_s_sum_goes_to_its_owner_alone(workers, chunks):
    """Every result goes to one worker, and all are told of 16 chunks and more by one packet."""
    first = Round("add", words(workers, 2))
    stats, machines = quietly([first, Round("add", words(workers, workers * chunks), "scatter")])
    assert (stats.results, stats.replies) == (2 + 1, workers * chunks - 1)  # the last one is for all
    assert 0 < stats.needs <= workers * chunks // 16 + 2
    for machine in machines:
        assert (machine.stats().resends, machine.stats().contributions) == (0, 2 + workers * chunks)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_nothing_is_sent_twice_where_other_tensors_follow_a_reduce_scatter(workers):
    """Workers are told of its last chunks before a later result for all shows that these are overtaken."""
    rounds = []
    for number in range(6):
        rounds.append(Round("add", words(workers, workers * 7, number), "scatter"))
        rounds.append(Round("add", words(workers, 40, number)))
        rounds.append(Round("or", words(workers, 9, number), "gather"))
    for machine in quietly(rounds)[1]:
        assert (machine.stats().resends, machine.stats().lost) == (0, 0)


@pytest.mark.parametrize("root", [None, 0, 2])
def test_a_worker_sends_its_own_words_and_one_chunk_in_sixteen(root):
    workers, chunks = 4, 96
    stats, machines = quietly([Round("or", words(workers, chunks), "gather", root)])
    whole = chunks * (workers if root is None else 1)
    paced = -(-whole // 16)
    for worker, machine in enumerate(machines):
        own = chunks if root in (None, worker) else 0
        most = own + paced if root != worker else whole
        assert own <= machine.stats().contributions <= most
        assert machine.stats().resends == 0
    assert stats.results == whole


def test_all_workers_contribute_every_chunk_of_a_gather_in_a_small_window():
    _, machines = quietly([Round("or", words(3, 20), "gather")], window=63)
    assert [machine.stats().contributions for machine in machines] == 3 * [60]


def test_a_scatter_whose_ids_wrap_gives_all_workers_the_results():
    """2**32 is no multiple of 3: a chunk's owner would change in the middle of the tensor."""
    stats, _ = quietly([Round("add", words(3, 30), "scatter")], window=64, first_chunk=(1 << 32) - 10)
    assert stats.replies == 0


def test_only_the_owner_s_packet_says_that_the_others_contribute_nothing():
    """The first chunk is of all. Its result opens the others, up to half the window less the pace."""
    config = replace(QUIET, window=64, workers=2)
    worker = WorkerEndpoint(config, 1)
    worker.submit(np.arange(40 * LANES, dtype=np.uint32), "or", collective=GATHER)
    (first,) = sent(worker)
    assert (first["kind"], first["flags"], first["chunk_id"]) == (Kind.CONTRIBUTION, Flag.OR, 0)
    answer = np.array([first]).view(np.uint8).reshape(1, -1).copy()
    packet_fields(answer, LANES)["kind"] = Kind.RESULT
    worker.receive(answer, 0.1)
    later = sent(worker, 0.1)
    assert [int(one["chunk_id"]) for one in later] == [*range(1, 17, 2), 16]
    for one in later:
        of_all = one["chunk_id"] == 16
        assert one["kind"] == (Kind.CONTRIBUTION if of_all else Kind.BYPASS)
        assert one["flags"] == (Flag.OR if of_all else Flag.OR | Flag.OWNED)


def test_a_list_of_complete_chunks_settles_nothing_that_this_worker_needs():
    """Neither its own piece nor a sum, nor what is not sent yet: their words are still to come."""
    config = replace(QUIET, workers=2, window=8)
    worker = WorkerEndpoint(config, 0)
    worker.submit(np.ones(4 * LANES, np.uint32), "add", collective=SCATTER)
    worker.submit(np.ones(20 * LANES, np.uint32), "add")
    told = sent(worker)[0]
    listed = np.array([told]).view(np.uint8).reshape(1, -1).copy()
    fields = packet_fields(listed, LANES)
    fields["kind"], fields["flags"], fields["bitmap"], fields["lanes"] = Kind.NEED, Flag.OWNED, 0, 0xFFFFFFFF
    worker.receive(listed, 0.1)
    assert worker.stats().results == 1  # the last chunk is for all
    assert worker.outstanding == 24
    fields["flags"], fields["bitmap"] = Flag.NONE, 0
    worker.receive(listed, 0.1)
    assert worker.stats().needs == 1


@pytest.mark.parametrize(
    ("length", "op", "collective"), [(7, "add", SCATTER), (8, "add", GATHER), (1, "or", SCATTER)]
)
def test_words_that_have_no_pieces_are_refused(length, op, collective):
    worker = WorkerEndpoint(QUIET, 0)
    with pytest.raises(TransportConfigError, match="words: "):
        worker.submit(np.zeros(length, np.uint32), op, collective=collective)
    assert worker.outstanding == 0


@pytest.mark.system
def test_over_sockets_small_reduce_scatters_are_rarely_retransmitted():
    """The last result is for all, and brings the list. By a timer, each call had a retransmission."""
    workers, calls = 3, 100

    def resends(seat):
        address = seat.switch_host, seat.switch_port
        with SwitchSummation(job_config(seat.admission), seat.worker_id, address) as summation:
            given = np.arange(workers * 33, dtype=np.uint32)
            own = np.split(given * np.uint32(workers), workers)[summation.worker_id]
            np.testing.assert_array_equal(summation.reduce_scatter(given), own)
            before = summation.stats().resends
            for _ in range(calls):
                np.testing.assert_array_equal(summation.reduce_scatter(given), own)
            return summation.stats().resends - before

    with Star(workers) as star, ThreadPoolExecutor(workers) as pool:
        assert sum(pool.map(resends, star.seats)) < calls * workers // 4
