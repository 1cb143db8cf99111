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

#: Seconds between two polls, as P4Runtime's specification suggests for idle time-outs.
INTERVAL_S = 0.01
#: Polls after which the states of ports are looked at again: as often as BMv2 does.
_POLLS_PER_CHECK = 20


class Notifier:
    """Sends the notifications of one pipeline until `stop`."""

    def __init__(
        self, pipeline: InstalledPipeline, send: Callable[[p4r.StreamMessageResponse], bool]
    ) -> None:
        """send: sends a message to the primary; returns False if there is none."""
        self._pipeline, self._send, self._stopped = pipeline, send, Event()
        program = pipeline.switch.program
        has_groups = any(profile.has_groups for profile in pipeline.switch.profiles.values())
        if has_groups or program.messages[1:] or any(table.idle_timeout for table in program.tables.values()):
            Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """End the thread after its current poll."""
        self._stopped.set()

    def _run(self) -> None:
        polls = count()
        while not self._stopped.wait(INTERVAL_S):
            self.poll()
            if next(polls) % _POLLS_PER_CHECK == 0:
                self._pipeline.check_ports()

    def poll(self) -> None:
        """Send what there is now."""
        switch, entities = self._pipeline.switch, self._pipeline.entities
        switch.take_messages()
        for digest_list in entities.digests.lists():
            if not self._send(p4r.StreamMessageResponse(digest=digest_list)):  # nobody will acknowledge it
                ack = p4r.DigestListAck(digest_id=digest_list.digest_id, list_id=digest_list.list_id)
                entities.digests.acknowledge(ack)
        notification = entities.tables.expired()
        if notification is not None:
            self._send(p4r.StreamMessageResponse(idle_timeout_notification=notification))
