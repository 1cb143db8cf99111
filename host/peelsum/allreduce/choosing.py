"""Choose form and index of each tensor: the user's, or the cheapest for what all workers saw last.

The choices depend on agreed values only, so every worker makes the same ones. What is known of tensors lies
in arrays, a row for each, because in most steps nothing has changed for any of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.costs import Candidate, NetworkModel, Seen, best_bloom, candidates, scale_block
from peelsum.allreduce.errors import InvalidRequestError
from peelsum.allreduce.indexes import BitmapIndex, BloomIndex
from peelsum.allreduce.plan import NAMED, Choice, Form, Settings, TensorPlan
from peelsum.codec import BLOCK_SIZES

RequestedForm = Literal["dense", "sparse", "auto"]
RequestedValues = Literal["compact", "sketch", "auto"]
#: Unions whose counts differ by less than this part of them get the same choice.
_RESEMBLING = 16
#: From this number of elements on, a tensor is dense only if this share of its elements is not zero.
_LARGE, _DENSE = 2**15, 0.2
#: Arguments of earlier versions in `forms`, with what to write instead.
_REMOVED = {
    "compact": "write 'sparse', with values='compact'",
    "sketch": "write 'sparse', with values='sketch'",
}
DEFAULT_NETWORK = NetworkModel()
#: Tensors of which is known what they had. With more, all is forgotten, on all workers alike.
_KNOWN = 4096
_Counts = NDArray[np.float64]
#: A tensor's name, and its number of elements.
Key = tuple[str, int]


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
        self._forget()

    def _forget(self) -> None:
        self._rows: dict[Key, int] = {}
        self._rows_of: dict[tuple[Key, ...], NDArray[np.int64]] = {}
        #: Unions of the last step and the one before, and that of the last step with a non-zero; and those
        #: for which choices were made: float64[rows, BLOCK_SIZES].
        self._last, self._before, self._filled, self._basis = (np.zeros((0, BLOCK_SIZES)) for _ in range(4))
        self._steps = np.zeros(0, np.int64)
        self._choices: list[Choice | None] = []

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

    def changed(self, keys: tuple[Key, ...]) -> bool:
        """Return whether a tensor's union differs from the one for which it was chosen how to send it."""
        rows = self._rows_of.get(keys)
        if rows is None:
            return True
        fewest, basis = self._fewest(rows), self._basis[rows]
        return bool((np.abs(fewest - basis) * _RESEMBLING > basis).any())

    def choose(self, tensors: Sequence[TensorPlan], settings: Settings) -> tuple[TensorPlan, ...]:
        """Return the tensors' plans for the coming step, with one Bloom filter for all that have one."""
        rows = self._known(tuple(tensor.key for tensor in tensors))
        fewest, chosen = self._fewest(rows), []
        for tensor, row, counts in zip(tensors, rows.tolist(), fewest, strict=True):
            form = self._forms.get(tensor.name, self._default)
            choice, basis = self._choices[row], self._basis[row]
            if choice is None or bool((np.abs(counts - basis) * _RESEMBLING > basis).any()):
                seen = Seen(tuple(counts.tolist())) if self._steps[row] else None
                choice = self._cheapest(form, tensor.elements, seen, settings)
                self._choices[row], self._basis[row] = choice, counts
            chosen.append(tensor if tensor.choice == choice else replace(tensor, choice=choice))
        return tuple(self._sharing(chosen, rows))

    def likely(self, keys: tuple[Key, ...]) -> float:
        """Return the non-zeros of all these tensors' unions in their last steps with any."""
        return float(self._filled[self._known(keys), 0].sum())

    def wanted(self, keys: tuple[Key, ...]) -> NDArray[np.bool_]:
        """Return whether each tensor's next choice depends on where its non-zeros are: bool[tensors]."""
        if not self._forms:
            return np.full(len(keys), self._default != "dense")
        return np.array([self._forms.get(name, self._default) != "dense" for name, _ in keys], np.bool_)

    def learn(self, keys: tuple[Key, ...], finite: NDArray[np.bool_], occupied: _Counts) -> None:
        """Record a step: which tensors were finite, and `Seen.occupied` of each, a row for each tensor."""
        rows = self._known(keys)[finite]
        seen = occupied[finite]
        first = self._steps[rows] == 0
        self._before[rows] = np.where(first[:, np.newaxis], seen, self._last[rows])
        self._last[rows] = seen
        filled = seen[:, 0] > 0
        self._filled[rows[filled]] = seen[filled]
        self._steps[rows] += 1

    def _known(self, keys: tuple[Key, ...]) -> NDArray[np.int64]:
        """Return the rows of tensors, new ones for those that have none."""
        rows = self._rows_of.get(keys)
        if rows is None:
            if len(self._rows_of) == _KNOWN or len(self._rows) + len(keys) > max(_KNOWN, len(keys)):
                self._forget()
            for key in keys:
                self._rows.setdefault(key, len(self._rows))
            self._grow(len(self._rows))
            rows = self._rows_of[keys] = np.array([self._rows[key] for key in keys], np.int64)
        return rows

    def _grow(self, count: int) -> None:
        more = count - len(self._steps)
        if more:
            arrays = (self._last, self._before, self._filled, self._basis)
            grown = (np.concatenate([one, np.zeros((more, BLOCK_SIZES))]) for one in arrays)
            self._last, self._before, self._filled, self._basis = grown
            self._steps = np.append(self._steps, np.zeros(more, np.int64))
            self._choices += [None] * more

    def _fewest(self, rows: NDArray[np.int64]) -> _Counts:
        """Return the unions of the last two steps that have fewer candidates.

        An index that is too small costs an exchange; one that is too large costs words that cannot be saved.
        """
        last, before = self._last[rows], self._before[rows]
        return np.where(last[:, :1] <= before[:, :1], last, before)

    def _cheapest(self, form: RequestedForm, elements: int, seen: Seen | None, settings: Settings) -> Choice:
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

    def _sharing(self, tensors: Sequence[TensorPlan], rows: NDArray[np.int64]) -> Sequence[TensorPlan]:
        """Return the plans with one filter in place of each tensor's own."""
        for refined in (False, True):
            own = [m for m, one in enumerate(tensors) if _has_filter(one, refined)]
            if len(own) < 2:
                continue
            elements = sum(tensors[m].elements for m in own)
            found = float(self._basis[rows[own], 0].sum())
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
