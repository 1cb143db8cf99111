"""A link's rate over UDP: the switch's ports keep to it, and their queues reach workers as ECN marks."""

import json
import threading
import time

import numpy as np
import pytest
from patience import PATIENCE_S, tried_again

from peelsum.allreduce import Allreduce
from peelsum.softswitch.ports.udp import FRAME_HEADER_BYTES
from peelsum.topology.description import parse
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


@tried_again
def test_only_the_worker_behind_a_slow_link_meets_its_queue_and_all_wait_for_it() -> None:
    # A switch that other programs keep from running sends late, and has no queue.
    values = np.arange(CHUNKS * LANES, dtype=np.float32)
    marked, times = {}, {}

    def work(host: str, seat: dict[str, object]) -> None:
        with plug_in(seat) as summation:
            started = time.monotonic()
            result = Allreduce(summation, forms="dense").sum({"t": values})
            times[host] = time.monotonic() - started
            marked[host] = summation.stats().marked
            assert np.array_equal(result["t"].values, 2 * values)

    with UdpNetwork(parse(json.dumps(DESCRIBED), "net.json")) as network:
        seats = {host: json.loads(network.places[host].environment[SEAT]) for host in ("h1", "h2")}
        threads = [threading.Thread(target=work, args=item) for item in seats.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    least = CHUNKS * 8 * (FRAME_HEADER_BYTES + packet_bytes(LANES)) / (MBIT * 1e6)
    assert times["h1"] > least
    assert marked["h1"] > 0
    assert marked["h2"] == 0
