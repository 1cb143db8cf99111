"""A killed process leaves its lease and its ports, even while a child that it forked lives."""

import json
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest
from patience import PATIENCE_S

from peelsum.control.cluster import RequestServer

#: A worker that holds all of them, and forks a child as a data loader does. Both end with the input.
WORKER = """
import json, os, sys
from peelsum.transport import link
from peelsum.transport.lease import Lease
link.UDP_PORT = 0  # any
lease = Lease(("127.0.0.1", int(sys.argv[1])), 300.0)
port = link.PortLink(("127.0.0.1", 9), 48, hello_s=1.0, wire="ethernet")
addresses = {"port": port.socket.address}
try:
    from peelsum.metrics import PARTS, MetricsServer
    metrics = MetricsServer(("127.0.0.1", 0), PARTS["switch"], dict)
    addresses["metrics"] = ("127.0.0.1", int(metrics.url.rpartition(":")[2].partition("/")[0]))
except ModuleNotFoundError:  # prometheus_client is an extra
    pass
if os.fork() == 0:
    lease.close()
    print(json.dumps(addresses), flush=True)
os.read(0, 1)
os._exit(0)
"""

#: A process that keeps an error, whose traceback refers to a file that was closed. Its child prints which of
#: the open sockets it has a copy of. The order in which they are replaced is arbitrary, so there are many.
INTERRUPTED = """
import os, socket
from peelsum.forks import close_in_forked_children
sockets = [socket.socket() for _ in range(64)]
for opened in sockets:
    close_in_forked_children(opened)
def interrupted():
    with open(os.devnull) as file:
        close_in_forked_children(file)
        raise KeyboardInterrupt
try:
    interrupted()
except KeyboardInterrupt as error:
    kept = error
if (child := os.fork()) == 0:
    null = os.stat(os.devnull)
    print([i for i, one in enumerate(sockets) if not os.path.samestat(os.fstat(one.fileno()), null)])
else:
    os.waitpid(child, 0)
"""


class Killed:
    """A worker that was killed, whose child lives."""

    def __init__(self, open_):
        listening = open_.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.requests = open_.enter_context(RequestServer(listening, "job 1"))
        address = str(listening.getsockname()[1])
        worker = open_.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", WORKER, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        )
        while not self.requests.next_client(0.0, PATIENCE_S):
            pass
        self.requests.respond({"admission": {}})
        self.addresses = json.loads(worker.stdout.readline())
        self.requests.next_client(0.0, 0.0)
        self.holder_before = self.requests.holder
        worker.send_signal(signal.SIGKILL)
        worker.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def killed():
    with ExitStack() as open_:
        yield Killed(open_)


def test_the_lease_ends_with_its_holder_and_not_before(killed):
    """A child that closes its copy of the lease does not end it."""
    assert killed.holder_before is not None
    killed.requests.next_client(0.0, PATIENCE_S)
    assert killed.requests.holder is None


@pytest.mark.parametrize(("name", "kind"), [("port", socket.SOCK_DGRAM), ("metrics", socket.SOCK_STREAM)])
def test_its_ports_are_free(killed, name, kind):
    if name not in killed.addresses:
        pytest.skip("prometheus_client is not installed")
    with socket.socket(socket.AF_INET, kind) as again:
        again.bind(tuple(killed.addresses[name]))


def test_a_closed_file_that_an_error_refers_to_does_not_keep_the_others_open():
    run = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("[]\n", "")
