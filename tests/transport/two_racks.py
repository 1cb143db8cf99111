"""The seeded network with racks: a leaf switch for each rack, and a spine above them with the server."""

from __future__ import annotations

from virtual_network import Actor, Faults, VirtualNetwork

from peelsum.spec import Level, SpecSwitch
from peelsum.transport import AggregationServer, JobConfig, WorkerEndpoint
from peelsum.wire import MAX_WORKERS

SERVER, UPLINK = 500, 400


class TwoLevelNetwork(VirtualNetwork):
    """`switch` is the spine; rack r hangs at its port r, and is `leaves[r]`, whose uplink is port 400.

    Actors go by the ports that the base class gives them: worker n is at port n, the server at port 500. So a
    leaf's ports to its workers are their numbers.
    """

    def __init__(
        self, seed: int, *, lanes: int, slots: int, racks: int, faults: Faults, age_limit: int
    ) -> None:
        super().__init__(seed, lanes=lanes, slots=slots, faults=faults, age_limit=age_limit)
        self.leaves = [SpecSwitch(lanes, slots) for _ in range(racks)]
        for leaf in self.leaves:
            leaf.set_age_limit(age_limit)

    def admit(self, config: JobConfig, first_port: int = SERVER, salt: int = 0) -> list[Actor]:
        """Admit a job of two levels on all switches; its workers in the order of their numbers."""
        common = {"generation": config.generation, "salt": salt, "group": config.job_id}
        self.switch.admit_job(
            config.job_id,
            expected_mask=config.expected_mask,
            up_port=first_port,
            level=Level.SPINE,
            **common,
        )
        self.switch.admit_server(config.job_id, first_port)
        self.switch.set_group(config.job_id, list(range(len(config.racks))))
        for rack, mask in enumerate(config.rack_masks):
            self.switch.admit_rack(config.job_id, rack, rack_mask=1 << rack, first_worker=rack * MAX_WORKERS)
            leaf = self.leaves[rack]
            leaf.admit_job(config.job_id, expected_mask=mask, up_port=UPLINK, level=Level.LEAF, **common)
            leaf.admit_server(config.job_id, UPLINK)
            leaf.set_group(config.job_id, [n for n in config.worker_ids if n // MAX_WORKERS == rack])
        self.actors[first_port] = Actor(first_port, AggregationServer(config))
        for number in config.worker_ids:
            rack, place = divmod(number, MAX_WORKERS)
            self.switch.return_to(config.job_id, number, rack)
            self.leaves[rack].return_to(config.job_id, number, number)
            self.leaves[rack].admit_worker(config.job_id, number, worker_mask=1 << place, worker_id=number)
            self.actors[number] = Actor(number, WorkerEndpoint(config, number))
        return [self.actors[number] for number in config.worker_ids]

    def restart_leaf(self, rack: int) -> None:
        """A rack's switch loses its registers; the controller has put its tables back."""
        self.leaves[rack].state = SpecSwitch(self.lanes, self.slots).state

    def _at_switch(self, port: int, payload: bytes) -> None:
        if port >= SERVER:
            self._at_spine(port, payload)
        else:
            self._at_leaf(port // MAX_WORKERS, port, payload)

    def _at_leaf(self, rack: int, port: int, payload: bytes) -> None:
        for out, packet in self.leaves[rack].process(port, payload, int(self.now * 1e6)):
            if out == UPLINK:
                self._hop(lambda copy: self._at_spine(rack, copy), packet)
            else:
                self._hop(lambda copy, out=out: self._at_actor(self.actors[out], copy), packet)

    def _at_spine(self, port: int, payload: bytes) -> None:
        for out, packet in self.switch.process(port, payload, int(self.now * 1e6)):
            if out in self.actors and out >= SERVER:
                self._hop(lambda copy, out=out: self._at_actor(self.actors[out], copy), packet)
            else:
                self._hop(lambda copy, out=out: self._at_leaf(out, UPLINK, copy), packet)
