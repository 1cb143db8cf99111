"""A softswitch in this process, in its Python mode, that can be restarted where it was."""

from contextlib import ExitStack

import verified_once  # noqa: F401 (replaces what verifies programs)
from device_state import forwarding, rows
from free_ports import KeptPort

from peelsum.softswitch.p4runtime import serve
from peelsum.softswitch.runtime.device import Device

TABLES = ("jobs", "members", "return_paths")


class RestartableSwitch:
    """A softswitch that loses everything when it stops, and always starts at the same address."""

    def __init__(self):
        self._port = KeptPort()
        self.address = self._port.address
        self.start()

    def start(self):
        self.device = Device(mode="python")
        self.running = ExitStack()
        self.running.callback(self.device.close)
        self.running.enter_context(forwarding([self.device]))
        server = serve(self.device, self.address)
        self.running.callback(server.stop)

    def stop(self):
        self.running.close()

    def restart(self):
        self.stop()
        self.start()

    def close(self):
        """Stop, and do not start again."""
        self.stop()
        self._port.close()

    def holding(self):
        return [rows(self.device, name) for name in TABLES] + [self.device.switch.groups.get(3)]
