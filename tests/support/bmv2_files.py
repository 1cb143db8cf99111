"""BMv2's simple_switch on capture files: frames in, frames out, without interfaces, root or a controller."""

import signal
import struct
import subprocess
import time

PORTS = range(16)
#: Seconds without further frames after which BMv2 is taken to have finished.
QUIET_S = 0.3
PATIENCE_S = 20
_FILE_HEADER = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)


class NotLoadedError(Exception):
    """p4c wrote something that BMv2 does not load."""


def outputs_of(program, frames, count, folder, ports=PORTS):
    """Return each port's frames, in order, once at least `count` have left or nothing more comes.

    program: path of the BMv2 JSON file. frames: (port, bytes) in the order of their arrival. ports: BMv2's.
    Raises NotLoadedError if BMv2 does not load the program.
    """
    arriving = {port: [_FILE_HEADER] for port in ports}
    for second, (port, frame) in enumerate(frames):
        arriving[port].append(struct.pack("<IIII", second, 0, len(frame), len(frame)) + frame)
    for port, records in arriving.items():
        (folder / f"p{port}_in.pcap").write_bytes(b"".join(records))
    interfaces = [part for port in ports for part in ("-i", f"{port}@p{port}")]
    command = ["simple_switch", "--use-files", "0", "--log-level", "off", *interfaces, str(program)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait(process, folder, count, len(ports))
            _check_alive(process.poll(), (folder / "log").read_text(errors="replace"))
        finally:
            process.kill()
            process.wait()
    found = {port: list(_records((folder / f"p{port}_out.pcap").read_bytes())) for port in ports}
    return {port: sent for port, sent in found.items() if sent}


def refusal(program, folder):
    """Return what BMv2 writes about a program that it does not load, or None if it loads it.

    program: path of the BMv2 JSON file.
    """
    command = ["simple_switch", "--use-files", "0", "--log-level", "off", "-i", "0@p0", str(program)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    written = ""
    with subprocess.Popen(command, cwd=folder, **streams) as process:
        for line in process.stdout:
            written += line
            if "Adding interface" in line:  # it has loaded the program
                process.kill()
                return None
    return written


def _check_alive(status, log):
    if status == 1 and "bad json:" in log:
        raise NotLoadedError(log.partition("options parser")[2].strip())
    assert status != -signal.SIGSEGV, "BMv2 crashed; compiled with -DNDEBUG, it checks no index of a register"
    assert status is None, log


def _wait(process, folder, count, ports):
    end = time.monotonic() + PATIENCE_S
    sizes, changed = None, time.monotonic()
    while time.monotonic() < end and process.poll() is None:
        now = {path.name: path.stat().st_size for path in folder.glob("*_out.pcap")}
        if now != sizes:
            sizes, changed = now, time.monotonic()
        written = [(folder / name).read_bytes() for name, size in now.items() if size > 24]
        done = sum(len(list(_records(data))) for data in written)
        if time.monotonic() - changed > (QUIET_S if done >= count else PATIENCE_S / 4) and len(now) == ports:
            return
        time.sleep(0.05)


def _records(data):
    at = len(_FILE_HEADER)
    while at + 16 <= len(data):
        (length,) = struct.unpack_from("<I", data, at + 8)
        yield data[at + 16 : at + 16 + length]
        at += 16 + length
