"""Mallory overhears and injects packets; the victim's workers still get the exact sums.

From a port of her own job she sends forged copies of the victim's packets, and occupies its slots. From every
admitted port she later replays packets that the port sent before.
"""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from rounds import LANES, QUIET, SLOTS, TIMERS, Round, check, submit_all
from virtual_network import Faults, VirtualNetwork

from peelsum.spec import SpecSwitch
from peelsum.transport import JobConfig
from peelsum.wire import EVERYONE, Kind, packet_fields
from peelsum.wire.clock import NEVER_TICKS

VICTIM, HERS = 1, 2
SERVER_PORT = {VICTIM: 100, HERS: 120}
HER_PORTS = (120, 121, 122, 140)
UPWARDS = [Kind.CONTRIBUTION, Kind.RETRY, Kind.RESEND, Kind.BYPASS]


class BuggedSwitch(SpecSwitch):
    """A switch that records all packets and processes Mallory's after some; all their outputs travel."""

    def __init__(self, seed):
        super().__init__(LANES, SLOTS)
        self.mallory = Random(seed + 1)
        self.overheard = []
        self.injected = 0

    def process(self, port, payload, now_us):
        self.overheard.append((port, payload))
        out = list(super().process(port, payload, now_us))
        if self.mallory.random() < 0.4:
            self.injected += 1
            out += super().process(*self._attack(), now_us)
        return out

    def _attack(self):
        """Return Mallory's next packet, and its port."""
        port, payload = self.mallory.choice(self.overheard[-200:])
        if self.mallory.random() < 0.5:
            return port, payload
        port = self.mallory.choice(HER_PORTS)
        return port, self._forged(payload, port)

    def _forged(self, payload, port):
        """Return a variation of `payload`, half the time one that the switch accepts for her own job."""
        batch = np.frombuffer(bytearray(payload), np.uint8)[None]
        (fields,) = packet_fields(batch, LANES)
        draw = self.mallory
        fields["lanes"] = draw.randrange(1 << 32)
        if draw.random() < 0.5:
            fields["job_id"] = HERS
            fields["sender"] = max(0, port - SERVER_PORT[HERS] - 1)
            fields["kind"] = draw.choice([Kind.RESULT, Kind.RESEND] if port == SERVER_PORT[HERS] else UPWARDS)
            return batch.tobytes()
        fields["job_id"] = draw.choice([VICTIM, HERS])
        fields["kind"] = draw.choice([int(fields["kind"]), *Kind])
        fields["sender"] = draw.choice([int(fields["sender"]), 0, 1, EVERYONE])
        fields["bitmap"] = draw.choice([int(fields["bitmap"]), 0, 7])
        fields["generation"] = (int(fields["generation"]) + draw.choice([0, 0, 0, 1, -1])) & 0xFFFF
        fields["chunk_id"] = (int(fields["chunk_id"]) + draw.choice([0, 0, 1, self.slots])) & 0xFFFFFFFF
        return batch.tobytes()


def admit_hers(network, generation):
    """Admit Mallory's own job, whose hosts never answer."""
    config = JobConfig(job_id=HERS, generation=generation, workers=2, lanes=LANES, timers=TIMERS)
    for actor in network.admit(config, SERVER_PORT[HERS]):
        actor.alive = False
    network.actors[SERVER_PORT[HERS]].alive = False


@pytest.mark.parametrize("seed", range(5))
def test_sums_stay_exact(seed):
    """Play the victim's job on a network with Mallory in it."""
    random, switch = Random(seed), BuggedSwitch(seed)
    faults = Faults.drawn(random, 0.1)
    network = VirtualNetwork(
        seed, lanes=LANES, slots=SLOTS, faults=faults, age_limit=NEVER_TICKS, make_switch=lambda: switch
    )
    config = replace(
        QUIET,
        generation=random.randrange(1, 1 << 16),
        window=random.choice([4, 16]),
        first_chunk=random.choice([0, 2**32 - 5]),
    )
    workers = network.admit(config, SERVER_PORT[VICTIM])
    admit_hers(network, config.generation)
    numbers = np.random.default_rng(seed)
    shapes = [(3, int(numbers.integers(1, 12 * LANES))) for _ in range(6)]
    rounds = [Round("add", list(numbers.integers(0, 1 << 32, shape, np.uint32))) for shape in shapes]
    submit_all(network, workers, rounds)
    network.run_until(
        lambda: all(len(worker.sums) == len(rounds) for worker in workers), seconds=30.0, packets=50_000
    )
    check(workers, rounds)
    assert switch.injected > 20
    dropped = network.actors[SERVER_PORT[VICTIM]].machine.stats().dropped
    assert dropped["foreign_job"] == dropped["wrong_generation"] == dropped["foreign_worker"] == 0
