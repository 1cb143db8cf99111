"""Ranks that train with a strategy: by a script of methods, or over a star that a schedule slows down."""

import logging
import time
from contextlib import contextmanager
from dataclasses import replace
from logging.handlers import BufferingHandler
from unittest.mock import patch

import numpy as np
import torch
import torch_compressed as compressed
from compressors import Books
from patience import PATIENCE_S
from torch_ranks import error_of
from torch_training import descend, model, parameters, step_loss

from peelsum.compress import DENSE, Decider, Flexible, LinkModel
from peelsum.compress.costs import all_reduce_cost
from peelsum.torch import ProcessGroupSummation, SwitchAllreduceState, TopK, hook
from peelsum.torch.backends import connect


@contextmanager
def scripted(script):
    """Have every decider of this process follow a script, again and again, whatever it measures."""

    class Scripted(Decider):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self._follow(0)

        def observe(self, *arguments):
            events = super().observe(*arguments)
            self._follow(self._script_step + 1)
            return events

        def load_state_dict(self, values):
            super().load_state_dict(values)
            self._follow(self.observed)

        def _follow(self, step):
            assert script
            self._script_step = step
            method, ratio = script[step % len(script)]
            self.next = replace(self.next, method=method, ratio=1.0 if method in DENSE else ratio)

    with patch("peelsum.compress.reducers.Decider", Scripted if script else Decider):
        yield


def hooked(over, **settings):
    """See `torch_compressed.hooked`; with a strategy."""
    return compressed.hooked(over, **{"strategy": Flexible(), **settings})


def audited(rank, over, script, steps, restart_at):
    """See `torch_compressed.audited`; `used` are the methods and ratios."""
    with scripted(script):
        outcome = compressed.audited(rank, over, {"strategy": Flexible()}, steps, restart_at)
    return {**outcome, "used": [(plan.method, plan.ratio) for plan in outcome["plans"]]}


def trained(rank, over, script, steps, **settings):
    """Parameters, decisions and log lines of a training."""
    said, logger = BufferingHandler(1000), logging.getLogger("peelsum.torch")
    logger.addHandler(said)
    logger.setLevel(logging.INFO)
    with scripted(script):
        ddp, state, optimizer = hooked(over, **settings)
        losses = (step_loss(ddp, rank, step) for step in range(steps))
        trained = descend(ddp, None, losses, optimizer=optimizer)
        lines = [record.getMessage() for record in said.buffer]
        outcome = {"parameters": trained, "stats": state.stats(), "log": lines}
        logger.removeHandler(said)  # this process may train again
        state.close()
    return outcome


def deciding(rank, over, settings):
    """`trained` for 30 steps, by what is measured."""
    return trained(rank, over, None, 30, **settings)


def same_methods(rank, over, methods, steps):
    """Parameters after `steps` by each method alone, over one connection."""
    backend = connect(over, None, None)
    found = [trained(rank, backend, [(method, 0.1)], steps)["parameters"] for method in methods]
    backend.close()
    return found


@contextmanager
def slowed(link):
    """Slow down every process group of this process: an exchange sleeps as long as it takes over `link`."""

    def sleep(messages, words):
        time.sleep(messages * link.latency_s + 32 * words / (link.gbps * 1e9))

    class Slowed(ProcessGroupSummation):
        def sum_words(self, parts, *, by=None):
            for part in parts:
                size, few = part.words.size, by is None and part.words.size <= self.few_words
                sleep(*all_reduce_cost(self.workers, size, tree=by == "tree", few=few))
            return super().sum_words(parts, by=by)

        def gather_equal(self, data):
            others = self.workers - 1
            sleep(others, others * data.size / 4)
            return super().gather_equal(data)

    with (
        patch("peelsum.torch.backends.ProcessGroupSummation", Slowed),
        patch("peelsum.torch.buckets.ProcessGroupSummation", Slowed),
    ):
        yield


