"""Make a step's results from exchanges that have ended, and find what they show about each tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from peelsum.allreduce.costs import Seen
from peelsum.allreduce.exchange import DENSE, TensorExchange
from peelsum.allreduce.group import Group
from peelsum.allreduce.group import Member as GroupMember
from peelsum.allreduce.host_bundle import HostBundle
from peelsum.allreduce.host_bundle import Member as HostMember
from peelsum.allreduce.plan import Plan, TensorPlan
from peelsum.allreduce.result import Results, Tally, TensorResult, TensorTally
from peelsum.allreduce.rounds import Step
from peelsum.allreduce.together import Together

if TYPE_CHECKING:
    from peelsum.allreduce.device_bundle import DeviceBundle
    from peelsum.allreduce.device_bundle import Member as DeviceMember

    #: The exchange of several tensors.
    Joined = Group | HostBundle | DeviceBundle | Together
    #: One tensor's exchange, after its last round.
    Outcome = TensorExchange | GroupMember | DeviceMember


class Learned(NamedTuple):
    """What a step shows about a tensor that was finite on all workers."""

    name: str
    elements: int
    seen: Seen | None
    """Its union over workers; None if all values are zero."""
    words_sent: int


class Finished(NamedTuple):
    """What a step ends with."""

    results: Results
    tally: Tally
    learned: list[Learned]


def finished(
    plan: Plan,
    joined: Sequence[Joined],
    alone: Mapping[str, TensorExchange],
    wants: Callable[[str], bool],
    step: Step,
    complete: dict[str, TensorResult],
) -> Finished:
    """Return what the exchanges of several tensors, and of others by name, show after their last rounds.

    wants: returns whether a tensor's non-zeros must be counted, by name.
    complete: gets each tensor's result, by name, as soon as its `values` are written.
    """
    divisor = plan.workers if plan.settings.average else 1
    bundle, outcomes = None, dict[str, "Outcome"]()
    for several in joined:
        if isinstance(several, HostBundle):
            bundle = several
            bundle.decode(divisor)
            outcomes.update(bundle.others)
            bundle.others.clear()
        else:
            step.label = several.label
            if isinstance(several, Together):
                several.decode(divisor)
            outcomes.update(several.members())
    # A bundle writes all its tensors at once: one after the other, they are complete before more can fail.
    outcomes.update(alone)
    plans = {tensor.name: tensor for tensor in plan.tensors} if outcomes else {}
    for name, outcome in outcomes.items():
        step.label = repr(name)
        complete[name] = _result(plans[name], outcome, plan.workers, divisor)
    apart = {name: complete[name] for name in plans if name in complete}
    counts = {name: _counting(outcomes[name], result, wants, step) for name, result in apart.items()}
    learned = [
        _learned(outcomes[name], result, wants, counts[name])
        for name, result in apart.items()
        if result.finite
    ]
    words = {name: result.words_sent for name, result in apart.items()}
    non_finite = len(apart) - len(learned)
    if bundle is not None:
        seen = bundle.seen()
        words |= bundle.words_sent_by_name
        learned += [Learned(name, elements, union, words[name]) for name, (elements, union) in seen.items()]
        non_finite += bundle.members - len(seen)
    elements = sum(tensor.elements for tensor in plan.tensors)
    make = _maker(plan, bundle, apart, divisor)
    bundled = dict[str, TensorTally] if bundle is None else bundle.tallies(plan.workers, divisor).by_name
    tally = Tally(words, elements, non_finite, apart, bundled)
    return Finished(Results(len(plan.tensors), make), tally, learned)


def _maker(
    plan: Plan, bundle: HostBundle | None, apart: Mapping[str, TensorResult], divisor: int
) -> Callable[[int], TensorResult]:
    def make(number: int) -> TensorResult:
        tensor = plan.tensors[number]
        if bundle is None or tensor.name in apart:
            return apart[tensor.name]
        return _result(tensor, bundle.member(tensor.name), plan.workers, divisor)

    return make


def _result(plan: TensorPlan, exchange: Outcome | HostMember, fan_in: int, divisor: int) -> TensorResult:
    return TensorResult(
        name=plan.name,
        form=exchange.form,
        index=exchange.index.form if exchange.index else None,
        shape=plan.shape,
        values=exchange.floats(divisor).reshape(plan.shape),
        finite=exchange.finite,
        fixed=exchange.fixed,
        fan_in=fan_in,
        divisor=divisor,
        words_sent=exchange.words_sent,
        selection=exchange.selection,
        quantized_at=exchange.quantized,
        total_at=exchange.total,
        near_quantized=exchange.near_quantized,
        near_total=exchange.near_total,
    )


def _counting(
    exchange: Outcome, result: TensorResult, wants: Callable[[str], bool], step: Step
) -> Callable[[], Any] | None:
    """Start to count the non-zeros of a dense sum that only a device has; None if that is not needed.

    The host then waits once for the counts of all tensors.
    """
    total: Any = exchange.total
    if exchange.selection is not None or exchange.near_total is not None or isinstance(total, np.ndarray):
        return None
    return step.memory.later((total != 0).sum()) if wants(result.name) and result.elements else None


def _learned(
    exchange: Outcome, result: TensorResult, wants: Callable[[str], bool], count: Callable[[], Any] | None
) -> Learned:
    """Return what a finite sum shows about a tensor; count: returns the number of its non-zeros, if given."""
    seen = None
    if exchange.exponent_field is not None:
        wanted = wants(result.name)
        # A sparse tensor's density is known without counting; it sizes the blocks of scales.
        density = 1.0
        if count is not None:
            density = int(count()[0]) / result.elements
        elif wanted or exchange.selection is not None:
            density = result.density
        density = max(density, exchange.sampled_share)
        if density > DENSE or not wanted:
            seen = Seen.uniform(result.elements, density, exchange.exponent_field)
        else:
            seen = Seen(exchange.exponent_field, exchange.occupied())
    return Learned(result.name, result.elements, seen, exchange.words_sent)
