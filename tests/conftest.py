"""What all folders share: fixtures that are made once, signals as a terminal has them, the order of tests."""

import gc
import signal

from forked_children import forked_children
from free_ports import kept_port
from hypothesis import HealthCheck, settings
from named_pipes import named_pipe
from rig_fixtures import frame_rig, made_rigs, rig
from softswitch_server import device, server
from suite_order import pytest_collection_modifyitems

__all__ = [
    "device",
    "forked_children",
    "frame_rig",
    "kept_port",
    "made_rigs",
    "named_pipe",
    "pytest_collection_modifyitems",
    "rig",
    "server",
]

# A shell that runs the tests in its background has them ignore these, and so would every process they start.
for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, default)

# A slow example is not a failure: the machine may be busy.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

# Collected tests, and torch, stay to the end. To find no garbage among them takes the collector seconds.
gc.disable()


def pytest_collection_finish(session):
    gc.freeze()
    gc.enable()