def timed_over_switch(rank, seconds, strategy):
    """Train over a star for some seconds; return when each step began, and what was decided.

    The process group, which does not go through the star, is slowed down to 60 Mbit/s and 5 ms.
    """
    torch.set_num_threads(1)
    began = []
    with slowed(LinkModel(5e-3, 0.06)):
        torch.manual_seed(0)
        layer = torch.nn.Linear(256, 256)
        ddp = torch.nn.parallel.DistributedDataParallel(layer)
        state = SwitchAllreduceState(over="switch", strategy=strategy)
        ddp.register_comm_hook(state, hook)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-4)
        generator = torch.Generator().manual_seed(rank)
        going = torch.ones(1)
        while going.item():
            began.append(time.monotonic())
            optimizer.zero_grad()
            ddp(torch.randn(4, 256, generator=generator)).pow(2).sum().backward()
            optimizer.step()
            going.fill_(time.monotonic() < began[0] + seconds)
            torch.distributed.broadcast(going, 0)
        outcome = {"began": began, "strategy": state.stats().strategy, "parameters": parameters(ddp)}
        state.close()
    return outcome


def not_finite(rank, script):
    """Train as many steps as the script has; in every second one, rank 1's first gradient is infinite.

    Return for each step which averages are finite, and whether its books balance.
    """
    outcome = []
    with patch("peelsum.compress.reducers.Memory", Books), scripted(script):
        ddp, state, _ = hooked("gloo")
        for step in range(len(script)):
            ddp.zero_grad()
            loss = step_loss(ddp, rank, step)
            before = {name: one.numbers.copy() for name, one in state._reducer.memory.residuals.items()}
            bad = step % 2 == 1
            (loss * float("inf") if bad and rank == 1 else loss).backward()
            after = {name: one.numbers for name, one in state._reducer.memory.residuals.items()}
            kept = all(np.array_equal(before[name], after[name]) for name in before) if bad else True
            outcome.append(([bool(one.grad.isfinite().all()) for one in ddp.parameters()], kept))
        state.close()
    return outcome


def continued(rank):
    """Decisions before and after a restore, and after one of other settings."""
    settings = {"strategy": Flexible(ratios=(0.1,), explore_steps=2)}
    ddp, state, _ = hooked("gloo", **settings)
    for step in range(5):
        step_loss(ddp, rank, step).backward()
    before = state.stats().strategy
    saved = state.state_dict()
    state.close()
    plans = []
    for strategy in (settings["strategy"], Flexible(ratios=(0.2,))):
        ddp, state, _ = hooked("gloo", strategy=strategy)
        state.load_state_dict(saved)
        step_loss(ddp, rank, 5).backward()
        plans.append((state.stats().strategy.plan, state.stats().strategy.links))
        state.close()
    return {"before": before, "same": plans[0], "other": plans[1], "saved": saved["strategy"]}


def to_and_from_a_compressor(rank):
    """Residuals of a strategy's checkpoint, in a compressor's state, and in a strategy's again."""
    ddp, state, _ = hooked("gloo")
    step_loss(ddp, rank, 0).backward()
    saved = [state.state_dict()]
    state.close()
    for settings in ({"strategy": None, "compressor": TopK(0.1)}, {}):
        ddp, state, _ = hooked("gloo", **settings)
        state.load_state_dict(saved[-1])
        saved.append(state.state_dict())
        step_loss(ddp, rank, 1).backward()
        state.close()
    return [{name: one["numbers"].numpy() for name, one in each["residuals"].items()} for each in saved]


def mismatched(rank, settings):
    """The error of ranks that differ in their settings."""
    ddp, _, _ = hooked("gloo", timeout_s=PATIENCE_S, **settings[rank])
    return ": ".join(error_of(step_loss(ddp, rank, 0).backward)[:2])


def two_modules(rank, script):
    """Parameters of two modules that one backward pass goes through."""
    with scripted(script):
        pair = [model(), model()]
        state = SwitchAllreduceState(over="gloo", strategy=Flexible())
        for ddp in pair:
            ddp.register_comm_hook(state, hook)
        losses = (step_loss(pair[0], rank, n) + step_loss(pair[1], rank, n + 100) for n in range(8))
        trained = descend(torch.nn.ModuleList(pair), None, losses)
        assert len(state.stats().strategy.history) == 6
        state.close()
    return trained
