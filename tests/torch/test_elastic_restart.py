"""A rank is killed under torchrun: all restart from checkpoints, with the bits of an uninterrupted run."""

import os
import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest
import torch_elastic
import torch_training as training
from patience import PATIENCE_S
from served_job import Controlling, Switch, described
from torch_ranks import run_ranks

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}


def torchrun(folder, over):
    """With nothing but the options that a restart needs."""
    script = [torch_elastic.__file__, str(folder), over]
    options = ["--nproc-per-node", "2", "--max-restarts", "1"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, *script]
    pipes = {"capture_output": True, "text": True, "timeout": PATIENCE_S}
    ended = subprocess.run(command, env=os.environ | LOOPBACK, **pipes)
    assert ended.returncode == 0, ended.stderr


def check(folder):
    settings = {"over": "gloo", "compressor": torch_elastic.SPARSIFIER}
    calm = run_ranks(2, training.by_hook, torch_elastic.STEPS, settings, {})
    for rank, parameters in enumerate(calm):
        assert (folder / f"began{rank}").read_text() == "3"
        np.testing.assert_array_equal(np.load(folder / f"trained{rank}.npy"), parameters)


@pytest.mark.system
def test_over_a_switch_whose_job_is_admitted_again(tmp_path):
    with (
        closing(Switch()) as switch,
        closing(Controlling(tmp_path, described(switch, lanes=256, timeout_s=60.0), switch)) as controller,
    ):
        torchrun(tmp_path, f"switch:{controller.job}")
    check(tmp_path)
