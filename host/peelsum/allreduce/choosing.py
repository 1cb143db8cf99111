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

from peelsum.allreduce.costs import Candidate, NetworkModel, Seen, best_bloom, candidates, scale_block
from peelsum.allreduce.errors import InvalidRequestError
from peelsum.allreduce.history import History, Key
from peelsum.allreduce.indexes import BitmapIndex, BloomIndex
from peelsum.allreduce.plan import NAMED, Choice, Form, Settings, TensorPlan

RequestedForm = Literal["dense", "sparse", "auto"]
RequestedValues = Literal["compact", "sketch", "auto"]
#: From this number of elements on, a tensor is dense only if this share of its elements is not zero.
_LARGE, _DENSE = 2**15, 0.2
#: Arguments of earlier versions in `forms`, with what to write instead.
_REMOVED = {
    "compact": "write 'sparse', with values='compact'",
    "sketch": "write 'sparse', with values='sketch'",
}
DEFAULT_NETWORK = NetworkModel()
#: Choices that are kept: choosing costs more than summing a small tensor.
_KEPT = 1024


class Chooser:
    """The choice of form and index for each tensor, by name.

    `forms` is one form for all tensors, or a dict of forms by name; names that it lacks get `auto`: the form
    that takes the least time over `network`, by formula. In its first step, a tensor of form `auto` or
    `sparse` sends a bit for each element, and its non-zeros. `values` is how all sparse tensors' non-zeros
    are sent. Raises InvalidRequestError for an unknown form and for names that are not strings.
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
        self._values, self.network = values, network
        #: How the candidates' numbers are sent.
        self.sparse_form: Form = "sketch" if values == "sketch" else "compact"
        self.history = history or History()
        self._cheapest = lru_cache(_KEPT)(self._chosen)

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

    def changed(self, keys: tuple[Key, ...], basis: NDArray[np.float64]) -> bool:
        """Return whether a tensor's union differs from the one for which its form was chosen, of `basis`.

        Another `Allreduce`, or a step with other tensors, may have chosen for another union since.
        """
        history = self.history
        return bool(history.differ(keys).any()) or not np.array_equal(history.basis(keys), basis)

    def choose(self, tensors: Sequence[TensorPlan], settings: Settings) -> tuple[TensorPlan, ...]:
        """Return the tensors' plans for the coming step, with one Bloom filter for all that have one."""
        keys = tuple(tensor.key for tensor in tensors)
        differ = self.history.differ(keys)
        self.history.chosen(tuple(key for key, other in zip(keys, differ.tolist(), strict=True) if other))
        basis = self.history.basis(keys)
        chosen = []
        for tensor, counts in zip(tensors, basis.tolist(), strict=True):
            form = self._forms.get(tensor.name, self._default)
            seen = Seen(tuple(counts)) if counts[0] >= 0 else None
            chosen.append(replace(tensor, choice=self._cheapest(form, tensor.elements, seen, settings)))
        return tuple(_sharing(chosen, basis[:, 0]))

    def wanted(self, keys: tuple[Key, ...]) -> NDArray[np.bool_]:
        """Return whether each tensor's next choice depends on where its non-zeros are: bool[tensors]."""
        if not self._forms:
            return np.full(len(keys), self._default != "dense")
        return np.array([self._forms.get(name, self._default) != "dense" for name, _ in keys], np.bool_)

    def _chosen(self, form: RequestedForm, elements: int, seen: Seen | None, settings: Settings) -> Choice:
        if form == "dense":
            return Choice("dense", scale_block=scale_block(elements, elements))
        if seen is None:
            return Choice(self.sparse_form, BitmapIndex(), scale_block(elements, elements))
        forms: tuple[Form, ...] = (self.sparse_form,)
        if form == "auto" and (elements < _LARGE or seen.candidates >= _DENSE * elements):
            forms = ("dense", self.sparse_form)
        found: Candidate = min(
            candidates(elements, seen, settings, forms), key=lambda one: one.seconds(self.network)
        )
        return found.choice


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
