"""The specification's switch behind real UDP sockets, in a thread, for tests of the adapters."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from random import Random

import numpy as np
from patience import PATIENCE_S

from peelsum.spec import SpecSwitch
from peelsum.transport import AggregationService, JobConfig
from peelsum.transport.stats import ServerStats
from peelsum.wire import packet_bytes
from peelsum.wire.datagrams import Address, BatchSocket

#: The servers' port of the switch.
PORT = 50


class UdpSwitch:
    """A switch with a UDP socket per port, which drops a seeded share of packets. A context manager."""

    def __init__(self, lanes: int, *, loss: float = 0.0, seed: int = 0) -> None:
        self.spec = SpecSwitch(lanes, 4096)
        self._random, self._loss = Random(seed), loss
        self._size = packet_bytes(lanes)
        self._ports: dict[int, BatchSocket] = {}
        self._peers: dict[int, Address] = {}
        self._selector = selectors.DefaultSelector()
        self._stopped, self._stopper = socket.socketpair()
        self._selector.register(self._stopped, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run)

    def admit(self, config: JobConfig, server_port: int) -> None:
        """Admit a job: its server at `server_port` (shared with other jobs or not), workers after it."""
        ports = [server_port + 10 * config.job_id + worker for worker in range(config.workers)]
        group = config.job_id
        self.spec.admit_job(
            config.job_id,
            generation=config.generation,
            salt=0,
            expected_mask=config.expected_mask,
            up_port=server_port,
            group=group,
        )
        self.spec.admit_server(config.job_id, server_port)
        self.spec.set_group(group, ports)
        for worker, port in enumerate(ports):
            self.spec.admit_worker(config.job_id, port, worker_mask=1 << worker, worker_id=worker)
            self.spec.return_to(config.job_id, worker, port)
        for port in [server_port, *ports]:
            if port not in self._ports:
                self._ports[port] = BatchSocket.bind(("127.0.0.1", 0), self._size)
                self._selector.register(self._ports[port], selectors.EVENT_READ, port)

    def server_address(self, server_port: int) -> Address:
        return self._ports[server_port].address

    def worker_address(self, config: JobConfig, server_port: int, worker: int) -> Address:
        return self._ports[server_port + 10 * config.job_id + worker].address

    def send_raw(self, port: int, data: bytes, address: Address) -> None:
        """Send a datagram, shorter than a packet, that no switch would."""
        self._ports[port]._send(memoryview(data), address)

    def forget_peers(self) -> None:
        """Forget all hosts, as a restarted switch process does."""
        self._peers.clear()

    def __enter__(self) -> UdpSwitch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopper.send(b"\0")
        self._thread.join()
        for one in (*self._ports.values(), self._selector, self._stopped, self._stopper):
            one.close()

    def _run(self) -> None:
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

    def _process(self, port: int, payload: bytes) -> None:
        if self._random.random() < self._loss:
            return
        for out, packet in self.spec.process(port, payload, 0):
            if out in self._peers and self._random.random() >= self._loss:
                self._ports[out].send(np.frombuffer(packet, np.uint8)[None, :], self._peers[out])


@contextmanager
def served(
    *configs: JobConfig, loss: float = 0.0, seed: int = 0, runs: bool = True
) -> Iterator[tuple[UdpSwitch, AggregationService, ThreadPoolExecutor, Future[dict[int, ServerStats]]]]:
    """Yield a switch with these jobs, their server, threads, and the server's run; then end them.

    Without `runs`, the test starts the server, and the run is None.
    """
    with UdpSwitch(configs[0].lanes, loss=loss, seed=seed) as switch:
        for config in configs:
            switch.admit(config, PORT)
        with (
            AggregationService(configs, switch.server_address(PORT)) as service,
            ThreadPoolExecutor(8) as pool,
        ):
            serving = pool.submit(service.run) if runs else None
            try:
                yield switch, service, pool, serving
            finally:
                service.stop()
            if serving is not None:
                serving.result(PATIENCE_S)
