"""Signals that come at a bad moment end the switch all the same."""

import subprocess
import sys

#: A signal that another thread takes does not interrupt the main thread's wait. Nor does one just before it.
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
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[1, 2] -1", "")
