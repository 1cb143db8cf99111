"""Clusters in this process: descriptions of jobs at random, and what switches have and should have."""

from contextlib import ExitStack, contextmanager
from threading import Event, Thread

from device_state import rows

from peelsum.control.cluster import Cluster, RequestServer, Store, listening_socket, serve_requests
from peelsum.control.cluster.cluster import parse_cluster
from peelsum.control.description import parse_description
from peelsum.control.tables import salt

ONE = """
[job]
id = {job_id}
workers = {count}
window = 64
[switch]
p4runtime = "{address}"
pipeline_lanes = 32
[ports]
server = {up}
workers = {ports}
"""
RACKS = """
[job]
id = {job_id}
workers = {count}
window = 64
[spine]
p4runtime = "{spine}"
pipeline_lanes = 32
server = 30
"""
RACK = """
[[racks]]
p4runtime = "{address}"
pipeline_lanes = 32
uplink = 30
spine_port = {spine_port}
workers = {ports}
"""


def cluster_text(addresses, poll_s=0.05):
    """Return the description of a cluster of switches with 32 lanes."""
    text = f'[controller]\nstate = "cluster.sqlite"\npoll_s = {poll_s}\n'
    switch = '[[switches]]\np4runtime = "{}"\npipeline_lanes = 32\n'
    return text + "".join(map(switch.format, addresses))


def job_text(job_id, address, ports=(4, 5), up=9):
    """Return the description of a job on one switch."""
    return ONE.format(job_id=job_id, count=len(ports), address=address, up=up, ports=list(ports))


def random_job(rng, job_id, addresses):
    """Return a job's description: on one switch, or on the first as spine with the others as racks."""
    if len(addresses) < 3 or rng.random() < 0.7:
        ports = rng.sample(range(1, 29), rng.randint(2, 5))
        return job_text(job_id, rng.choice(addresses), ports, up=29)
    racks = [rng.sample(range(1, 29), rng.randint(1, 3)) for _ in addresses[1:]]
    text = RACKS.format(job_id=job_id, count=sum(map(len, racks)), spine=addresses[0])
    places = zip(addresses[1:], racks, strict=True)
    for number, (address, ports) in enumerate(places, 1):
        text += RACK.format(address=address, spine_port=number, ports=ports)
    return text


def expected(address, jobs):
    """Return what a switch should have. jobs: description and generation by number."""
    expected_rows = {"jobs": [], "members": [], "return_paths": [], "groups": {}}
    for job_id, (text, generation) in jobs.items():
        for plan in parse_description(text).plans():
            if plan.switch.p4runtime != address:
                continue
            mask = sum(1 << place for place in range(len(plan.members)))
            expected_rows["jobs"].append(((job_id,), (generation, salt(job_id), mask, plan.up_port, job_id)))
            expected_rows["members"].append(((job_id, plan.up_port), ()))
            for place, member in enumerate(plan.members):
                expected_rows["members"].append(((job_id, member.port), (1 << place, member.first_worker)))
            for worker, port in plan.return_ports.items():
                expected_rows["return_paths"].append(((job_id, worker), (port,)))
            expected_rows["groups"][job_id] = sorted(member.port for member in plan.members)
    return {name: sorted(each) if isinstance(each, list) else each for name, each in expected_rows.items()}


def actual(device):
    """Return what a switch has: open jobs only, and everything of their other tables."""
    tables = {name: rows(device, name) for name in ("members", "return_paths")}
    opened = [(keys, params) for keys, params in rows(device, "jobs") if params[2]]
    assert not rows(device, "hosts")
    groups = device.switch.groups
    ports = {group: sorted(port for port, _ in groups.get(group)) for group in groups.ids()}
    return {"jobs": opened, **tables, "groups": ports}


def have(switches, jobs):
    """Return whether switches have these jobs (description and generation by number), and nothing else."""
    return all(actual(switch.device) == expected(switch.address, jobs) for switch in switches)


@contextmanager
def answering(cluster, identity=None):
    """Yield the address where a cluster's controller responds to requests, in a thread."""
    calls = ("admit", "evict", "list")
    with (
        listening_socket(("127.0.0.1", 0), identity) as socket,
        RequestServer(socket, "controller", calls, identity=identity) as requests,
    ):
        ended = Event()
        arguments = requests, cluster.respond, lambda: None, ended.is_set
        thread = Thread(target=serve_requests, args=arguments, kwargs={"every_s": 0.05})
        thread.start()
        yield f"127.0.0.1:{socket.getsockname()[1]}"
        ended.set()
        thread.join()


class Controllers:
    """Starts controllers of the same switches over the same file; each is polled by hand."""

    def __init__(self, folder, addresses, **options):
        self._path, self.addresses = folder / "cluster.sqlite", addresses
        self._options, self._stack = options, ExitStack()

    def start(self, addresses=None, **options):
        """Return a controller that has not polled yet."""
        store = Store(self._path)
        self._stack.callback(store.close)
        described = parse_cluster(cluster_text(addresses or self.addresses))
        cluster = Cluster(described, store, **{**self._options, **options})
        self._stack.callback(cluster.close)
        return cluster

    def close(self):
        self._stack.close()
