"""Choose the form and the index of each tensor: as the user requests, or those with the least estimated time.

The choices depend only on values that are the same on all workers, so every worker makes the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.costs import (
    CostEstimate,
    NetworkModel,
    best_bloom,
    cost_estimates,
    scale_block,
)
from peelsum.allreduce.errors import InvalidRequestError
from peelsum.allreduce.history import History, Key
from peelsum.allreduce.history_loops import BASIS_COLUMNS, ESTIMATES, ONE_ROUND, TWO_ROUNDS
from peelsum.allreduce.indexes import BitmapIndex, BloomIndex, UnionCounts
from peelsum.allreduce.plan import NAMES_SHOWN, Choice, Form, PlanSettings, TensorPlan
from peelsum.codec import BLOCK_SIZES, MIN_CELLS_PER_CANDIDATE

_Counts = NDArray[np.float64]
RequestedForm = Literal["dense", "sparse", "auto"]
RequestedValues = Literal["compact", "sketch", "auto"]
#: Arguments of earlier versions in `forms`, with what to write instead.
_REMOVED = {
    "compact": "write 'sparse', with values='compact'",
    "sketch": "write 'sparse', with values='sketch'",
}
DEFAULT_NETWORK = NetworkModel()
#: Seconds that the codec takes for each overflowing element, in a block that exceeds its predicted exponent,
#: as measured on a shared 2-core machine.
_OVERFLOW_S = 1.2e-7
#: From this number of elements on, a tensor is dense only if this share of its elements is not zero: else its
#: blocks hold few values, and their exponents change from step to step.
_LARGE, _DENSE = 2**15, 0.2
#: The last columns of `History.basis`: how well predictions of steps were met.
_FACT_COLUMNS = BASIS_COLUMNS - ESTIMATES * BLOCK_SIZES
#: Capacity of the cache of choices: a choice costs more than the sum of a small tensor.
_CACHED_CHOICES = 1024


class Chooser:
    """The choice of form and index for each tensor, by name.

    `forms` is one form for all tensors, or a dict of forms by name; names that it lacks get `auto`: the form
    that takes the least time over `network`, by formula. In its first step, a tensor of form `auto` or
    `sparse` sends a bit for each element, and its non-zeros.

    `values` is how the non-zeros of sparse tensors are sent: "compact", in order, after scales and index;
    "sketch", as a sketch; "auto", as what takes less time. Except with "compact", a step is done in one
    round, with everything sent together, where that takes less time.

    Raises InvalidRequestError for an unknown form and for names that are not strings.
    """

    def __init__(
        self,
        forms: RequestedForm | Mapping[str, RequestedForm] = "auto",
        *,
        values: RequestedValues = "auto",
        network: NetworkModel = DEFAULT_NETWORK,
        history: History | None = None,
    ) -> None:
        if not isinstance(forms, str | Mapping):
            raise InvalidRequestError(f"forms: {forms!r} is not a form; give one for all, or a dict by name")
        self._forms = {} if isinstance(forms, str) else dict(forms)
        require_names("forms", self._forms)
        self._default: RequestedForm = forms if isinstance(forms, str) else "auto"
        for name, form in [("every tensor", self._default), *self._forms.items()]:
            if form in _REMOVED:
                raise InvalidRequestError(f"forms: {form!r} for {name} was removed; {_REMOVED[form]}")
            if form not in (known := get_args(RequestedForm)):
                raise InvalidRequestError(
                    f"forms: {form!r} for {name} is unknown; use one of {', '.join(known)}"
                )
        if values not in (known := get_args(RequestedValues)):
            raise InvalidRequestError(f"values: {values!r} is unknown; use one of {', '.join(known)}")
        self._values, self.network, self.prices = values, network, network.prices
        #: How the candidates' numbers are sent.
        self.sparse_form: Form = "compact" if values == "auto" else values
        self.history = history or History()
        self._cheapest = lru_cache(_CACHED_CHOICES)(self._find_cheapest)
        #: Returns, by the tensors' keys, which tensors' next choices depend on where their non-zeros are:
        #: int64[tensors], 1 for these.
        self.needs_positions: Callable[[tuple[Key, ...]], NDArray[np.int64]] = lru_cache(_CACHED_CHOICES)(
            lambda keys: np.array(
                [self._forms.get(name, self._default) != "dense" for name, _ in keys], np.int64
            )
        )

    def __str__(self) -> str:
        """Return all settings as text; two choosers with equal text make equal choices."""
        return repr((self._default, sorted(self._forms.items()), self._values, self.network))

    def check(self, names: Collection[str]) -> None:
        """Raise InvalidRequestError if `forms` has a name that is not among `names`."""
        unknown = sorted(set(self._forms) - set(names))
        if unknown:
            known = [repr(name) for name in names]
            if len(known) > NAMES_SHOWN:
                known[NAMES_SHOWN:] = [f"and {len(known) - NAMES_SHOWN} more"]
            raise InvalidRequestError(
                f"forms: {unknown[0]!r} is not a tensor; there are {', '.join(known) or 'none'}; "
                "correct it, or pass all tensors' names as `names` if a call has only some of them"
            )

    def choose(
        self, tensors: Sequence[TensorPlan], settings: PlanSettings
    ) -> tuple[tuple[TensorPlan, ...], bool]:
        """Return the tensors' plans for the next step, and whether it is done in one round."""
        keys = tuple(tensor.key for tensor in tensors)
        basis = self.history.basis(keys)
        unions = basis[:, :-_FACT_COLUMNS].reshape(len(keys), ESTIMATES, BLOCK_SIZES)
        best, protocol = self._estimates(tensors, unions[:, TWO_ROUNDS], settings, False), TWO_ROUNDS
        counts = zip(tensors, unions[:, TWO_ROUNDS, 0], strict=True)
        known = [count >= 0 for tensor, count in counts if tensor.elements]
        if self._values != "compact" and known and all(known):
            best_one_round = self._estimates(tensors, unions[:, ONE_ROUND], settings, True)
            if self._one_round_is_faster(best_one_round, best, basis[:, -_FACT_COLUMNS:]):
                best, protocol = best_one_round, ONE_ROUND
        choices, non_zeros = [estimate.choice for estimate in best], unions[:, protocol, 0]
        for refined in (False, True):  # all tensors that have a Bloom filter share one
            filtered = [
                number
                for number, choice in enumerate(choices)
                if isinstance(choice.index, BloomIndex) and choice.index.refined == refined
            ]
            if len(filtered) > 1:
                elements = sum(tensors[number].elements for number in filtered)
                count, wasted_bits = float(non_zeros[filtered].sum()), 1.0 if refined else 32.0
                shared = best_bloom(elements, count, wasted_bits, refined=refined)
                for number in filtered:
                    choices[number] = replace(choices[number], index=shared)
        plans = (replace(tensor, choice=choice) for tensor, choice in zip(tensors, choices, strict=True))
        return tuple(plans), protocol == ONE_ROUND

    def _estimates(
        self, tensors: Sequence[TensorPlan], unions: _Counts, settings: PlanSettings, one_round: bool
    ) -> list[CostEstimate]:
        """Return the cheapest choice of each tensor, with its costs. one_round: for a one-round step."""
        estimates = []
        for tensor, union in zip(tensors, unions.tolist(), strict=True):
            form, seen = self._forms.get(tensor.name, self._default), UnionCounts(tuple(union))
            known = seen if union[0] >= 0 else None
            estimates.append(self._cheapest(form, tensor.elements, known, settings, one_round))
        return estimates

    def _one_round_is_faster(
        self, one_round: Sequence[CostEstimate], two_rounds: Sequence[CostEstimate], facts: _Counts
    ) -> bool:
        """Return whether a step is estimated to take less time in one round than in two.

        one_round, two_rounds: each tensor's choice. facts: how well the predictions of each tensor were met,
        the last columns of `History.basis`.
        """
        resend_rate, resent_words, _ = facts[:, :3].max(axis=0, initial=0.0).tolist()
        overflow, network = float(facts[:, 2].sum()), self.network
        misestimates = _misestimate_words(one_round, facts[:, 3 + ONE_ROUND])
        misestimates -= _misestimate_words(two_rounds, facts[:, 3 + TWO_ROUNDS])
        extra_words = resent_words + misestimates + MIN_CELLS_PER_CANDIDATE * overflow
        extra_s = (
            network.seconds(extra_words, 0) + _OVERFLOW_S * overflow + 1e-9 * network.codec.one_round_step
        )
        exchanges: float = max((choice.exchanges for choice in two_rounds), default=0) - 1 - resend_rate
        saved_s = exchanges * network.round_trip_s
        return _seconds(one_round, network) + extra_s < _seconds(two_rounds, network) + saved_s

    def _find_cheapest(
        self,
        form: RequestedForm,
        elements: int,
        seen: UnionCounts | None,
        settings: PlanSettings,
        one_round: bool,
    ) -> CostEstimate:
        """Return the choice of the requested form that takes the least time. seen: None in a first step."""
        sparse: Form = "sketch" if one_round else self.sparse_form
        if seen is None and form != "dense":
            return CostEstimate(
                Choice(sparse, BitmapIndex(), scale_block(elements, elements)), elements, 2, 0.0
            )
        forms: tuple[Form, ...] = ("dense",) if form == "dense" else (sparse,)
        if form == "auto" and seen and (elements < _LARGE or seen.non_zeros >= _DENSE * elements):
            forms = ("dense", sparse)
        union, codec = seen or UnionCounts.uniform(elements, 1.0), self.network.codec
        choices = cost_estimates(elements, union, settings, forms, one_round=one_round, codec=codec)
        return min(choices, key=lambda choice: choice.seconds(self.network))


def _seconds(choices: Sequence[CostEstimate], network: NetworkModel) -> float:
    """Return the seconds that tensors take in the codec, and their words at the network's rate."""
    return sum(choice.codec_s + network.seconds(choice.words, 0) for choice in choices)


def _misestimate_words(choices: Sequence[CostEstimate], costs: _Counts) -> float:
    """Return the largest of the costs of wrong estimates, among tensors with a sketch or a Bloom filter.

    costs: of each tensor, in words per step. Sketches and filters are sized by estimates.
    """
    sized = [item.choice.form == "sketch" or isinstance(item.choice.index, BloomIndex) for item in choices]
    return max((cost for cost, is_sized in zip(costs.tolist(), sized, strict=True) if is_sized), default=0.0)


def require_names(option: str, names: Collection[str]) -> None:
    """Raise InvalidRequestError unless `names` is a collection of strings and not a single string."""
    if isinstance(names, str):
        raise InvalidRequestError(f"{option}: {names!r} is a string; give a collection, e.g. [{names!r}]")
    for name in names:
        if not isinstance(name, str):
            raise InvalidRequestError(
                f"{option}: {name!r} is not a name; give strings ('0', '1', ... for a list of tensors)"
            )
