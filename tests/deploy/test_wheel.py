"""`python -m build` makes a whole wheel and sdist: the demo runs from the wheel, outside the checkout."""

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from sysconfig import get_path

import pytest
from patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
#: The folders of sources, and what beside peelsum/ goes into a wheel.
PACKAGES = sorted(path for path in ROOT.glob("*/peelsum") if path.is_dir())
BESIDE = {"switch/artifacts": "peelsum/pipelines/artifacts", "switch/p4": "peelsum/pipelines/p4"}


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the wheel and the sdist of this checkout; the wheel is made from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture
def installed(built, tmp_path):
    """Return the `bin` of an environment with the wheel and its extra `demo`.

    Links lend it this environment's packages, all but peelsum: pip finds what the extra needs, or fails.
    """
    lent, fresh = tmp_path / "lent", tmp_path / "fresh"
    lent.mkdir()
    for path in Path(get_path("purelib")).iterdir():
        if "peelsum" not in path.name and path.suffix != ".pth":
            (lent / path.name).symlink_to(path)
    venv.create(fresh, symlinks=True)
    place = Path(get_path("purelib", vars={"base": fresh, "platbase": fresh}))
    (place / "lent.pth").write_text(str(lent))
    pip = (sys.executable, "-m", "pip", "--python", fresh / "bin" / "python", "install")
    run(*pip, "--no-index", "--no-compile", f"{built[0]}[demo]")
    return fresh / "bin"


@pytest.mark.system
def test_an_index_would_take_both(built):
    run(sys.executable, "-m", "twine", "check", "--strict", *built)


@pytest.mark.system
def test_both_are_whole(built):
    """The wheel has every file of the packages. The sdist can be built, tested and read like a checkout."""
    wheel, sdist = built
    expected = {
        f"{there}/{path.relative_to(ROOT / here)}"
        for here, there in [*((path, "peelsum") for path in PACKAGES), *BESIDE.items()]
        for path in (ROOT / here).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert len(expected) > 300
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == expected
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "constraints.txt",
        "Makefile",
        "docs/how-to/install.md",
        "docs/conf.py",
    } <= names
    assert {f"tests/deploy/{Path(__file__).name}", "tests/conftest.py", "deploy/Dockerfile"} <= names


@pytest.mark.system
def test_the_wheel_runs_doctor_and_demo_outside_the_checkout(installed, tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    away = tmp_path / "away"
    away.mkdir()
    ask = "import peelsum, peelsum.cli; print(*peelsum.__path__, peelsum.cli.__file__)"
    for path in run(installed / "python", "-c", ask, cwd=away, env=environment).split():
        assert Path(path).is_relative_to(installed.parent)
    assert "nothing that is needed is missing" in run(
        installed / "peelsum", "doctor", cwd=away, env=environment
    )
    demo = ("demo", "--workers", "2", "--steps", "3", "--json")
    assert json.loads(run(installed / "peelsum", *demo, cwd=away, env=environment))["exact"] is True
    assert list(away.iterdir()) == []
