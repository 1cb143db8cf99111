"""Choose form and index of each tensor: the user's, or the cheapest for what all workers saw last.

The choice depends on agreed values only, so every worker makes the same one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np

from peelsum.allreduce.bundle import LARGEST
from peelsum.allreduce.costs import Candidate, NetworkModel, Seen, candidates, with_scales
from peelsum.allreduce.errors import InvalidRequestError
from peelsum.allreduce.group import groupable
from peelsum.allreduce.history import History, kept
from peelsum.allreduce.plan import FORMS, NAMED, Choice, Form, Settings, TensorPlan
from peelsum.allreduce.refinement import Refinement

RequestedForm = Literal[Form, "auto"]
RequestedIndex = Literal["bitmap", "two_level", "bloom", "auto"]
#: The density assumed to size a tensor's first index. It is low because too small an index is refined.
_FIRST_DENSITY = 1 / 1000
#: From this number of elements on, a tensor is sent dense only if this share of its elements is not zero.
_LARGE, _DENSE = 2**15, 0.2
#: Choices of a tensor of one size that are kept, for unions like the ones that they were made for.
_REMEMBERED = 16
#: Sizes of one tensor, and groups of tensors, for which choices are kept.
_SIZES, _GROUPS = 64, 32
#: Share of its elements that sizes the scales of a large tensor of unknown density: blocks of 1,024.
_UNKNOWN_SHARE = 1 / 32
#: Without a prediction, a sketch waits for the index and is larger than the compact values: never the best.
_WITHOUT_PREDICTION: tuple[Form, ...] = ("dense", "compact")
DEFAULT_NETWORK = NetworkModel()
_Choices = deque[tuple[Seen, Choice]]
_WORDS_ONLY = NetworkModel(gbps=1e-6, round_trip_s=0.0)


class FormChooser:
    """The choice of form and index for each tensor, by name.

    `forms` is one form for all tensors, or a dict of forms by name; names that it lacks get `auto`. `index`
    is the form of every first index, or `auto`. `auto` takes the least time over `network`, by formula. In a
    tensor's first step `auto` is dense, or, if its name is in `sparse`, compact. With `predict`, dense values
    and sketches are sent with the index, at a scale and size predicted from past steps. `auto` does so only
    while a prediction that fails would leave the words of all steps within their bound. Raises
    InvalidRequestError for an unknown form and for names that are not strings.
    """

    def __init__(
        self,
        forms: RequestedForm | Mapping[str, RequestedForm] = "auto",
        sparse: Collection[str] = (),
        *,
        index: RequestedIndex = "auto",
        predict: bool = False,
        network: NetworkModel = DEFAULT_NETWORK,
    ) -> None:
        if not isinstance(forms, str | Mapping):
            raise InvalidRequestError(f"forms: {forms!r} is not a form; give one for all, or a dict by name")
        self._forms = {} if isinstance(forms, str) else dict(forms)
        require_names("forms", self._forms)
        require_names("sparse", sparse)
        self._default: RequestedForm = forms if isinstance(forms, str) else "auto"
        for name, form in [("every tensor", self._default), *self._forms.items()]:
            _require("forms", form, f" for {name}", RequestedForm)
        _require("index", index, "", RequestedIndex)
        self._sparse, self._index = frozenset(sparse), index
        self._predict, self._network = predict, network
        self._histories: dict[str, History] = {}
        # The last choices of each tensor, by its elements, and what they were made for. Choosing costs more
        # than summing a small tensor does, and most steps are like one of those before.
        self._chosen: dict[str, dict[int, _Choices]] = {}
        # The same for groups, by the names and sizes of their tensors.
        self._chosen_of_groups: dict[tuple[tuple[str, int], ...], _Choices] = {}

    def __str__(self) -> str:
        """Return all settings as text; two choosers with equal text make equal choices."""
        forms, sparse = sorted(self._forms.items()), sorted(self._sparse)
        return repr((self._default, forms, sparse, self._index, self._predict, self._network))

    def check(self, names: Collection[str]) -> None:
        """Raise InvalidRequestError if `forms` or `sparse` has a name that is not among `names`."""
        for option, asked in (("forms", self._forms), ("sparse", self._sparse)):
            unknown = sorted(set(asked) - set(names))
            if unknown:
                known = [repr(name) for name in names]
                if len(known) > NAMED:
                    known[NAMED:] = [f"and {len(known) - NAMED} more"]
                raise InvalidRequestError(
                    f"{option}: {unknown[0]!r} is not a tensor; there are {', '.join(known) or 'none'}; "
                    "correct it, or pass all tensors' names as `names` if a call has only some of them"
                )

    def choose(self, name: str, elements: int, settings: Settings) -> Choice:
        """Return the choice for a tensor of `elements` elements in the coming step."""
        history, form = self._histories.get(name), self._forms.get(name, self._default)
        if form == "dense" and not self._predict:
            return _only_dense(elements)
        if history is None:
            return self._first(form, name, elements, settings)
        seen = history.fewest
        chosen = kept(self._chosen.setdefault(name, {}), elements, _new_choices, _SIZES)
        if not self._predict:
            for like, choice in chosen:
                if like.resembles(seen):
                    return choice
        found = self._cheapest(form, elements, seen, settings, predict=self._predict)
        if found.choice.prediction and form == "auto" and found.words > history.spare:
            found = self._cheapest(form, elements, seen, settings, predict=False)
        dense = found.choice.form == "dense" and not found.choice.prediction
        if form == "auto" and dense and elements <= LARGEST and seen.candidates < _DENSE * elements:
            # In a group, a tensor costs little more than its non-zeros, which the formulas do not know.
            found = self._cheapest("compact", elements, seen, settings, predict=False)
        chosen.appendleft((seen, found.choice))
        return found.choice

    def grouped(self, tensors: Sequence[TensorPlan], settings: Settings) -> Sequence[TensorPlan]:
        """Return the tensors' plans, with the same index for all that can be exchanged in a group."""
        group = [tensor for tensor in tensors if groupable(tensor)]
        if len(group) < 2:
            return tensors
        members = tuple((tensor.name, tensor.elements) for tensor in group)
        elements = sum(tensor.elements for tensor in group)
        histories = [self._histories.get(tensor.name) for tensor in group]
        seen = _together(
            history.fewest if history else Seen.uniform(tensor.elements, _FIRST_DENSITY)
            for history, tensor in zip(histories, group, strict=True)
        )
        chosen = kept(self._chosen_of_groups, members, _new_choices, _GROUPS)
        choice = next((choice for like, choice in chosen if like.resembles(seen)), None)
        if choice is None:
            found = self._cheapest("compact", elements, seen, settings, predict=False).choice
            choice = replace(found, grouped=True)
            chosen.appendleft((seen, choice))
        return [replace(one, choice=choice) if groupable(one) else one for one in tensors]

    def refinement_of(self, tensors: Sequence[TensorPlan]) -> Refinement:
        """Return what decides how the index of a group of tensors is refined in the coming step."""
        histories = [self._histories[one.name] for one in tensors if one.name in self._histories]
        filled = _together(history.filled for history in histories) if histories else None
        elements = sum(tensor.elements for tensor in tensors)
        likely = filled.candidates if filled else 0.0
        return Refinement(self._network, filled if likely < elements / 2 else None, likely)

    def refinement(self, name: str) -> Refinement:
        """Return what decides how the tensor's index is refined in the coming step."""
        history, network = self._histories.get(name), self._network_of(self._forms.get(name, self._default))
        return history.refinement(network) if history else Refinement(network)

    def _network_of(self, form: RequestedForm) -> NetworkModel:
        """Return the network model for a form. Sketches that wait for the union are not for speed."""
        return self._network if form != "sketch" or self._predict else _WORDS_ONLY

    def wants(self, name: str) -> bool:
        """Return whether the tensor's next choice depends on its non-zeros, so that they must be counted."""
        form = self._forms.get(name, self._default)
        return form in ("auto", "sketch") or (form == "compact" and self._index != "bitmap")

    def learn(self, name: str, elements: int, seen: Seen | None, words: int) -> None:
        """Record a tensor's step: its union, or None if all values were zero, and the words sent."""
        if name not in self._histories:
            self._histories[name] = History(elements)
        self._histories[name].add(seen, words)

    def _first(self, form: RequestedForm, name: str, elements: int, settings: Settings) -> Choice:
        if form == "dense":
            return _only_dense(elements)
        if form == "auto":
            if name not in self._sparse:
                sampled = elements >= _LARGE
                words = elements * _UNKNOWN_SHARE if sampled else elements
                return with_scales(Choice("dense", sampled=sampled), elements, words)
            form = "compact"
        seen = Seen.uniform(elements, _FIRST_DENSITY)
        return self._cheapest(form, elements, seen, settings, predict=False).choice

    def _cheapest(
        self, form: RequestedForm, elements: int, seen: Seen, settings: Settings, *, predict: bool
    ) -> Candidate:
        forms = (form,) if form != "auto" else FORMS if predict else _WITHOUT_PREDICTION
        if form == "auto" and elements >= _LARGE and seen.candidates < _DENSE * elements:
            forms = tuple(one for one in forms if one != "dense")
        allowed = (
            one
            for one in candidates(elements, seen, settings, predict=predict, forms=forms)
            if one.choice.index is None or self._index in ("auto", one.choice.index.form)
        )
        network = self._network_of(form)
        found = min(allowed, key=lambda one: one.seconds(network))
        if (
            form == "auto"
            and elements >= _LARGE
            and found.choice.form == "dense"
            and not found.choice.prediction
        ):
            return replace(found, choice=replace(found.choice, sampled=True))
        return found


def _new_choices() -> _Choices:
    return deque(maxlen=_REMEMBERED)


@lru_cache(1024)  # it is the same in every step
def _only_dense(elements: int) -> Choice:
    return with_scales(Choice("dense"), elements, elements)


def _together(seen: Iterable[Seen]) -> Seen:
    """Return what is known of tensors that lie end to end."""
    counts = np.sum([one.occupied for one in seen], axis=0)
    return Seen(0, tuple(counts.tolist()))


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
