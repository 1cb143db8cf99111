"""Start aggregation servers, one of which can be loaded ahead, so that a start does not wait for imports."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from peelsum.processes import Child


class ServerStarter:
    """Starts aggregation servers as child processes; after `load_ahead`, the next one is always loaded."""

    def __init__(self) -> None:
        #: For how many lanes servers are loaded ahead; 0 if none is.
        self._lanes = 0
        self._loaded: Child | None = None

    def load_ahead(self, lanes: int) -> None:
        """Have a process load what a server of so many lanes needs, now and after each start."""
        self._lanes = lanes
        self._loaded = Child("server", [sys.executable, "-m", "peelsum.cli.ahead", str(lanes)])

    def start(self, *arguments: str, environment: Mapping[str, str]) -> Child:
        """Start `peelsum` with these arguments, in the process that was loaded ahead if there is one.

        Raises ProcessError.
        """
        child, self._loaded = self._loaded, None
        if child is None:
            return Child.start_ready("server", *arguments, environment=environment)[0]
        try:
            child.send(arguments=[*arguments, "--json", "--child"], environment=dict(environment))
            child.ready()
        except BaseException:
            child.stop()
            raise
        finally:
            self.load_ahead(self._lanes)
        return child

    def close(self) -> None:
        """End the process that was loaded ahead, if there is one."""
        if self._loaded is not None:
            self._loaded.stop()
