"""The state that the P4Runtime server and the data plane's loop share.

This is the running pipeline, and the frames on their way between a controller and that pipeline.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from threading import RLock
from typing import Literal, Protocol

from peelsum.softswitch.program.model import Program
from peelsum.softswitch.runtime.queues import Queues
from peelsum.softswitch.runtime.switch import Switch

#: The most frames that may wait for the data plane; `inject` refuses more.
INJECTED_LIMIT = 8192


class SecretPort(Protocol):
    """A port that can have a secret, which its host then must prove."""

    @property
    def has_secret(self) -> bool:
        """Whether the port has a secret."""

    def set_secret(self, secret: bytes) -> None:
        """Replace the secret by these 16 bytes; 16 zero bytes remove it."""


class Device:
    """A device of P4Runtime. It has at most one running pipeline, which `install` replaces.

    The loop of the data plane selects on `fileno()`, which is readable after `inject` or `install`. The loop
    then calls `take_injected()` and reads `switch` again. All methods may be called from any thread.

    queues: the queues of ports that have a rate; None if no port has one.
    ports: the ports to which a controller may send packets; None if they are unknown.
    secret_ports: by number, the UDP ports, which can have secrets; None if the ports are interfaces.
    port_is_up: returns whether frames can leave by a port, for members of action profiles that watch it.
    """

    def __init__(
        self,
        device_id: int = 1,
        *,
        mode: Literal["numba", "python"] = "numba",
        queues: Queues | None = None,
        ports: Collection[int] | None = None,
        secret_ports: Mapping[int, SecretPort] | None = None,
        port_is_up: Callable[[int], bool] = lambda port: True,
    ) -> None:
        self.device_id = device_id
        self.mode = mode
        self.queues = queues
        self.ports = ports
        self.secret_ports = secret_ports
        self.port_is_up = port_is_up
        #: Guards the replacement of the pipeline. A pipeline's state has a lock of its own.
        self.lock = RLock()
        #: The running pipeline; None before the first is installed.
        self.switch: Switch | None = None
        self._injected: deque[bytes] = deque()
        self._packet_in: Callable[[Sequence[bytes]], None] | None = None
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)

    def build(self, program: Program) -> Switch:
        """Return a switch for the program in its initial state, without installing it."""
        return Switch(program, mode=self.mode, queues=self.queues)

    def install(self, switch: Switch) -> None:
        """Replace the running pipeline, and drop the frames that wait for the old one."""
        with self.lock:
            self.switch = switch
            self._injected.clear()
        self._wake()

    def inject(self, frame: bytes) -> bool:
        """Queue a frame that enters at the CPU port; return False if the queue was full and it is dropped."""
        with self.lock:
            if len(self._injected) >= INJECTED_LIMIT:
                return False
            self._injected.append(frame)
        self._wake()
        return True

    def take_injected(self) -> list[bytes]:
        """Return the frames waiting to enter at the CPU port, oldest first, and clear `fileno()`."""
        with suppress(OSError):  # BlockingIOError once all wake-ups are read
            while self._wake_reader.recv(4096):
                pass
        with self.lock:
            frames = list(self._injected)
            self._injected.clear()
        return frames

    def on_packet_in(self, receiver: Callable[[Sequence[bytes]], None] | None) -> None:
        """Set the receiver of frames that leave on the CPU port. The data plane's thread calls it."""
        self._packet_in = receiver

    def deliver_to_cpu(self, frames: Sequence[bytes]) -> None:
        """Pass on frames that left on the CPU port. They are dropped if there is no receiver."""
        receiver = self._packet_in
        if receiver is not None and frames:
            receiver(frames)

    def fileno(self) -> int:
        """Return a descriptor for select that is readable when the data plane has something to do."""
        return self._wake_reader.fileno()

    def close(self) -> None:
        """Close the descriptors. The pipeline's state stays readable."""
        self._packet_in = None
        self._wake_reader.close()
        self._wake_writer.close()

    def _wake(self) -> None:
        with suppress(OSError):  # the buffer is full, so `fileno()` is readable; or the device is closed
            self._wake_writer.send(b"\0")
