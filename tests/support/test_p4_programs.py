"""The tests' compiled programs are up to date with the sources next to them."""

import json
import shutil

import pytest
from p4_programs import COMPILER, FOLDERS, MANIFEST, build, compiler, digests, program_in, sources

PROGRAMS = [source for folder in FOLDERS for source in sources(folder)]
REBUILD = "run `python tests/support/p4_programs.py`"


def manifest(folder):
    return json.loads((folder / MANIFEST).read_text())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_programs_are_those_that_were_compiled(folder):
    assert digests(folder) == manifest(folder)["files"], REBUILD


@pytest.mark.skipif(compiler() is None, reason=f"{COMPILER} is not on PATH")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_compiling_again_gives_the_same(program, tmp_path):
    committed = list(program.parent.glob(f"{program.stem}.*"))
    for path in committed:
        shutil.copy(path, tmp_path)
    build(tmp_path / program.name)
    for path in committed:
        assert program_in(tmp_path / path.name) == program_in(path), REBUILD
