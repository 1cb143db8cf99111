"""Ranks of `lost_ranks.train` that enter a run, and that wait, or are stopped, at a stage of their entry."""

from collections.abc import Callable
from typing import Any

import lost_ranks
from patience import until

from peelsum.torch.member_changes import StateBroadcast
from peelsum.transport.lease import Lease

#: Before the others wait for the rank; when it has a generation; before it gets the state, and after that.
STAGES = ("ready", "admitted", "state", "entered")


def train(_, stage, action, folder, *arguments):
    """Run `lost_ranks.train` with these arguments; make the file `reached` in a folder at a stage.

    action: "wait" there until the file `go on` exists, or "stop" the process until then; or "" for neither.
    """
    reached, go_on = folder / "reached", folder / "go on"

    def reach(at):
        if at != stage or reached.exists():
            return
        reached.touch()
        if action == "wait":
            until(go_on.exists)
        elif action == "stop":
            lost_ranks.stop(go_on)

    def patch(owner, name, before, after):
        original: Callable[..., Any] = getattr(owner, name)

        def wrapped(*positional, **named):
            reach(before)
            result = original(*positional, **named)
            reach(after)
            return result

        setattr(owner, name, wrapped)

    patch(Lease, "enter", "ready", "admitted")
    patch(StateBroadcast, "__call__", "state", "entered")
    return lost_ranks.train(0, *arguments)
