"""A switch and a `peelsum job serve` of a job there, each a process, for tests."""

import json
from contextlib import ExitStack, closing, contextmanager

import psutil
from free_ports import KeptPort, free_udp_base

from peelsum.control import open_session
from peelsum.control.tables import read_jobs
from peelsum.processes import Child
from peelsum.transport.lease import Lease

#: How long a controller, whose server may compile, may take, in seconds.
ASK_S = 600.0


def described(switch, workers=2, *, job_id=1, lanes=32, first=1, spare=0, timeout_s=200.0):
    """A description of a job at a `Switch`: workers from port `first` on, the server, spare ports."""
    server = first + workers
    return f"""
[job]
id = {job_id}
workers = {workers}
timeout_s = {timeout_s}
[switch]
p4runtime = "{switch.p4runtime}"
pipeline_lanes = {lanes}
[ports]
workers = {list(range(first, server))}
server = {server}
spare = {list(range(server + 1, server + 1 + spare))}
"""


def described_racks(*switches, workers=((1,), (2,)), timeout_s=30.0):
    """A description of a job at a spine and racks, given by address, with workers at these ports."""
    spine, *racks = switches
    text = f"""
[job]
id = 1
workers = {sum(map(len, workers))}
timeout_s = {timeout_s}
[spine]
server = 3
p4runtime = "{spine}"
pipeline_lanes = 32
"""
    for number, (rack, ports) in enumerate(zip(racks, workers, strict=True), 1):
        text += f"""
[[racks]]
uplink = 3
spine_port = {number}
workers = {list(ports)}
p4runtime = "{rack}"
pipeline_lanes = 32
"""
    return text


class Switch:
    """A switch process of some ports, which can be restarted where it was. `more` are options."""

    def __init__(self, *more, ports=3):
        self.base, self._port, self._more, self._ports = free_udp_base(ports), KeptPort(), more, ports
        self.p4runtime = self._port.address
        self.start()

    def start(self, ports=None):
        ports = ports or self._ports
        options = ("--ports", str(ports), "--udp-base", str(self.base), "--p4runtime", self.p4runtime)
        self._child = Child.peelsum("switch", "switch", "run", *options, *self._more, "--json", "--child")
        self._child.ready()

    @property
    def pid(self):
        return self._child.pid

    def stop(self):
        self._child.stop()

    def close(self):
        """Stop, and do not start again."""
        self.stop()
        self._port.close()

    @property
    def jobs(self):
        """Number and generation of each."""
        with open_session(self.p4runtime) as session:
            return [(job.job_id, job.generation) for job in read_jobs(session)]


class Controlling:
    """A `peelsum job serve` of a description, over switches in the description's order."""

    def __init__(self, folder, described, *switches):
        description = folder / "job.toml"
        description.write_text(described)
        options = [word for one in switches for word in ("--udp", f"127.0.0.1:{one.base}")]
        options += ["--listen", "127.0.0.1:0", "--json", "--child"]
        self.child = Child.peelsum("controller", "job", "serve", str(description), *options)
        said = self.child.ready()
        self.address = (said["host"], said["port"])
        #: What `PEELSUM_JOB` holds.
        self.job = "//{host}:{port}".format_map(said)

    def close(self):
        self.child.stop()

    @contextmanager
    def asked(self):
        """Yield the response to a request, whose connection stays open."""
        with closing(Lease(self.address, ASK_S)) as lease:
            yield json.loads(lease.response)

    def wait_until_it_says(self, text):
        while text not in self.child.next_message(ASK_S)["event"]:
            pass

    @property
    def started(self):
        """Its child processes, oldest first: the server, and one that is loaded for when that is lost."""
        return psutil.Process(self.child.pid).children(recursive=True)


@contextmanager
def served_to(workers, folder, *more, spare=12, timeout_s=200.0):
    """Yield a switch, the controller of a job of so many workers there, and the ranks' environment.

    spare: ports for further groups. more: the switch's options.
    """
    with closing(Switch(*more, ports=workers + 1 + spare)) as switch:
        job = described(switch, workers, job_id=255, spare=spare, timeout_s=timeout_s)
        with closing(Controlling(folder, job, switch)) as controller:
            yield switch, controller, {"PEELSUM_JOB": controller.job}


def served_to_four(folder, *more, **options):
    """See `served_to`."""
    return served_to(4, folder, *more, **options)


@contextmanager
def served_over_racks(folder):
    """Yield the three switches of a job of two racks of two ranks, its controller, and the environment."""
    with ExitStack() as stack:
        switches = [stack.enter_context(closing(Switch()))]
        for port in (1, 2):
            join = f"3@127.0.0.1:{switches[0].base + port}"
            switches.append(stack.enter_context(closing(Switch("--join", join))))
        addresses = (switch.p4runtime for switch in switches)
        description = described_racks(*addresses, workers=((1, 2), (1, 2)), timeout_s=900.0)
        controller = stack.enter_context(closing(Controlling(folder, description, *switches)))
        yield switches, controller, {"PEELSUM_JOB": controller.job}
