"""The choice of a way to send each tensor: as the user says, or the cheapest by what all workers have seen.

It decides from agreed values only, so that every worker decides alike without asking.
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
#: What a tensor is taken for when its index has to be sized and nothing has been seen of it.
_FIRST_DENSITY = 1 / 64
#: A sketch that waits for the index is larger than the values themselves.
_WITHOUT_PREDICTION: tuple[Form, ...] = ("dense", "compact")
DEFAULT_NETWORK = Network()


class FormChooser:
    """Ways to send tensors, by name.

    `forms` is one form for all tensors, or a form per name; a name that is not in it is `auto`. `index` is
    the form of every index, or `auto`. What is `auto` is what takes the least time over `network` by formula;
    while nothing has been seen of a tensor, it is dense, or compact if named in `sparse`, with a bitmap. With
    `predict`, values that need not wait for the index go with it, by a
    scale and a size predicted from the last step. Raises InvalidRequestError for a form that is none, and for
    names that are not strings.
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
            raise InvalidRequestError(f"forms: {forms!r} is no form; give one for all, or a dict by name")
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
        """All that was asked for: differs where choices may differ."""
        forms, sparse = sorted(self._forms.items()), sorted(self._sparse)
        return repr((self._default, forms, sparse, self._index, self._predict, self._network))

    def check(self, names: Collection[str]) -> None:
        """Raise InvalidRequestError where something was asked for a tensor that is not among `names`."""
        for option, asked in (("forms", self._forms), ("sparse", self._sparse)):
            unknown = sorted(set(asked) - set(names))
            if unknown:
                known = [repr(name) for name in names]
                if len(known) > NAMED:
                    known[NAMED:] = [f"and {len(known) - NAMED} more"]
                raise InvalidRequestError(
                    f"{option}: {unknown[0]!r} is no tensor; there are {', '.join(known) or 'none'}; "
                    "correct it, or give the names of all as `names` if a call has only some of them"
                )

    def choose(self, name: str, elements: int, settings: Settings) -> Choice:
        """How a tensor of so many elements goes in the coming step."""
        seen, form = self._seen.get(name), self._forms.get(name, self._default)
        if form == "dense" and not self._predict:
            return Choice("dense")
        if seen is None:
            return self._first(form, name, elements, settings)
        return self._cheapest(form, elements, seen, settings, predict=self._predict)

    def wants(self, name: str) -> bool:
        """Whether a tensor's non-zeros matter for its next choice, so that they are worth counting."""
        form = self._forms.get(name, self._default)
        return form in ("auto", "sketch") or (form == "compact" and self._index != "bitmap")

    def learn(self, name: str, seen: Seen) -> None:
        """Take note of what all workers know of a tensor."""
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
    """Raise InvalidRequestError unless `names` are strings; one string alone is a slip."""
    if isinstance(names, str):
        raise InvalidRequestError(f"{option}: {names!r} is one name; give a collection, as [{names!r}]")
    for name in names:
        if not isinstance(name, str):
            raise InvalidRequestError(f"{option}: {name!r} is no name; give strings, of a list '0', '1', ...")


def _require(option: str, value: str, where: str, known: Any) -> None:
    if value not in get_args(known):
        raise InvalidRequestError(
            f"{option}: {value!r}{where} is unknown; use one of {', '.join(get_args(known))}"
        )
