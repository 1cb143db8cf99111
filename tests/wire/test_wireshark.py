"""The Wireshark dissector shows a packet's fields, as tshark prints them where it is installed."""

import re
import shutil
import struct
import subprocess

import numpy as np
import pytest

from peelsum.wire import FIELDS, Flag, Kind, encapsulation, pack
from peelsum.wire.wireshark import dissector

PACKETS = pack(
    np.arange(64, dtype=np.uint32).reshape(2, 32),
    kind=[Kind.CONTRIBUTION, Kind.RESULT],
    flags=[Flag.OR, Flag.SPINE | Flag.CE | Flag.FIN],
    job_id=7,
    generation=0xABCD,
    sender=[3, 0xFFFF],
    chunk_id=[0xFFFFFFFE, 12],
    bitmap=[0b1000, 0xF0000001],
)


def write_pcap(path, packets):
    """Return a capture of packets, one per frame."""
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for packet in packets:
            frame = encapsulation(len(packet)) + packet
            file.write(struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)


def test_every_field_and_flag_is_declared_and_read():
    text = dissector()
    for name, bits in FIELDS:
        assert f'f_{name} = ProtoField.uint{bits}("peelsum.{name}"' in text
        assert text.count(f"(f_{name}, buffer(") == 1
    for flag in Flag:
        assert (
            f'("peelsum.flags.{flag.name.lower()}", "{flag.name}", 8, nil, {flag.value})' in text or not flag
        )
    assert text.index(" local flags = ") < text.index(" flags:add(")
    used = set(re.findall(r"\bf_\w+", text))
    assert used == set(re.findall(r"^local (f_\w+) = ProtoField", text, re.MULTILINE)) > {"f_lane"}


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not on PATH")
def test_tshark_reads_a_capture(tmp_path):
    (tmp_path / "peelsum.lua").write_text(dissector())
    capture = tmp_path / "x.pcap"
    write_pcap(capture, [packet.tobytes() for packet in PACKETS])
    command = ["tshark", "-X", f"lua_script:{tmp_path / 'peelsum.lua'}", "-r", str(capture)]
    fields = [name for name, _ in FIELDS] + [f"flags.{flag.name.lower()}" for flag in Flag if flag] + ["lane"]
    options = [option for name in fields for option in ("-e", f"peelsum.{name}")]
    lines = subprocess.check_output([*command, "-T", "fields", *options], text=True).splitlines()
    first, second = (dict(zip(fields, line.split("\t"), strict=True)) for line in lines)
    assert first["lane"] == ",".join(map(str, range(32)))
    assert second["lane"] == ",".join(map(str, range(32, 64)))
    assert (first["version"], first["kind"], second["kind"]) == ("1", "1", "4")
    assert (first["job_id"], first["generation"]) == ("7", str(0xABCD))
    assert (first["sender"], first["chunk_id"], second["chunk_id"]) == ("3", "4294967294", "12")
    assert (first["bitmap"], second["bitmap"]) == ("0x00000008", "0xf0000001")
    flags = [
        [packet[f"flags.{name}"] in ("1", "True") for name in ("or", "spine", "ce", "fin")]
        for packet in (first, second)
    ]
    assert flags == [[True, False, False, False], [False, True, True, True]]
    summary = subprocess.check_output(command, text=True).splitlines()
    assert "CONTRIBUTION of 3, chunk 4294967294" in summary[0]
    assert "RESULT, chunk 12" in summary[1]
