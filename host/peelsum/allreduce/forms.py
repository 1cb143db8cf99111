"""Choose form and index of each tensor: the user's, or the cheapest for what all workers saw last.

The choice depends on agreed values only, so every worker makes the same one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, get_args

from peelsum.allreduce.costs import Network, Seen, candidates
from peelsum.allreduce.errors import InvalidRequestError
from peelsum.allreduce.indexes import BitmapIndex
from peelsum.allreduce.plan import FORMS, NAMED, Choice, Form, Settings

RequestedForm = Literal["dense", "compact", "sketch", "auto"]
RequestedIndex = Literal["bitmap", "two_level", "bloom", "auto"]
#: The density assumed to size a tensor's first index.
_FIRST_DENSITY = 1 / 64
#: Without a prediction, a sketch waits for the index and is larger than the compact values: never the best.
_WITHOUT_PREDICTION: tuple[Form, ...] = ("dense", "compact")
DEFAULT_NETWORK = Network()


class FormChooser:
    """The choice of form and index for each tensor, by name.

    `forms` is one form for all tensors, or a dict of forms by name; names that it lacks get `auto`. `index`
    is the form of every index, or `auto`. `auto` takes the least time over `network`, by formula. In a
    tensor's first step `auto` is dense, or, if its name is in `sparse`, compact with a bitmap. With
    `predict`, dense values and sketches are sent with the index, at a scale and size predicted from the last
    step. Raises InvalidRequestError for an unknown form and for names that are not strings.
    """

    def __init__(
        self,
        forms: RequestedForm | Mapping[str, RequestedForm] = "auto",
        sparse: Collection[str] = (),
        *,
        index: RequestedIndex = "auto",
        predict: bool = False,
        network: Network = DEFAULT_NETWORK,
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
        self._seen: dict[str, Seen] = {}

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
        seen, form = self._seen.get(name), self._forms.get(name, self._default)
        if form == "dense" and not self._predict:
            return Choice("dense")
        if seen is None:
            return self._first(form, name, elements, settings)
        return self._cheapest(form, elements, seen, settings, predict=self._predict)

    def wants(self, name: str) -> bool:
        """Return whether the tensor's next choice depends on its non-zeros, so that they must be counted."""
        form = self._forms.get(name, self._default)
        return form in ("auto", "sketch") or (form == "compact" and self._index != "bitmap")

    def learn(self, name: str, seen: Seen) -> None:
        """Record what all workers know about a tensor, for its next choice."""
        self._seen[name] = seen

    def _first(self, form: RequestedForm, name: str, elements: int, settings: Settings) -> Choice:
        if form == "auto":
            form = "compact" if name in self._sparse else "dense"
        if form == "dense":
            return Choice("dense")
        if self._index in ("auto", "bitmap"):
            return Choice(form, BitmapIndex())
        seen = Seen.uniform(elements, _FIRST_DENSITY)
        return self._cheapest(form, elements, seen, settings, predict=False)

    def _cheapest(
        self, form: RequestedForm, elements: int, seen: Seen, settings: Settings, *, predict: bool
    ) -> Choice:
        forms = (form,) if form != "auto" else FORMS if predict else _WITHOUT_PREDICTION
        allowed = (
            one
            for one in candidates(elements, seen, settings, predict=predict, forms=forms)
            if one.choice.index is None or self._index in ("auto", one.choice.index.form)
        )
        return min(allowed, key=lambda one: one.seconds(self._network)).choice


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
