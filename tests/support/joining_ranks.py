"""Ranks of `lost_ranks.train` that enter a run, and tell at which stage of their entry they are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lost_ranks
from patience import until

from peelsum.torch.member_changes import StateBroadcast
from peelsum.transport.lease import Lease

#: Before the others wait for the rank; when it has a generation, and before and after it gets the state.
STAGES = ("ready", "admitted", "state", "entered")


def train(_: int, stage: str, folder: Path, waits: bool, *arguments: Any) -> Any:
    """Run `lost_ranks.train` with these arguments; make the file `reached` in a folder at a stage.

    waits: whether to wait there for the file `goes on`.
    """

    def reach(at: str) -> None:
        if at == stage:
            (folder / "reached").touch()
            if waits:
                until((folder / "goes on").exists)

    def around(owner: Any, name: str, before: str | None, after: str | None) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def wrapped(*positional: Any, **named: Any) -> Any:
            reach(before or "")
            result = original(*positional, **named)
            reach(after or "")
            return result

        setattr(owner, name, wrapped)

    around(Lease, "enter", "ready", "admitted")
    around(StateBroadcast, "__call__", "state", "entered")
    return lost_ranks.train(0, *arguments)
