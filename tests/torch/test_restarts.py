"""The part of a store that belongs to one start of torchrun."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from peelsum.torch import HookConfigError
from peelsum.torch.starts import start_of

AGENTS = {"TORCHELASTIC_USE_AGENT_STORE": "True"}


@pytest.mark.parametrize(
    ("environment", "start"),
    [
        ({}, ""),
        ({"TORCHELASTIC_USE_AGENT_STORE": "False", "TORCHELASTIC_RESTART_COUNT": "3"}, ""),
        (AGENTS | {"TORCHELASTIC_RESTART_COUNT": "0"}, "start 0"),
        (AGENTS | {"TORCHELASTIC_RESTART_COUNT": "3", "GROUP_WORLD_SIZE": "1"}, "start 3"),
        (AGENTS | {"TORCHELASTIC_RESTART_COUNT": "0", "GROUP_WORLD_SIZE": "2"}, "start 0"),
    ],
)
def test_starts_are_told_apart_where_the_store_outlives_them(environment, start):
    assert start_of(environment) == start


def test_agents_of_several_nodes_do_not_count_alike():
    environment = AGENTS | {"TORCHELASTIC_RESTART_COUNT": "1", "GROUP_WORLD_SIZE": "2"}
    with pytest.raises(HookConfigError, match="set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on all nodes"):
        start_of(environment)
