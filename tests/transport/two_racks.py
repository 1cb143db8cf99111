"""The seeded network with racks: a leaf switch for each rack, and a spine above them with the server."""

from __future__ import annotations

from virtual_network import Actor, Faults, VirtualNetwork

from peelsum.spec import SpecSwitch
from peelsum.transport import AggregationServer, JobConfig, WorkerEndpoint
from peelsum.wire import MAX_WORKERS, Level

UPLINK = 400
#: Hosts' ports start here for each job: its server's, and from the next thousand on its workers'.
SERVER_PORT = {1: 10_000, 2: 20_000}
WORKERS = 1000


class TwoLevelNetwork(VirtualNetwork):
    """`switch` is the spine; rack r is behind its port r, and is `leaves[r]`, whose uplink is port 400.

    Every host has a port number of its own, of whichever switch: a job's server p, its worker n p + 1000 + n.
    """

    def __init__(
        self, seed: int, *, lanes: int, slots: int, racks: int, faults: Faults, age_limit: int
    ) -> None:
        super().__init__(seed, lanes=lanes, slots=slots, faults=faults, age_limit=age_limit)
        self.leaves = [SpecSwitch(lanes, slots) for _ in range(racks)]
        for leaf in self.leaves:
            leaf.set_age_limit(age_limit)

    def admit(self, config: JobConfig, first_port: int, salt: int = 0) -> list[Actor]:
        """Admit a job of two levels on all switches; return its workers in the order of their numbers."""
        common = {"generation": config.generation, "salt": salt, "group": config.job_id}
        spine, job_id = self.switch, config.job_id
        spine.admit_job(
            job_id, expected_mask=config.expected_mask, up_port=first_port, level=Level.SPINE, **common
        )
        spine.admit_server(job_id, first_port)
        spine.set_group(job_id, list(range(len(config.racks))))
        for rack, mask in enumerate(config.rack_masks):
            spine.admit_rack(job_id, rack, rack_mask=1 << rack, first_worker=rack * MAX_WORKERS)
            leaf = self.leaves[rack]
            leaf.admit_job(job_id, expected_mask=mask, up_port=UPLINK, level=Level.LEAF, **common)
            leaf.admit_server(job_id, UPLINK)
            leaf.set_group(job_id, [])
        self.actors[first_port] = Actor(first_port, AggregationServer(config))
        return [self._admit_worker(config, number, first_port) for number in config.worker_ids]

    def _admit_worker(self, config: JobConfig, number: int, first_port: int) -> Actor:
        rack, place = divmod(number, MAX_WORKERS)
        port, leaf = first_port + WORKERS + number, self.leaves[rack]
        self.switch.return_to(config.job_id, number, rack)
        leaf.return_to(config.job_id, number, port)
        leaf.admit_worker(config.job_id, port, worker_mask=1 << place, worker_id=number)
        leaf.groups[config.job_id].append(port)
        self.actors[port] = Actor(port, WorkerEndpoint(config, number))
        return self.actors[port]

    def restart_leaf(self, rack: int) -> None:
        """Clear the registers of a rack's switch, whose tables the controller restores."""
        self.leaves[rack].state = SpecSwitch(self.lanes, self.slots).state

    def _at_switch(self, port: int, payload: bytes) -> None:
        if port in SERVER_PORT.values():
            self._at_spine(port, payload)
        else:
            self._at_leaf(port % SERVER_PORT[1] % WORKERS // MAX_WORKERS, port, payload)

    def _at_leaf(self, rack: int, port: int, payload: bytes) -> None:
        for out, packet in self.leaves[rack].process(port, payload, int(self.now * 1e6)):
            if out == UPLINK:
                self._hop(lambda copy: self._at_spine(rack, copy), packet)
            else:
                self._hop(lambda copy, out=out: self._at_actor(self.actors[out], copy), packet)

    def _at_spine(self, port: int, payload: bytes) -> None:
        for out, packet in self.switch.process(port, payload, int(self.now * 1e6)):
            if out in SERVER_PORT.values():
                self._hop(lambda copy, out=out: self._at_actor(self.actors[out], copy), packet)
            else:
                self._hop(lambda copy, out=out: self._at_leaf(out, UPLINK, copy), packet)
