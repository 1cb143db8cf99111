"""The training examples: each runs alone, and one runs through the switch."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from free_ports import KeptPort
from patience import PATIENCE_S

pytest.importorskip("torch")

from peelsum.topology import Star

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["lm", "ncf", "vgg19", "bert"])
def test_an_example_trains_by_itself(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    spec = importlib.util.spec_from_file_location(f"train_{name}", EXAMPLES / f"train_{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = {"lm": "lstm"}.get(name, name)
    losses = module.main(model, ["--steps", "2", "--every", "1"])
    out = capsys.readouterr().out
    assert len(losses) == 2
    assert f"{model}, " in out
    assert f"step 2: loss {losses[1]:.4f}" in out


@pytest.mark.system
def test_ranks_at_seats_train_through_a_switch(kept_port: KeptPort) -> None:
    """Workers started as by `peelsum exec` take rank and number of workers from the seat."""
    left_out = ("RANK", "WORLD_SIZE", "MASTER_ADDR")
    given = {name: value for name, value in os.environ.items() if name not in left_out}
    given |= {"MASTER_PORT": str(kept_port.number), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(EXAMPLES / "train_ncf.py"), "--sum", "switch", "--steps", "3"]
    with Star(2) as star:
        seats = [json.dumps(asdict(seat)) for seat in star.seats]
        ranks = [
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=given | {"PEELSUM_SEAT": seat},
            )
            for seat in seats
        ]
        try:
            said = [rank.communicate(timeout=PATIENCE_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    (first, _), (second, _) = said
    assert "2 ranks" in first
    assert "step 3: loss" in first
    assert "switch: " in first
    assert not second
