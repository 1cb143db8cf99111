"""Fixtures: the small P4 programs next to these tests, loaded, and switches that run them in either mode."""

from functools import cache
from pathlib import Path

import pytest

from peelsum.softswitch import Switch, load

P4 = Path(__file__).parent / "p4"


@pytest.fixture(scope="session")
def program_of():
    """Return a function: `program_of("router")` loads a program of tests/softswitch/p4 once."""
    return cache(lambda name: load(P4 / f"{name}.json"))


@pytest.fixture(params=["python", "numba"])
def switch_of(request, program_of):
    """Return a function: `switch_of("router")` makes a new switch. Tests run once in each mode."""
    return lambda name, **options: Switch(program_of(name), request.param, **options)
