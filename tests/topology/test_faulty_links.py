"""Exact sums over sockets whose links lose packets in bursts, change their order, or are slow."""

import threading
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from patience import PATIENCE_S

from peelsum.summation import Part
from peelsum.topology import Star, TopologyError
from peelsum.topology.description import Topology
from peelsum.topology.network import UdpNetwork, VethNetwork
from peelsum.transport.seats import plug_in

pytestmark = pytest.mark.usefixtures("forked_children")

WORKERS, SUMS, WORDS = 3, 4, 50_003
#: The star's options by the kind of fault, and the counters of its ports that show it.
FAULTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "bursts": ({"loss": 0.02, "loss_burst": 5.0}, ("lost_in", "lost_out")),
    "long bursts": ({"loss": 0.05, "loss_burst": 60.0}, ("lost_in", "lost_out")),
    "late": ({"late": 0.05}, ("late",)),
    "all late": ({"late": 1.0}, ("late",)),
    "slow link": ({"rate_mbit": {1: 25.0, 2: 100.0, 3: 100.0, 4: 100.0}}, ()),
    "all of them": (
        {"rate_mbit": {1: 25.0, 2: 100.0, 3: 100.0}, "loss": 0.02, "loss_burst": 5.0, "late": 0.05},
        ("lost_in", "lost_out", "late"),
    ),
}


def words_of(worker, number):
    """Return a worker's words of a sum, of which some sums exceed 32 bits."""
    return np.random.default_rng([worker, number]).integers(0, 1 << 32, WORDS, np.uint32)


def wrong_words(seat):
    """Sum at a seat; return how many words differ from the sum in 64 bits."""
    wrong = 0
    with plug_in(seat) as summation:
        for number in range(SUMS):
            (total,) = summation.sum_words([Part(words_of(summation.worker_id, number), "add")])
            exact = np.sum([words_of(w, number).astype(np.uint64) for w in range(WORKERS)], axis=0)
            wrong += int(np.count_nonzero(total != exact % (1 << 32)))
    return wrong


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fault", FAULTS)
def test_sums_are_exact(fault, seed):
    options, counters = FAULTS[fault]
    wrong: dict[int, int] = {}

    def work(seat):
        wrong[seat.worker_id] = wrong_words(asdict(seat))

    with Star(WORKERS, seed=seed, **options) as star:
        threads = [threading.Thread(target=work, args=(seat,)) for seat in star.seats]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert wrong == dict.fromkeys(range(WORKERS), 0)
    assert star.report is not None
    for counter in counters:
        assert sum(port[counter] for port in star.report.ports.values()) > 0, counter


def described(**link):
    """Return a network of one worker pair, whose links all have these properties."""
    ends = [["h1", "s1-p1"], ["h2", "s1-p2"], ["h3", "s1-p3"]]
    job = {"workers": ["h1", "h2"], "server": "h3"}
    hosts: dict[str, Any] = {"h1": {}, "h2": {}, "h3": {}}
    links = [{"ends": end, **link} for end in ends]
    return Topology.model_validate({"hosts": hosts, "switches": {"s1": {}}, "links": links, "job": job})


def test_a_topology_has_these_faults_over_udp(monkeypatch):
    from peelsum.processes import Child

    commands: list[tuple[str, ...]] = []
    start_ready = Child.start_ready

    def started(name, *command, **more):
        commands.append(command)
        return start_ready(name, *command, **more)

    monkeypatch.setattr(Child, "start_ready", started)
    with UdpNetwork(described(loss=0.02, loss_burst=4.0, late=0.01)):
        pass
    (switch,) = [command for command in commands if command[:2] == ("switch", "run")]
    assert {("--loss", "0.02"), ("--loss-burst", "4.0"), ("--late", "0.01")} <= {*pairwise(switch)}


@pytest.mark.parametrize("link", [{"loss": 0.1, "loss_burst": 2.0}, {"late": 0.1}])
def test_interfaces_refuse_them_before_they_make_a_namespace(link):
    with pytest.raises(TopologyError, match=r"has loss_burst or late, .*; use --links udp"):
        VethNetwork(described(**link)).__enter__()
