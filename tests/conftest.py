"""Fixtures that several folders use, made once for all of them."""

import signal

from rig_fixtures import frame_rig, made_rigs, rig

__all__ = ["frame_rig", "made_rigs", "rig"]

# A shell that runs the tests in its background has them ignore Ctrl-C, and so would every process they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
