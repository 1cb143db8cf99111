"""Tofino's software model as a rig: the model's own test harness, which loads the compiled program.

The harness has no drivers. It reads commands for table entries and packets. What it has no command for
(multicast groups, the age limit, the queue depth that marks) is written into the chip's registers and
memories. Its clock advances by 8 ns with each packet, and by nothing else.
"""

import json
import re
import shutil
import struct
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

from frames import frame, payload_of
from rigs import TableRig

from peelsum.pipelines.tofino import ASSEMBLER, COMPILER, compile_for, fingerprint
from peelsum.wire import CPU_PORT, TOFINO_LANES, Verdict

BUILT = Path(__file__).parents[2] / "build" / "tofino-model"
#: Keys and parameters that are device ports.
PORT_FIELDS = {"ingress_port", "egress_port", "up_port", "port"}
#: Kinds of nodes in the memory of the packet replication engine.
_TREE_END, _PORTS = 3, 9


DEVICES = ("tofino", "tofino2")
#: Where each device has what the harness cannot write. Addresses are in bytes, in the pipe that is used.
PLACES = {
    "harness": ("tofino_test_harness", "jbay_test_harness"),
    "pipe": (1, 0),  # that of the processor's port, so that resets reach the slots
    "cpu_port": (192, 0),
    "pipe_registers": (0x2800000, 0x4000000),
    "rams": (0, 0x60000),  # of a stage's registers
    "alus": (0x10800, 0x13000),  # of a stage's rams
    "alu_bytes": (0x200, 0x400),
    "alu_constants": (0x100, 0x210),
    "miss_immediates": (0x1C700, 0x1FD40),  # of a stage's rams
    "group_pipes": (0x7F0000, 0xD00000),  # of a pipe's registers: the pipes of each multicast group
    "group_pipes_bits": (4, 5),
    "tree_pipes": (0x620040, 0xCA0040),
    "trees": (0x61000000000, 0x67004000000),
    "group_trees": (0x61002000000, 0x66000000000),
    # What a driver writes to bring the processor's port up: register of the pipe, value.
    "processor": ((0x73D018, 1 << 16 | 1 << 1), None),
}
CHIPS = {
    device: SimpleNamespace(**dict(zip(PLACES, column, strict=True)))
    for device, column in zip(DEVICES, zip(*PLACES.values(), strict=True), strict=True)
}


def why_missing(device):
    """Return why the model cannot run a device's program here, or None."""
    for tool in (CHIPS[device].harness, COMPILER, ASSEMBLER):
        if shutil.which(tool) is None:
            return f"{tool} is not on PATH: see the Tofino page"
    return None


def compiled(device):
    """Return the folder of the compiled program. It is compiled once for each state of the sources."""
    folder = BUILT / f"{device}-{fingerprint(TOFINO_LANES[device])}"
    if not folder.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=BUILT))
        compile_for(device, made)
        made.replace(folder)
    return folder / "pipe"


