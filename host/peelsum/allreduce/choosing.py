"""Choose form and index of each tensor: the user's, or the cheapest for what all workers saw last.

The choices depend on agreed values only, so every worker makes the same ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.costs import (
    Candidate,
    NetworkModel,
    Seen,
    best_bloom,
    candidates,
    scale_block,
)
from peelsum.allreduce.errors import InvalidRequestError
from peelsum.allreduce.history import History
from peelsum.allreduce.history_loops import AFTER, AHEAD, BASIS_COLUMNS, ESTIMATES
from peelsum.allreduce.indexes import BitmapIndex, BloomIndex
from peelsum.allreduce.levels import Key
from peelsum.allreduce.plan import NAMED, Choice, Form, Settings, TensorPlan
from peelsum.codec import BLOCK_SIZES, FEWEST_CELLS

RequestedForm = Literal["dense", "sparse", "auto"]
RequestedValues = Literal["compact", "sketch", "auto"]
#: Arguments of earlier versions in `forms`, with what to write instead.
_REMOVED = {
    "compact": "write 'sparse', with values='compact'",
    "sketch": "write 'sparse', with values='sketch'",
}
DEFAULT_NETWORK = NetworkModel()
#: Seconds that a codec takes longer for each element of blocks that exceed their scale, as measured on a
#: shared 2-core machine.
_WIDE_S = 1.2e-7
#: From this number of elements on, a tensor is dense only if this share of its elements is not zero: else its
#: blocks hold few values, and their levels change from step to step.
_LARGE, _DENSE = 2**15, 0.2
#: The last columns of a basis: how well steps were as expected.
_FACT_COLUMNS = BASIS_COLUMNS - ESTIMATES * BLOCK_SIZES
#: Choices that are kept: choosing costs more than summing a small tensor.
_KEPT = 1024


class Chooser:
    """The choice of form and index for each tensor, by name.

    `forms` is one form for all tensors, or a dict of forms by name; names that it lacks get `auto`: the form
    that takes the least time over `network`, by formula. In its first step, a tensor of form `auto` or
    `sparse` sends a bit for each element, and its non-zeros.

    `values` is how numbers are sent: "compact" after scales and index; "sketch" as a sketch, if they are
    sparse; "auto" as what takes less time. Other than compact ones, they go ahead, together with scales and
    index, where that takes less time.

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
            _require("forms", form, f" for {name}", RequestedForm)
        _require("values", values, "", RequestedValues)
        self._values, self.network, self.prices = values, network, network.prices
        #: How the candidates' numbers are sent.
        self.sparse_form: Form = "compact" if values == "auto" else values
        self.history = history or History()
        self._cheapest = lru_cache(_KEPT)(self._chosen)
        #: Returns, by the tensors' keys, whether each one's next choice depends on where its non-zeros are:
        #: int64[tensors].
        self.wanted = lru_cache(_KEPT)(self._asked)

    def __str__(self) -> str:
        """Return all settings as text; two choosers with equal text make equal choices."""
        return repr((self._default, sorted(self._forms.items()), self._values, self.network))

    def check(self, names: Collection[str]) -> None:
        """Raise InvalidRequestError if `forms` has a name that is not among `names`."""
        unknown = sorted(set(self._forms) - set(names))
        if unknown:
            known = [repr(name) for name in names]
            if len(known) > NAMED:
                known[NAMED:] = [f"and {len(known) - NAMED} more"]
            raise InvalidRequestError(
                f"forms: {unknown[0]!r} is not a tensor; there are {', '.join(known) or 'none'}; "
                "correct it, or pass all tensors' names as `names` if a call has only some of them"
            )

    def choose(
        self, tensors: Sequence[TensorPlan], settings: Settings
    ) -> tuple[tuple[TensorPlan, ...], bool]:
        """Return the tensors' plans for the coming step, and whether it goes ahead, in one exchange."""
        keys = tuple(tensor.key for tensor in tensors)
        basis = self.history.basis(keys)
        unions = basis[:, :-_FACT_COLUMNS].reshape(len(keys), ESTIMATES, BLOCK_SIZES)
        best, kind = self._candidates(tensors, unions[:, AFTER], settings, ahead=False), AFTER
        counts = zip(tensors, unions[:, AFTER, 0], strict=True)
        known = [count >= 0 for tensor, count in counts if tensor.elements]
        if self._values != "compact" and known and all(known):
            ahead = self._candidates(tensors, unions[:, AHEAD], settings, ahead=True)
            if self._faster(ahead, best, basis[:, -_FACT_COLUMNS:]):
                best, kind = ahead, AHEAD
        chosen = [replace(one, choice=found.choice) for one, found in zip(tensors, best, strict=True)]
        return tuple(_sharing(chosen, unions[:, kind, 0])), kind == AHEAD

    def _candidates(
        self, tensors: Sequence[TensorPlan], unions: NDArray[np.float64], settings: Settings, *, ahead: bool
    ) -> list[Candidate]:
        seen = [Seen(tuple(union)) if union[0] >= 0 else None for union in unions.tolist()]
        return [
            self._cheapest(self._forms.get(one.name, self._default), one.elements, known, settings, ahead)
            for one, known in zip(tensors, seen, strict=True)
        ]

    def _faster(
        self, ahead: Sequence[Candidate], after: Sequence[Candidate], fit: NDArray[np.float64]
    ) -> bool:
        """Return whether a step takes less time ahead. fit: how well each tensor's steps were as expected."""
        missed, again, _ = fit[:, :3].max(axis=0, initial=0.0).tolist()
        misestimates = _misestimate_words(ahead, fit[:, 3 + AHEAD])
        misestimates -= _misestimate_words(after, fit[:, 3 + AFTER])
        wide, network = float(fit[:, 2].sum()), self.network
        exchanges: float = max((one.exchanges for one in after), default=0) - 1 - missed
        more_s = network.seconds(again + misestimates + FEWEST_CELLS * wide, 0) + _WIDE_S * wide
        more_s += 1e-9 * network.codec.ahead_step
        return _seconds(ahead, network) + more_s < _seconds(after, network) + exchanges * network.round_trip_s

    def _asked(self, keys: tuple[Key, ...]) -> NDArray[np.int64]:
        return np.array([self._forms.get(name, self._default) != "dense" for name, _ in keys], np.int64)

    def _chosen(
        self, form: RequestedForm, elements: int, seen: Seen | None, settings: Settings, ahead: bool
    ) -> Candidate:
        sparse: Form = "sketch" if ahead else self.sparse_form
        if seen is None and form != "dense":
            return Candidate(Choice(sparse, BitmapIndex(), scale_block(elements, elements)), elements, 2, 0.0)
        forms: tuple[Form, ...] = ("dense",) if form == "dense" else (sparse,)
        if form == "auto" and seen and (elements < _LARGE or seen.candidates >= _DENSE * elements):
            forms = ("dense", sparse)
        known, codec = seen or Seen.uniform(elements, 1.0), self.network.codec
        found = candidates(elements, known, settings, forms, ahead=ahead, codec=codec)
        return min(found, key=lambda one: one.seconds(self.network))


