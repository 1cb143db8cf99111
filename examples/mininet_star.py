"""A star in Mininet, with the softswitch or BMv2 as switch class, whose hosts compute exact sums.

Mininet belongs to the system's Python (Debian: apt-get install mininet), peelsum to one of its own:

    sudo /usr/bin/python3 examples/mininet_star.py --python .venv/bin/python [--switch bmv2] [--cli]
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mininet.cli import CLI
from mininet.net import Mininet
from mininet.node import Switch
from mininet.topo import Topo

SWITCH_IP, SWITCH_MAC = "10.0.0.254", "02:00:00:00:ff:fe"
CPU_PORT = 255
SUM = Path(__file__).with_name("sum.py")


class ProcessSwitch(Switch):
    """A switch that runs as a process on Mininet's interfaces. Subclasses define `command`."""

    python = sys.executable
    process = None

    def start(self, controllers):
        """Start the process; P4Runtime then listens at `self.p4runtime`."""
        interfaces = {port: intf.name for port, intf in self.intfs.items() if port}
        for name in interfaces.values():
            disable_offloads(self, self.python, name)
        port = free_port()
        self.p4runtime = f"127.0.0.1:{port}"
        self.process = subprocess.Popen(
            self.command(interfaces), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        await_listener(self.process, port)

    def stop(self, *args, **kwargs):
        """End the process, then stop Mininet's part."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process.stdin.close()
        super().stop(*args, **kwargs)


class SoftSwitch(ProcessSwitch):
    """The softswitch on raw sockets."""

    def command(self, interfaces):
        """Return the command; `--child` ends it with its standard input, so it cannot outlive this script."""
        options = [
            option for port, name in interfaces.items() for option in ("--interface", f"{port}@{name}")
        ]
        # Not by AF_XDP, which passes by the rates and delays of Mininet's links.
        options += ["--ports-by", "packet", "--p4runtime", self.p4runtime, "--child"]
        return [self.python, "-m", "peelsum.cli", "switch", "run", *options]


class Bmv2Switch(ProcessSwitch):
    """BMv2's simple_switch_grpc."""

    def command(self, interfaces):
        """Return the command, without a pipeline: the controller loads it."""
        options = [option for port, name in interfaces.items() for option in ("-i", f"{port}@{name}")]
        options += ["--no-p4", "--device-id", "1", "--log-level", "off"]
        grpc = ["--grpc-server-addr", self.p4runtime, "--cpu-port", str(CPU_PORT)]
        return ["simple_switch_grpc", *options, "--", *grpc]


class Star(Topo):
    """One switch, `workers` hosts and the aggregation server's host at ports 1 and up."""

    def build(self, workers):
        """Build the star; Mininet calls this."""
        switch = self.addSwitch("s1")
        for port in range(1, workers + 2):
            mac = f"02:00:00:00:00:{port:02x}"
            self.addLink(self.addHost(f"h{port}", ip=f"10.0.0.{port}/24", mac=mac), switch, port2=port)


def disable_offloads(node, python, interface):
    """Disable offloads, whose merged packets and missing checksums a switch process could not handle."""
    code = f'from peelsum.softswitch.ports.interfaces import without_offloads as o; o("{interface}")'
    node.cmd(python, "-c", f"'{code}'")


def free_port():
    """Return a free TCP port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def await_listener(process, port):
    """Wait until the process listens on the port; raise SystemExit if it ended first."""
    while process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise SystemExit(f"switch: ended with status {process.returncode} before it listened")


def description(net, p4runtime, window):
    """Return the job's description for `peelsum job admit`."""
    *workers, server = range(1, len(net.hosts) + 1)
    text = f"[job]\nid = 1\nworkers = {len(workers)}\nwindow = {window}\n"
    text += f"[ports]\nserver = {server}\nworkers = {workers}\n"
    text += f'[switch]\np4runtime = "{p4runtime}"\naddress = {{ mac = "{SWITCH_MAC}", ip = "{SWITCH_IP}" }}\n'
    behind = ", ".join(f'"{host.MAC()}" = {port}' for port, host in enumerate(net.hosts, 1))
    text += f"bridge = {{ {behind} }}\n"
    for port, host in enumerate(net.hosts, 1):
        text += f'[hosts.{port}]\nmac = "{host.MAC()}"\nip = "{host.IP()}"\n'
    return text


@contextlib.contextmanager
def job(net, python, window):
    """Admit the job and start its server; yield the admission and the switch's UDP port."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file, contextlib.ExitStack() as stack:
        file.write(description(net, net.switches[0].p4runtime, window))
        file.flush()
        peelsum = [python, "-m", "peelsum.cli"]
        admit = [*peelsum, "job", "admit", file.name, "--hold", "--json", "--child"]
        admission = json.loads(started(stack, subprocess.Popen, admit))
        command = [python, "-c", "from peelsum.wire import UDP_PORT; print(UDP_PORT)"]
        udp_port = int(subprocess.check_output(command))
        serve = [*peelsum, "server", "run", "--switch", f"{SWITCH_IP}:{udp_port}"]
        serve += ["--ethernet", "--json", "--child"]
        # Not as an argument, which every user of the machine can read: it has the ports' secrets.
        environment = {**os.environ, "PEELSUM_ADMISSION": json.dumps(admission)}
        started(stack, net.hosts[-1].popen, serve, env=environment)
        yield admission, udp_port


def started(stack, popen, command, **options):
    """Start a command, which ends with the stack; return the line of its output that says it is ready."""
    process = popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None, **options)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    for line in process.stdout:
        if "working" not in json.loads(line):  # it tells its parent what takes long
            return line
    raise SystemExit(f"{' '.join(command[2:5])}: ended before it was ready")


def work(net, python, window):
    """Run all workers, which check their sums; return whether all sums are exact."""
    with job(net, python, window) as (admission, udp_port):
        workers = []
        for worker_id, host in enumerate(net.hosts[:-1]):
            seat = {
                "worker_id": worker_id,
                "switch_host": SWITCH_IP,
                "switch_port": udp_port,
                "admission": admission,
                "wire": "ethernet",
            }
            environment = {**os.environ, "PEELSUM_SEAT": json.dumps(seat)}
            workers.append(host.popen([python, str(SUM)], env=environment, stdout=None, stderr=None))
        statuses = [worker.wait() for worker in workers]
        return not any(statuses)


def main():
    """Build the network, sum, and remove the network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--switch", choices=["softswitch", "bmv2"], default="softswitch")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--python", required=True, help="the Python that has peelsum")
    parser.add_argument(
        "--cli", action="store_true", help="open Mininet's prompt after the sum; pingall works there"
    )
    options = parser.parse_args()
    ProcessSwitch.python = str(Path(options.python).absolute())
    # Chunks in flight: BMv2's queues hold 64 packets a port, and drop more.
    switch, window = (SoftSwitch, 512) if options.switch == "softswitch" else (Bmv2Switch, 64)
    net = Mininet(Star(workers=options.workers), switch=switch, controller=None)
    try:
        net.start()
        for host in net.hosts:
            disable_offloads(host, ProcessSwitch.python, host.defaultIntf().name)
            host.setARP(SWITCH_IP, SWITCH_MAC)
        exact = work(net, ProcessSwitch.python, window)
        if options.cli:
            CLI(net)
    finally:
        net.stop()
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