class TofinoModelRig(TableRig):
    """One harness at a time; each `fresh()` starts another."""

    #: The frame check sequence, which the parser can read.
    trailer_bytes = 4

    def __init__(self, device, folder):
        self.lanes, self._chip = TOFINO_LANES[device], CHIPS[device]
        self._binary = compiled(device) / f"{device}.bin"
        self._context = self._binary.with_name("context.json")
        tables = json.loads(self._context.read_text())["tables"]
        self._tables = {t["name"].rsplit(".", 1)[-1]: t for t in tables if t["table_type"] == "match"}
        (self._owner,) = [t for t in tables if t["name"].endswith("owner.owner")]
        self.slots = self._owner["size"]
        self._folder, self._process, self._sent = folder, None, None

    # -- the harness -----------------------------------------------------------------------------------

    def fresh(self):
        self.close()
        self._sent = self._folder / "sent.txt"
        self._sent.write_bytes(b"")
        command = [self._chip.harness, "--observation-log", str(self._sent)]
        # After -r, loading a file writes what is in it, and nothing else.
        command += ["-l", str(self._binary), "-l", str(self._context), "-r", "-"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self._process = subprocess.Popen(command, cwd=self._folder, text=True, **pipes)
        self._outputs, self._rows, self._words = self._sent.open(), {}, defaultdict(list)
        self._groups = set()
        if self._chip.processor is not None:
            at, value = self._chip.processor
            self._written(_register(self._chip.pipe_registers + at, value))
        self._before = self._counts()

    def close(self):
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._outputs.close()
            self._process = None

    def _told(self, *commands, mark="-"):
        """Carry out commands; return the lines that they print, and what `mark` stands for."""
        print(*commands, f"load {mark}", sep="\n", file=self._process.stdin, flush=True)
        lines = []
        for line in self._process.stdout:
            # There is no file of that name: the complaint marks the end.
            if found := re.match(r"<stdin>:\d+: Can't open (.*)", line):
                return lines, found[1]
            if line.startswith("<stdin>"):
                raise RuntimeError(f"{commands}: {line}")
            lines.append(line)
        raise RuntimeError(f"{self._chip.harness} ended with {self._process.wait()} after {commands}")

    def _counts(self):
        name = f"{self._chip.pipe}:Ingress.verdicts"
        lines, _ = self._told(*(f"check_counter {name}({verdict:d})" for verdict in Verdict))
        # A counter that was never written has no physical place. What is read by its virtual one is wrong.
        found = (re.match(r"counter .*\(physical (\d+)\): packets=(\d+)", line) for line in lines)
        counts = {int(match[1]): int(match[2]) for match in found if match}
        return {verdict: counts.get(int(verdict), 0) for verdict in Verdict}

    def verdicts(self):
        counts = self._counts()
        return {v: counts[v] - self._before[v] for v in Verdict if counts[v] != self._before[v]}

    # -- packets ---------------------------------------------------------------------------------------

    def _device_port(self, port):
        return self._chip.cpu_port if port == CPU_PORT else 128 * self._chip.pipe + port

    def _port(self, device_port):
        return CPU_PORT if device_port == self._chip.cpu_port else device_port - 128 * self._chip.pipe

    def process(self, port, payload, now_us=0):
        return sorted((p, payload_of(raw)) for p, raw in self._exchange(port, frame(payload)))

    def process_frames(self, frames, now_us=0):
        """Raw frames in, as (port, bytes), one after the other; raw frames out."""
        return [output for one in frames for output in sorted(self._exchange(*one))]

    def _exchange(self, port, raw):
        self._told(f"packet {self._device_port(port)} {raw.hex()}", "wait")
        lines = (line.split() for line in self._outputs.read().splitlines())
        return [(self._port(int(at)), bytes.fromhex(data)) for at, data in lines]

    # -- tables ----------------------------------------------------------------------------------------

    def write(self, table, keys, action, params):
        if table == "congestion":
            self._mark_from(*params)
            return
        row = self._tables[table]
        names = [key["name"] for key in row["match_key_fields"]]
        (chosen,) = [a for a in row["actions"] if a["name"].rsplit(".", 1)[-1] == action]
        said = self._fields([p["name"] for p in chosen["p4_parameters"]], params)
        if table == "routes":
            self._add(row, self._priority(keys[0][1]), f"dst_ip:{_prefix(*keys[0])}", chosen, said)
            return
        matched = self._fields(names, keys)
        if (table, keys) in self._rows:
            self._add(row, self._rows[table, keys], matched, chosen, said)
            return
        word = self._add(row, "", matched, chosen, said)
        # The first free place of a word is taken; the address names the place.
        places = self._words[table, word]
        self._rows[table, keys] = len(places)
        places.append(keys)

    def _fields(self, names, values):
        pairs = zip(names, values, strict=True)
        return " ".join(f"{n}:{self._device_port(v) if n in PORT_FIELDS else v}" for n, v in pairs)

    def _add(self, row, address, matched, action, params):
        """Add an entry; return the word in memory that holds it."""
        command = f"add {row['name']} {address} {matched} {action['name']}({params}) = PLACE"
        return self._told(command, mark="$PLACE")[1]

    def _priority(self, prefix_bits):
        """Return a row for a route: longer prefixes win."""
        self._words["routes", prefix_bits].append(None)
        return 30 * prefix_bits + len(self._words["routes", prefix_bits])

    # -- registers and memories --------------------------------------------------------------------------

    def _stage(self, stage):
        return self._chip.pipe_registers + 0x80000 * stage + self._chip.rams

    def _written(self, *parts):
        path = self._folder / "write.bin"
        path.write_bytes(b"".join(parts))
        self._told(f"load {path}")

    def set_age_limit(self, ticks):
        chip = self._chip
        (stage,) = self._owner["stage_tables"]
        (limit,) = self._owner["register_params"]
        alu = chip.alus + chip.alu_bytes * stage["meter_alu_index"] + chip.alu_constants
        place = self._stage(stage["stage_number"]) + alu + 4 * limit["register_file_index"]
        self._written(_register(place, ticks))

    def _mark_from(self, depth):
        (stage,) = self._tables["congestion"]["match_attributes"]["stage_tables"]
        place = self._chip.miss_immediates + 4 * stage["logical_table_id"]
        self._written(_register(self._stage(stage["stage_number"]) + place, depth))

    def set_group(self, group, ports):
        """Give a group one tree: an end node, then the ports of the pipe."""
        chip = self._chip
        self._groups.add(group)
        local = sum(1 << self._device_port(port) % 128 for port in ports)
        row = _row_of_tree(group)
        end = _TREE_END | 2 * (row + 1) << 4
        leaves = _PORTS | chip.pipe << 4 | 1 << 7 | local << 8
        # Four groups share a row of `group_trees`, and four or eight a register of `group_pipes`.
        heads = sum(2 * _row_of_tree(g) << 20 * (g % 4) for g in self._groups if g // 4 == group // 4)
        shared = 32 // chip.group_pipes_bits & ~3
        near = [g for g in self._groups if g // shared == group // shared]
        pipes = sum(1 << chip.pipe + chip.group_pipes_bits * (g % shared) for g in near)
        self._written(
            _register(chip.tree_pipes, chip.pipe),
            _memory(chip.trees + 16 * row, end, leaves),
            _memory(chip.group_trees + group // 4 * 16, heads),
            _register(chip.pipe_registers + chip.group_pipes + group // shared * 4, pipes),
        )


def _row_of_tree(group):
    """Return the first of a group's two rows in the memory of trees. Row 0 would mean that there is none."""
    return 2 * group + 2


def _prefix(address, bits):
    """Return an address of which only the first bits count, as the harness reads it: * is any bit."""
    return "0b" + f"{address:032b}"[:bits] + "*" * (32 - bits)


def _register(address, value):
    """Return the record that writes one register."""
    return struct.pack("<III", ord("r") << 24, address, value)


def _memory(address, *rows):
    """Return the record that writes rows of 16 bytes."""
    head = struct.pack("<IQII", ord("d") << 24, address // 16, 128, len(rows))
    return head + b"".join(row.to_bytes(16, "little") for row in rows)
