"""Scenario files: read as written, refused in one line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peelsum.simulation import SimulationError
from peelsum.simulation.scenario import with_options

VALUES = st.one_of(
    st.integers(-5, 5000),
    st.floats(allow_nan=True),
    st.booleans(),
    st.text(max_size=5),
    st.lists(st.integers()),
)
NETWORK = [f"network.{name}" for name in ("gbps", "racks", "loss", "schedule")]
NAMES = ["seed", "lanes", "slots", *NETWORK, "nonsense"]


def parsed(folder, text):
    path = folder / "s.toml"
    path.write_text(text)
    return with_options(path, {})


def test_a_file_is_read(tmp_path):
    scenario = parsed(
        tmp_path,
        """
        seed = 3
        [network]
        racks = 2
        schedule = [{at_s = 0.001, gbps = 50.0}, {at_s = 0.002, gbps = 100.0}]
        [[jobs]]
        workers = 8
        stragglers = [{worker = 7, late_s = 0.001}]
        [jobs.timers]
        need = 0.001
        """,
    )
    assert (scenario.seed, scenario.network.racks, scenario.jobs[0].workers) == (3, 2, 8)
    assert [(one.at_s, one.gbps) for one in scenario.network.schedule] == [(0.001, 50.0), (0.002, 100.0)]
    assert scenario.jobs[0].timers.timers().need == 0.001


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slots = 300", "s.toml: slots: 300 is not a power of two; use 512"),
        ("[network]\ngbp = 3.0", "s.toml: network.gbp: is not a field of a scenario; call it 'gbps'"),
        ("[network]\nloss = 1.5", "s.toml: network.loss: 1.5 is out of range; use less than 1"),
        ("[network]\ngbps = 2e3", "s.toml: network.gbps: 2000.0 is out of range; use 1600 or less"),
        ("worker = 3", "s.toml: worker: is not a field of a scenario; use one of seed, lanes, "),
        (
            "[network]\nracks = 1\n[[jobs]]\nworkers = 33",
            "network.racks: 1: jobs.0 has 33 workers, a switch takes 32; use 2 or more",
        ),
        ("[[jobs]]\nstragglers = [{worker = 9}]", "stragglers: worker 9 is not one of 4; give 0 to 3"),
        ("[[jobs]]\n[jobs.timers]\nneed = 0.0", "s.toml: jobs.0.timers"),
        ("[jobs.timers]\nneed = 0.0", "s.toml: jobs: "),
        ("jobs = []", "s.toml: jobs: "),
        ("network = 3", "s.toml: network: 3: "),
        ('switch = "compiled"', "s.toml: switch: 'compiled': "),
        ("nonsense", "s.toml: is not TOML"),
    ],
)
def test_a_bad_file_gets_one_line(tmp_path, text, message):
    with pytest.raises(SimulationError) as caught:
        parsed(tmp_path, text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_gets_one_line(tmp_path):
    with pytest.raises(SimulationError, match=r"none\.toml: .*; give the path of a scenario"):
        with_options(tmp_path / "none.toml", {})


@given(name=st.sampled_from(NAMES), value=VALUES)
def test_any_value_is_taken_or_refused_in_one_line(tmp_path_factory, name, value):
    written = repr(value).lower() if isinstance(value, bool) else repr(value)
    table, _, field = name.rpartition(".")
    text = f"[{table}]\n{field} = {written}" if table else f"{field} = {written}"
    try:
        said = str(parsed(tmp_path_factory.getbasetemp(), text).seed)
    except SimulationError as error:
        said = str(error)
    assert "\n" not in said