def _seconds(found: Sequence[Candidate], network: NetworkModel) -> float:
    """Return the seconds of tensors in the codec, and of sending their words at the network's rate."""
    return sum(one.codec_s + network.seconds(one.words, 0) for one in found)


def _misestimate_words(choices: Sequence[Candidate], costs: NDArray[np.float64]) -> float:
    """Return the most words that wrong estimates cost a tensor whose sketch or filter is sized by one.

    costs: each tensor's, in words a step.
    """
    sized = (best.choice.form == "sketch" or isinstance(best.choice.index, BloomIndex) for best in choices)
    return max((cost for cost, by_one in zip(costs.tolist(), sized, strict=True) if by_one), default=0.0)


def _sharing(tensors: Sequence[TensorPlan], candidates: NDArray[np.float64]) -> Sequence[TensorPlan]:
    """Return the plans with one filter in place of each tensor's own; candidates: of each tensor."""
    for refined in (False, True):
        own = [m for m, one in enumerate(tensors) if _has_filter(one, refined)]
        if len(own) < 2:
            continue
        elements, found = sum(tensors[m].elements for m in own), float(candidates[own].sum())
        shared = best_bloom(elements, found, 1.0 if refined else 32.0, refined=refined)
        tensors = [
            replace(one, choice=replace(one.choice, index=shared)) if _has_filter(one, refined) else one
            for one in tensors
        ]
    return tensors


def _has_filter(tensor: TensorPlan, refined: bool) -> bool:
    index = tensor.choice.index
    return isinstance(index, BloomIndex) and index.refined == refined


def require_names(option: str, names: Collection[str]) -> None:
    """Raise InvalidRequestError unless `names` is a collection of strings and not a single string."""
    if isinstance(names, str):
        raise InvalidRequestError(f"{option}: {names!r} is one name; give a collection, e.g. [{names!r}]")
    for name in names:
        if not isinstance(name, str):
            raise InvalidRequestError(
                f"{option}: {name!r} is not a name; give strings ('0', '1', ... for a list of tensors)"
            )


def _require(option: str, value: str, where: str, known: Any) -> None:
    if value not in get_args(known):
        raise InvalidRequestError(
            f"{option}: {value!r}{where} is unknown; use one of {', '.join(get_args(known))}"
        )
