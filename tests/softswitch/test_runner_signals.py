"""Signals end the switch even if they arrive at a bad moment."""

import subprocess
import sys

from patience import PATIENCE_S

#: The main thread's wait is not interrupted by a signal to another thread, nor by one just before the wait.
SCRIPT = """
import signal, sys, threading, time
from peelsum.softswitch.process import run

def signal_once_it_waits(main):
    while sys._current_frames()[main].f_code.co_name != "select":
        time.sleep(0.01)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

def announce(listening):
    main = threading.get_ident()
    threading.Thread(target=signal_once_it_waits, args=(main,)).start()

counts = run(2, grpc_address="127.0.0.1:0", announce=announce)
print(sorted(counts.ports), signal.set_wakeup_fd(-1))
"""


def test_a_signal_that_interrupts_nothing_is_noticed():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[1, 2] -1", "")
