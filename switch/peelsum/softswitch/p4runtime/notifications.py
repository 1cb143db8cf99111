"""Sends what the data plane has to tell the controller: digests, expired entries, and lines of the log.

Generated code writes digests, hits and messages to memory. A thread polls it every `INTERVAL_S`, for
programs that have any of these. For programs with groups of actions, it also looks which ports are up.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from threading import Event, Thread

from finsy.proto import p4r

from peelsum.softswitch.p4runtime.pipeline import InstalledPipeline
from peelsum.softswitch.program.model import Program

#: Seconds between two polls, as P4Runtime's specification suggests for idle time-outs.
INTERVAL_S = 0.01
#: Polls after which the states of ports are looked at again: as often as BMv2 does.
_POLLS_PER_CHECK = 20


def poll_regularly(
    program: Program, poll: Callable[[], None], check_ports: Callable[[], None] | None = None
) -> Callable[[], None]:
    """Call `poll` in a thread, if the program has notifications; return a function that ends the thread.

    `check_ports` is called, too, now and then, if the program has groups of actions.
    """
    stopped = Event()
    if not any(profile.selector for profile in program.profiles.values()):
        check_ports = None

    def run() -> None:
        polls = count()
        while not stopped.wait(INTERVAL_S):
            poll()
            if check_ports is not None and next(polls) % _POLLS_PER_CHECK == 0:
                check_ports()

    idle_timeouts = any(table.idle_timeout for table in program.tables.values())
    if check_ports is not None or program.messages[1:] or idle_timeouts:
        Thread(target=run, daemon=True).start()
    return stopped.set


def notify(pipeline: InstalledPipeline, send: Callable[[p4r.StreamMessageResponse], bool]) -> None:
    """Send what there is now. send: sends a message to the primary; returns False if there is none."""
    pipeline.switch.take_messages()
    digests, tables = pipeline.entities.digests, pipeline.entities.tables
    for digest_list in digests.lists():
        if not send(p4r.StreamMessageResponse(digest=digest_list)):  # nobody will acknowledge it
            digests.acknowledge(
                p4r.DigestListAck(digest_id=digest_list.digest_id, list_id=digest_list.list_id)
            )
    if (notification := tables.expired()) is not None:
        send(p4r.StreamMessageResponse(idle_timeout_notification=notification))
