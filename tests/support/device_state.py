"""A softswitch device's tables as plain values, and its data plane, one packet at a time or in a thread."""

import select
import socket
from contextlib import contextmanager
from threading import Thread

from frames import frame, payload_of
from p4runtime_client import process

from peelsum.softswitch import Frames


def tables(device):
    """The switch's tables by their short names."""
    return {name.rsplit(".", 1)[-1]: table for name, table in device.switch.tables.items()}


def rows(device, name):
    """A table's rows as (keys, parameters), sorted."""
    return sorted((entry.keys, entry.params) for entry in tables(device)[name].entries())


def forward(device, port, payload, now_us=0):
    """One packet in by a port; (port, payload) of all that leave."""
    sent = device.switch.process(Frames.of([(port, frame(payload))]), now_us).pairs()
    return [(out_port, payload_of(raw)) for out_port, raw in sent]


@contextmanager
def forwarding(devices, now_us=0):
    """A thread that forwards what controllers inject, at one time, while the context lasts."""
    ours, theirs = socket.socketpair()

    def run():
        while theirs not in (ready := select.select([*devices, theirs], [], [])[0]):
            for device in ready:
                if frames := device.take_injected():
                    process(device, frames, now_us)

    thread = Thread(target=run)
    thread.start()
    yield
    ours.close()
    thread.join()
    theirs.close()
