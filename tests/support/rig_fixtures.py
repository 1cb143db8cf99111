"""Fixtures for conftest.py to import.

A test that takes `rig` runs on the specification, on the softswitch in both modes, on BMv2, and on Tofino's
software model.
"""

import os
import shutil

import pytest
from rigs import SoftswitchRig, SpecRig
from tofino_model_rig import CHIPS, TofinoModelRig, why_missing

from peelsum.pipelines import pipeline
from peelsum.softswitch import load

LANES = 32


def _bmv2_missing():
    if shutil.which("simple_switch_grpc") is None:
        return "simple_switch_grpc is not on PATH"
    return None if os.geteuid() == 0 else "BMv2's ports need root"


def _where(target, missing, *marks):
    return pytest.param(target, marks=[pytest.mark.skipif(bool(missing), reason=str(missing)), *marks])


TARGETS = [
    "spec",
    "softswitch-python",
    "softswitch-numba",
    _where("bmv2", _bmv2_missing()),
    *(_where(f"{device}-model", why_missing(device), pytest.mark.slow) for device in CHIPS),
]


@pytest.fixture(scope="session")
def made_rigs(tmp_path_factory):
    """Rigs by target, made when first asked for."""
    made = {}
    yield made
    for rig in made.values():
        if hasattr(rig, "close"):
            rig.close()


def make_rig(target, log_folder):
    if target == "spec":
        return SpecRig(LANES, slots=4096)
    if target == "bmv2":
        from bmv2_rig import Bmv2Rig

        return Bmv2Rig(pipeline(LANES), log_folder / "bmv2.log")
    if target.endswith("-model"):
        return TofinoModelRig(target.removesuffix("-model"), log_folder)
    return SoftswitchRig(load(pipeline(LANES).json_path), mode=target.removeprefix("softswitch-"))


def _fresh_rig(target, rigs, tmp_path_factory):
    if target not in rigs:
        rigs[target] = make_rig(target, tmp_path_factory.mktemp("rig"))
    rigs[target].fresh()
    return rigs[target]


@pytest.fixture(params=TARGETS)
def rig(request, made_rigs, tmp_path_factory):
    return _fresh_rig(request.param, made_rigs, tmp_path_factory)


@pytest.fixture(params=TARGETS[1:])
def frame_rig(request, made_rigs, tmp_path_factory):
    """A rig that takes whole frames: all but the specification, which begins at UDP payload."""
    return _fresh_rig(request.param, made_rigs, tmp_path_factory)
