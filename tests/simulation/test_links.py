"""A link's queue: against ns-3, and packets that are delivered or dropped for a reason."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from peelsum.simulation import Train
from peelsum.simulation.links import LinkSpec, SimulatedLink
from peelsum.simulation.trains import joined, merged, ps

FRAME_BYTES = 1086
FRAME_PS = 8 * FRAME_BYTES * 10_000
#: What tests/simulation/ns3_incast.py printed with ns-3 3.44 on 2026-11-22.
NS3_RECEIVED = 1050


def train(times):
    count = len(times)
    return Train(
        times.astype(np.int64), np.full(count, FRAME_BYTES, np.int32), np.zeros((count, 8), np.uint8)
    )


def test_two_senders_into_one_link_lose_as_many_packets_as_in_ns_3():
    hosts = [SimulatedLink(LinkSpec(0.1, 10e-6, 1 << 10), 1, number) for number in (0, 1)]
    sent = [train(ps(1.0) + host * FRAME_PS // 3 + np.arange(1000) * FRAME_PS) for host in (0, 1)]
    arrived = merged([(host, hosts[host].send(sent[host])) for host in (0, 1)]).train
    # ns-3's queue of 50 does not count the packet that is being sent.
    shared = SimulatedLink(LinkSpec(0.1, 10e-6, 51), 1, 2)
    assert len(shared.send(arrived)) == NS3_RECEIVED
    assert shared.counts().queue_full == 2000 - NS3_RECEIVED


@given(
    gaps=st.lists(st.integers(0, 3 * FRAME_PS), min_size=1, max_size=60),
    queue=st.integers(1, 5),
    loss=st.sampled_from([0.0, 0.3]),
    cross=st.sampled_from([0.0, 0.5]),
    cut=st.integers(0, 60),
)
def test_every_packet_is_counted_once_however_trains_are_cut(gaps, queue, loss, cross, cut):
    spec = LinkSpec(0.1, 1e-6, queue, 2, loss, cross)
    times = np.cumsum(gaps)
    whole, parts = SimulatedLink(spec, 3, 0), SimulatedLink(spec, 3, 0)
    arrived = whole.send(train(times))
    pieces = [parts.send(train(piece)) for piece in (times[:cut], times[cut:]) if len(piece)]
    np.testing.assert_array_equal(joined(pieces).times, arrived.times)
    counts = whole.counts()
    assert counts == parts.counts()
    assert counts.offered == len(times) == counts.delivered + counts.queue_full + counts.lost
    assert len(arrived) == counts.delivered
    assert (np.diff(arrived.times) >= FRAME_PS).all()
