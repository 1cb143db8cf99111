"""The small P4 programs beside these tests, loaded and running in either mode."""

from pathlib import Path

import pytest

from peelsum.softswitch import Switch, load

P4 = Path(__file__).parent / "p4"


@pytest.fixture(scope="session")
def program_of():
    """`program_of("router")`: a program of tests/softswitch/p4, loaded once."""
    loaded = {}

    def get(name):
        if name not in loaded:
            loaded[name] = load(P4 / f"{name}.json")
        return loaded[name]

    return get


@pytest.fixture(params=["python", "numba"])
def switch_of(request, program_of):
    """`switch_of("router")`: a fresh switch, once in each mode."""
    return lambda name, **options: Switch(program_of(name), request.param, **options)
