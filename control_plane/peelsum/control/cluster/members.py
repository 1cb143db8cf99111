"""The members of a run: the ranks that hold leases, and what those that are left agree on after a loss.

There is no socket and no clock here: messages are in the clients' inboxes and outboxes, and the time is a
parameter.
"""

from __future__ import annotations

import hmac
import math
import secrets
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from peelsum.control.cluster.requests import ConnectedClient

#: What to do about a rank that was excluded from a run that goes on.
_ENTER_INSTEAD = "let another process enter in its place"
#: What to do about a process whose rank another process has got.
_ENTER_AFTER_LOSS = "start this process again after a loss"


class MemberReport(NamedTuple):
    """What a rank reports after the loss of another."""

    sums: int
    """The number of sums that it has completed."""
    chunk: int
    """The id of the first chunk that it has not submitted, modulo 2**32."""


def latest_chunk(chunks: Sequence[int]) -> int:
    """Return the latest of chunk ids, which are serial numbers of 32 bits (RFC 1982)."""
    return max(chunks, key=lambda chunk: (chunk - chunks[0] + (1 << 31)) % (1 << 32)) % (1 << 32)


class Members:
    """The ranks that sum in a run, by number, each with its connection to the controller.

    Theory of operation. A rank that sends `leave` has finished. If its connection closes before, it is lost.

    | run             | event                               | action                                         |
    |-----------------|-------------------------------------|------------------------------------------------|
    | any             | `leave`                             | remove the rank; keep its connection           |
    | ends on a loss  | `failed`                            | store the reason, for when the rank is lost    |
    | ends on a loss  | a rank is lost                      | notify the others, once for each rank          |
    | survives losses | a rank is lost, or leaves           | begin change k + 1: notify the others          |
    | survives losses | a rank that enters is `ready`       | begin change k + 1: request all ranks' steps   |
    | survives losses | a rank that enters is not `ready`   | let the next process that asks to enter, if no |
    |                 | for longer than patience            | rank is free, be a candidate for it, too       |
    | survives losses | a candidate of several is `ready`   | send the others the reason, and close          |
    | survives losses | `stalled` names silent members      | send them the reason, and close: they are lost |
    | change k        | all members have sent their `step`  | send `before_step`: ranks enter before the next|
    | change k        | `completed` of change k             | store the report                               |
    | change k        | a rank is lost, or leaves           | begin change k + 1; earlier reports are void   |
    | change k        | all members have reported           | `agreed` returns their reports                 |
    | change k        | the deadline passes                 | send the reason to those that have not sent    |
    |                 |                                     | their step or report, and close: they are lost |

    A report has the number of sums that the rank has completed, in an order that is the same on all ranks,
    and the id of the first chunk that it has not submitted. The deadline of a change is `patience_s` after
    the first report, or after the first `waiting`, and not after the notification: ranks receive that only
    in a sum or before a step, and may compute for longer than `patience_s` before.
    """

    def __init__(self, rank_0: ConnectedClient, workers: int, *, survives: bool, patience_s: float) -> None:
        """rank_0: the client that has requested the run. workers: the number of ranks at its start.

        survives: whether the run goes on when ranks are lost. patience_s: seconds that the others wait
        for a rank in a change.
        """
        self.survives = survives
        #: What the ranks that join must present. They have it from rank 0.
        self.token = secrets.token_hex(16)
        self._workers, self._patience_s = workers, patience_s
        self.clients: dict[int, ConnectedClient] = {0: rank_0}
        #: The ranks that have joined so far: none can join twice.
        self._joined = {0}
        #: The ranks that were lost, for those that join later: none does in a run that survives.
        self._lost: list[dict[str, Any]] = []
        #: The error of each rank that has reported one.
        self._failures: dict[int, dict[str, str]] = {}
        #: The number of the last change, and the reports of a change that has not ended; None after its end.
        self.change = 0
        self._reports: dict[int, MemberReport] | None = None
        #: The deadline of this change; infinity before a member waits.
        self._deadline = math.inf
        #: The candidates for each rank that is to enter, and the ranks of which one is ready to sum. Only
        #: that ends others: slow ones would otherwise take the rank from each other in turn for ever.
        self.entering: dict[int, list[ConnectedClient]] = {}
        self._ready: set[int] = set()
        #: When the patience with the last candidate for each rank ends.
        self._ready_by: dict[int, float] = {}
        #: The steps that members have sent since they were asked; None if they were not.
        self._steps: dict[int, int] | None = None
        #: Whether ranks enter in the present change.
        self._admits = False

    def is_token(self, token: str) -> bool:
        """Return whether a token is this run's."""
        return hmac.compare_digest(token.encode(errors="replace"), self.token.encode())

    def join(self, rank: int, client: ConnectedClient) -> str:
        """Make a client a member; return an empty string, or why it cannot be one."""
        if not 0 <= rank < self._workers:
            return f"rank {rank}: the run has ranks 0 to {self._workers - 1}"
        if rank in self._joined:
            return f"rank {rank}: has joined before; start it in a new run"
        if self.change and self.survives:
            return f"rank {rank}: comes too late, as another rank was lost; start it in a new run"
        self._joined.add(rank)
        self.clients[rank] = client
        if self._lost:
            client.outbox.append({"lost": self._lost, "change": self.change})
        return ""

    def enter(self, client: ConnectedClient, now: float) -> int | None:
        """Let a client enter between two steps, once it is ready; return its rank, or None.

        The run must survive losses. The rank is the lowest that is free; else one whose last candidate asked
        longer ago than patience, and is not ready; None if there is none.
        """
        starting = set() if self.change else set(range(self._workers)) - self._joined
        taken = self.clients.keys() | self.entering.keys() | starting
        rank = next((rank for rank in range(self._workers) if rank not in taken), None)
        if rank is None:
            self._read_ready()
            late = (at for at in self.entering if at not in self._ready and now >= self._ready_by[at])
            if (rank := next(late, None)) is None:
                return None
        self.entering.setdefault(rank, []).append(client)
        self._ready_by[rank] = now + self._patience_s
        return rank

    def first(self) -> ConnectedClient | None:
        """Return the member of the lowest rank that is connected; None if there is none."""
        connected = [rank for rank, client in self.clients.items() if not client.closed]
        return self.clients[min(connected)] if connected else None

    def update(self, now: float) -> list[str]:
        """Handle messages, and closed connections; return a text about each rank that was lost."""
        departed_ranks: set[int] = set()
        for rank, client in self.clients.items():
            while client.inbox:
                self._handle(rank, client.inbox.popleft(), departed_ranks, now)
        lost = [
            {"rank": rank, "process": client.request["process"], "host": client.host}
            | self._failures.get(rank, {})
            for rank, client in self.clients.items()
            if client.closed and rank not in departed_ranks  # `leave` may have come just before the end
        ]
        for rank in (*departed_ranks, *(item["rank"] for item in lost)):
            del self.clients[rank]
        if lost or (departed_ranks and self.survives):
            self._begin_change(lost)
        self._update_entering()
        if self._reports is not None and now >= self._deadline:
            heard = self._reports if self._steps is None else self._steps
            waited = f"others have waited for it for {self._patience_s:g} s in a change of the members"
            self._expel(self.clients.keys() - heard.keys(), f"{waited}; {_ENTER_INSTEAD}")
        return [
            f"rank {item['rank']}: process {item['process']} of {item['host']} was lost"
            + (f" after an error: {item['reason']}" if "reason" in item else "")
            for item in lost
        ]

    def agreed(self) -> dict[int, MemberReport] | None:
        """Return the report of each member once all have reported; None until then."""
        if self._reports is None or self._reports.keys() != self.clients.keys() or not self.clients:
            return None
        if self._steps is not None:
            return None
        reports, self._reports = self._reports, None
        return dict(sorted(reports.items()))

    def admit_entering(self) -> list[int]:
        """Make members of the ranks that enter, if this change is for them; return them."""
        if not self._admits:
            return []
        ranks, self._admits = sorted(self._ready), False
        self.clients |= {rank: self.entering.pop(rank)[0] for rank in ranks}
        self._ready = set()
        return ranks

    def _update_entering(self) -> None:
        """Begin a change for ranks that enter, if none goes on; end the first part of such a change."""
        connected = {
            rank: [client for client in clients if not client.closed]
            for rank, clients in self.entering.items()
        }
        self.entering = {rank: clients for rank, clients in connected.items() if clients}
        self._ready &= self.entering.keys()
        self._read_ready()
        if not self.clients:
            self.end("the run that this rank asked to enter has ended; start it again")
        elif self._ready and self._reports is None:
            self.change += 1
            self._reports, self._steps, self._deadline = {}, {}, math.inf
            self.notify({"entering": sorted(self._ready)})
        elif self._steps is not None and self._steps.keys() == self.clients.keys():
            self.notify({"before_step": max(self._steps.values()) + 1})
            self._steps, self._admits, self._deadline = None, True, math.inf

    def _read_ready(self) -> None:
        """Note which candidates have sent `ready`; send away the others for the same rank."""
        for rank, clients in self.entering.items():
            for client in clients:
                is_ready = any(message["call"] == "ready" for message in client.inbox)
                client.inbox.clear()
                if is_ready and not client.closed and rank not in self._ready:
                    self._ready.add(rank)
                    self.entering[rank] = [client]
            for client in clients:
                if client not in self.entering[rank]:
                    client.outbox.append({"end": f"another process was ready sooner; {_ENTER_AFTER_LOSS}"})

    def end(self, reason: str) -> None:
        """Send the reason for the run's end to its members, and to the ranks that wait to enter."""
        for client in (*self.clients.values(), *chain(*self.entering.values())):
            client.outbox.append({"end": reason})
        self.entering, self._ready = {}, set()

    def notify(self, message: Mapping[str, Any]) -> None:
        """Send a message to all members."""
        for client in self.clients.values():
            client.outbox.append({**message, "change": self.change})

    def _handle(self, rank: int, message: dict[str, Any], departed_ranks: set[int], now: float) -> None:
        match message["call"]:
            case "leave":
                departed_ranks.add(rank)
            case "failed" if not self.survives:
                self._failures[rank] = {"reason": message["reason"]}
            case "completed":
                if self._reports is not None and message["change"] == self.change:
                    self._reports[rank] = MemberReport(message["sums"], message["chunk"])
                    self._deadline = min(self._deadline, now + self._patience_s)
            case "step":
                if self._steps is not None and message["change"] == self.change:
                    self._steps[rank] = message["step"]
            case "waiting":
                if self._steps is not None and message["change"] == self.change:
                    self._deadline = min(self._deadline, now + self._patience_s)
            case "stalled" if self.survives:
                silent = {
                    member for member in message["silent"] if type(member) is int
                } & self.clients.keys() - {rank}
                self._expel(
                    silent, f"a sum of rank {rank} made no progress without this rank; {_ENTER_INSTEAD}"
                )

    def _begin_change(self, lost: list[dict[str, Any]]) -> None:
        """Tell all members who was lost, and ask them for reports if the run survives."""
        self.change += 1
        if self.survives:
            self._reports, self._steps, self._admits = {}, None, False
            self._deadline = math.inf
        else:
            self._lost += lost
        self.notify({"lost": lost})

    def _expel(self, ranks: set[int], reason: str) -> None:
        """Close the connections of members; the next `update` finds them lost."""
        for rank in ranks:
            self.clients[rank].outbox.append({"end": reason})
