"""The specification's switch behind real UDP sockets, in a thread, for tests of the adapters."""

import selectors
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random

import numpy as np
from patience import PATIENCE_S
from peelsum_packets import Job

from peelsum.spec import SpecSwitch
from peelsum.summation import Part
from peelsum.transport import AggregationService, JobConfig, Timers
from peelsum.wire import packet_bytes
from peelsum.wire.datagrams import BatchSocket

#: The server's port of the switch. Workers' ports follow it.
PORT = 50
CONFIG = JobConfig(
    job_id=1, generation=4, workers=3, lanes=8, window=64, first_chunk=0xFFFFFFE0, timers=Timers(linger=1.0)
)


class UdpSwitch:
    """A switch with a UDP socket per port, which drops a seeded share of packets. A context manager."""

    def __init__(self, lanes, *, loss=0.0, seed=0):
        self.spec = SpecSwitch(lanes, 4096)
        self._random, self._loss = Random(seed), loss
        self._size = packet_bytes(lanes)
        self._ports = {}
        self._peers = {}
        self._selector = selectors.DefaultSelector()
        self._stopped, self._stopper = socket.socketpair()
        self._selector.register(self._stopped, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run)

    def admit(self, config):
        """Admit a job."""
        ports = [PORT + 1 + worker for worker in range(config.workers)]
        Job(self.spec, config.job_id, ports, PORT, config.generation)
        for port in [PORT, *ports]:
            self._ports[port] = BatchSocket.bind(("127.0.0.1", 0), self._size)
            self._selector.register(self._ports[port], selectors.EVENT_READ, port)

    def address(self, worker=-1):
        """Return where a worker connects, or by default the server."""
        return self._ports[PORT + 1 + worker].address

    def send_raw(self, data, worker=-1):
        """Send a worker, or by default the server, a datagram that no switch would."""
        self._ports[PORT + 1 + worker].send_hello(self._peers[PORT + 1 + worker], data)

    def forget_peers(self):
        """Forget all hosts, as a restarted switch process does."""
        self._peers.clear()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stopper.send(b"\0")
        self._thread.join()
        for one in (*self._ports.values(), self._selector, self._stopped, self._stopper):
            one.close()

    def _run(self):
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                while (burst := self._ports[key.data].receive()) is not None:
                    if burst.hello:
                        self._peers[key.data] = burst.source
                        self._ports[key.data].send_hello(burst.source)
                    for packet in burst.packets:
                        self._process(key.data, packet.tobytes())

    def _process(self, port, payload):
        if self._random.random() < self._loss:
            return
        for out, packet in self.spec.process(port, payload, 0):
            if out in self._peers and self._random.random() >= self._loss:
                self._ports[out].send(np.frombuffer(packet, np.uint8)[None, :], self._peers[out])


@contextmanager
def served(config=CONFIG, *, loss=0.0, seed=0, runs=True):
    """Yield a switch with a job, its server, threads, and the server's run; then end them.

    Without `runs`, the test starts the server, and the run is None.
    """
    with UdpSwitch(config.lanes, loss=loss, seed=seed) as switch:
        switch.admit(config)
        with AggregationService(config, switch.address()) as service, ThreadPoolExecutor(8) as pool:
            serving = pool.submit(service.run) if runs else None
            try:
                yield switch, service, pool, serving
            finally:
                service.stop()
            if serving is not None:
                serving.result(PATIENCE_S)


def drawn(worker, step, length):
    return np.random.default_rng((worker, step)).integers(0, 1 << 32, length, dtype=np.uint32)


def steps(summation, count):
    """Sum an ADD part, an empty one and an OR part, `count` times."""
    mine = summation.worker_id

    def parts(step):
        added, united = drawn(mine, step, 1000 + step), drawn(mine, step + 100, 33)
        return [Part(added, "add"), Part(drawn(0, 0, 0), "add"), Part(united, "or")]

    return [summation.sum_words(parts(step)) for step in range(count)]


def check_steps(got, workers):
    for step, (added, empty, united) in enumerate(got):
        inputs = [[drawn(w, step, 1000 + step), drawn(w, step + 100, 33)] for w in range(workers)]
        np.testing.assert_array_equal(
            added, np.sum([one for one, _ in inputs], 0, np.uint64).astype(np.uint32)
        )
        np.testing.assert_array_equal(united, np.bitwise_or.reduce([one for _, one in inputs]))
        assert empty.size == 0
