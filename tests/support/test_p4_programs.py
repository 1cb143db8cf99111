"""The tests' compiled programs are up to date with the sources next to them."""

import json

import pytest
from p4_programs import COMPILER, FOLDERS, MANIFEST, RIVALS, build, compiler, digests, program_in, sources

from peelsum.pipelines.artifacts import with_lanes

PROGRAMS = [source for folder in FOLDERS for source in sources(folder)]
REBUILD = "run `python tests/support/p4_programs.py`"


def manifest(folder):
    return json.loads((folder / MANIFEST).read_text())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_programs_are_those_that_were_compiled(folder):
    assert digests(folder) == manifest(folder)["files"], REBUILD


@pytest.mark.skipif(compiler() is None, reason=f"{COMPILER} is not on PATH")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_compiling_again_gives_the_same(program, tmp_path):
    build(program, tmp_path)
    for path in tmp_path.iterdir():
        assert program_in(path) == program_in(program.parent / path.name), REBUILD


@pytest.mark.skipif(compiler() is None, reason=f"{COMPILER} is not on PATH")
@pytest.mark.parametrize("program", sources(RIVALS), ids=lambda program: program.stem)
def test_more_lanes_are_derived_as_the_compiler_makes_them(program, tmp_path):
    build(program, tmp_path, "-I", "../p4/generated/lanes_32")
    folders = (tmp_path, program.parent)
    compiled, committed = (program_in(folder / f"{program.stem}.json") for folder in folders)
    assert with_lanes(committed, 32) == compiled
