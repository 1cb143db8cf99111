"""Rate and latency over UDP: ports keep to the rate, their queues set ECN marks, and no sum is quicker."""

import json
import threading
import time

import numpy as np
import pytest
from patience import PATIENCE_S, tried_again

from peelsum.allreduce import Allreduce
from peelsum.softswitch.ports.udp import FRAME_HEADER_BYTES
from peelsum.summation import Part
from peelsum.topology.description import parse, two_racks
from peelsum.topology.network import UdpNetwork
from peelsum.transport.seats import SEAT, plug_in
from peelsum.wire import packet_bytes

pytestmark = pytest.mark.usefixtures("forked_children")

LANES, CHUNKS, MBIT = 256, 150, 20.0
DESCRIBED = {
    "hosts": {"h1": {}, "h2": {}, "h3": {}},
    "switches": {"s1": {"mark_from": 16}},
    "links": [{"ends": ["h1", "s1-p1"], "rate_mbit": MBIT}, ["h2", "s1-p2"], ["h3", "s1-p3"]],
    "job": {"workers": ["h1", "h2"], "server": "h3", "lanes": LANES},
}


def at_each(topology, work):
    """Call `work` with each worker's host and seat, in threads, while the network runs."""
    with UdpNetwork(topology) as network:
        workers = topology.job.workers
        seats = {host: json.loads(network.places[host].environment[SEAT]) for host in workers}
        threads = [threading.Thread(target=work, args=item) for item in seats.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)


@pytest.mark.system
def test_a_sum_takes_the_latency_of_every_link_there_and_back():
    racks = two_racks()
    slow = {("h1", "s1-p1"): 5.0, ("s1-p3", "s3-p1"): 10.0, ("h5", "s3-p3"): 15.0}
    links = [link.model_copy(update={"latency_ms": slow.get(link.ends, 0.0)}) for link in racks.links]
    times = {}

    def work(host, seat):
        own = np.arange(5000, dtype=np.uint32)
        with plug_in(seat) as summation:
            summation.sum_words([Part(own, "add")])  # afterwards, all workers are there
            started = time.monotonic()
            (total,) = summation.sum_words([Part(own, "add")])
            times[host] = time.monotonic() - started
            assert np.array_equal(total, 4 * own)

    at_each(racks.model_copy(update={"links": tuple(links)}), work)
    assert times["h1"] >= 0.06
    assert times["h3"] >= 0.03


@tried_again
def test_only_the_worker_behind_a_slow_link_meets_its_queue_and_all_wait_for_it():
    # A switch that other programs keep from running sends late, and has no queue.
    values = np.arange(CHUNKS * LANES, dtype=np.float32)
    marked, times = {}, {}

    def work(host, seat):
        with plug_in(seat) as summation:
            started = time.monotonic()
            result = Allreduce(summation, forms="dense").sum({"t": values})
            times[host] = time.monotonic() - started
            marked[host] = summation.stats().marked
            assert np.array_equal(result["t"].values, 2 * values)

    at_each(parse(json.dumps(DESCRIBED), "net.json"), work)
    least = CHUNKS * 8 * (FRAME_HEADER_BYTES + packet_bytes(LANES)) / (MBIT * 1e6)
    assert times["h1"] > least
    assert marked["h1"] > 0
    assert marked["h2"] == 0
