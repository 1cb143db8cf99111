"""An example that goes on from a checkpoint ends with the bits of one that was not interrupted."""

import importlib
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def digest(monkeypatch, capsys):
    """The digest of a model's parameters, trained by its example with these arguments."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in ("WORLD_SIZE", "RANK", "PEELSUM_JOB", "PEELSUM_SEAT"):
        monkeypatch.delenv(name, raising=False)

    def trained(model, *arguments):
        importlib.import_module("training_loop").main(model, ["--every", "1", *arguments])
        said = capsys.readouterr().out
        return said.partition("parameters: ")[2].strip(), said

    yield trained
    for name in ("training_loop", "checkpoints"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("model", ["ncf", "lstm", "vgg19", "bert"])
def test_training_in_two_parts(digest, tmp_path, model):
    folder = ("--checkpoint", str(tmp_path / "kept"))
    whole, _ = digest(model, "--steps", "3")
    begun, _ = digest(model, "--steps", "2", *folder)
    assert begun != whole
    again, said = digest(model, "--steps", "3", *folder)
    assert "step 2: " not in said
    assert again == whole
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["rank0.2.pt", "rank0.3.pt"]
