"""`peelsum` installed without its extra `cli` says what to install."""

import subprocess
import sys

import pytest

#: Runs the command line as if a package were not installed.
WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
sys.argv = ["peelsum", *sys.argv[2:]]
from peelsum.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("typer", ["--version"]),
        ("grpc", ["status"]),
        pytest.param("rich", ["plan", "--help"], marks=pytest.mark.slow),
        pytest.param("pydantic", ["down"], marks=pytest.mark.slow),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_has_it(package, command):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, package, *command], capture_output=True, text=True, check=False
    )
    assert done.stderr == f"peelsum: {package}: is not installed; run: pip install 'peelsum[cli]'\n"
    assert (done.returncode, done.stdout) == (2, "")


def test_a_package_of_another_extra_is_not_blamed_on_this_one():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, "numpy", "--version"], capture_output=True, text=True, check=False
    )
    assert "peelsum[cli]" not in done.stderr
