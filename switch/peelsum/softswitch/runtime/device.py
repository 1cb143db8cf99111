"""The embedded switch as its control plane and its data plane share it.

Owns which pipeline runs, and the frames on their way from a controller into it and back. Knows neither
gRPC nor sockets of switch ports: the P4Runtime server sits on one side, a data-plane loop on the other.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from threading import RLock
from typing import Literal

from peelsum.softswitch.program.model import Program
from peelsum.softswitch.runtime.queues import Queues
from peelsum.softswitch.runtime.switch import Switch

#: Frames that may wait for the data plane before `inject` refuses more.
WAITING_LIMIT = 8192


class Device:
    """One switch: at most one running pipeline, replaced whole when another is committed.

    The data-plane loop selects on `fileno()`, which is readable whenever `inject` or `commit` left it
    something to do, then calls `take_injected()` and reads `switch` afresh. All methods may be called
    from any thread. `queues` are those of its ports that have a rate; None: no port has. `ports` are the
    numbers that a controller may send packets to; None: it is not known which there are.
    """

    def __init__(
        self,
        device_id: int = 1,
        *,
        mode: Literal["numba", "python"] = "numba",
        queues: Queues | None = None,
        ports: Collection[int] | None = None,
    ) -> None:
        self.device_id = device_id
        self.mode = mode
        self.queues = queues
        self.ports = ports
        #: Guards the swap of pipelines. Work on one pipeline's state holds that switch's own lock.
        self.lock = RLock()
        self._switch: Switch | None = None
        self._waiting: deque[bytes] = deque()
        self._packet_in: Callable[[Sequence[bytes]], None] | None = None
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)

    @property
    def switch(self) -> Switch | None:
        """The running pipeline, or None before the first commit."""
        return self._switch

    def build(self, program: Program) -> Switch:
        """A switch for the program, in its initial state, that does not run here yet."""
        return Switch(program, mode=self.mode, queues=self.queues)

    def install(self, switch: Switch) -> None:
        """Replace the running pipeline. Frames that waited for the old one are dropped."""
        with self.lock:
            self._switch = switch
            self._waiting.clear()
        self._wake()

    def commit(self, program: Program) -> Switch:
        """Build and install: the old pipeline forwards until the new one can. Returns the new one."""
        switch = self.build(program)
        self.install(switch)
        return switch

    def inject(self, frame: bytes) -> bool:
        """Queue a frame to enter the pipeline from the CPU port. False: the queue is full, frame dropped."""
        with self.lock:
            if len(self._waiting) >= WAITING_LIMIT:
                return False
            self._waiting.append(frame)
        self._wake()
        return True

    def take_injected(self) -> list[bytes]:
        """The frames waiting to enter from the CPU port, oldest first. Quietens `fileno()`."""
        with suppress(OSError):  # ends by BlockingIOError, once all wake-ups are read
            while self._woken.recv(4096):
                pass
        with self.lock:
            frames = list(self._waiting)
            self._waiting.clear()
        return frames

    def on_packet_in(self, receiver: Callable[[Sequence[bytes]], None] | None) -> None:
        """Where frames that leave on the CPU port go; None: nowhere. Called on the data plane's thread."""
        self._packet_in = receiver

    def deliver_to_cpu(self, frames: Sequence[bytes]) -> None:
        """Hand over frames that left on the CPU port. They are dropped while nobody receives them."""
        receiver = self._packet_in
        if receiver is not None and frames:
            receiver(frames)

    def fileno(self) -> int:
        """A descriptor for select: readable when there is something for the data plane."""
        return self._woken.fileno()

    def close(self) -> None:
        """Release the descriptors. The pipeline's state stays readable."""
        self._packet_in = None
        self._woken.close()
        self._waker.close()

    def _wake(self) -> None:
        with suppress(OSError):  # full: already readable; closed: nobody waits
            self._waker.send(b"\0")
