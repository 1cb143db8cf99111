"""The commands and Python sessions of pages run as they stand, on free ports."""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from free_ports import free_udp_base
from patience import PATIENCE_S

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """A bash in an empty folder, with `peelsum` on its PATH, whose background jobs end with it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    process = subprocess.Popen(
        ["bash", "-em"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    yield process
    process.stdin.close()
    process.wait(PATIENCE_S)


def run(shell, commands):
    """Run commands in the shell and wait until they are done."""
    shell.stdin.write(f"{commands}\necho done\n")
    shell.stdin.flush()
    for line in shell.stdout:
        if line == "done\n":
            return
    raise AssertionError(f"the shell ended with {shell.wait()}: {commands}")


def run_session(page, at_least):
    """Run the Python blocks of a page as one session, and compare their output."""
    blocks = "\n".join(re.findall(r"```python\n(.*?)```", page, re.S))
    session = doctest.DocTestParser().get_doctest(blocks, {}, "page", None, 0)
    assert len(session.examples) >= at_least
    problems = []
    doctest.DocTestRunner(verbose=False).run(session, out=problems.append)
    assert not problems, "".join(problems)


def test_one_sketch_peeled_by_hand():
    run_session((DOCS / "explanation/sketch-by-hand.md").read_text(), at_least=25)


def test_a_compressor_of_ones_own():
    run_session((DOCS / "how-to/add-a-compressor.md").read_text(), at_least=7)


@pytest.mark.system
def test_one_chunk_packet_by_packet(shell, monkeypatch, kept_port):
    base, tcp = free_udp_base(3), kept_port.number
    page = (DOCS / "tutorial/one-chunk.md").read_text()
    page = page.replace("42000", str(base)).replace("127.0.0.1:9559", f"127.0.0.1:{tcp}")
    page = page.replace("udp-base", f"p4runtime 127.0.0.1:{tcp} --udp-base")
    page = page.replace('"status", "--json"', f'"status", "--p4runtime", "127.0.0.1:{tcp}", "--json"')
    *before, end = re.findall(r"```sh\n(.*?)```", page, re.S)
    try:
        for block in before:
            run(shell, block)
        run_session(page, at_least=30)
    finally:
        run(shell, end)
