"""The choice of a form for each tensor: as the user says, or from densities that all workers have seen.

It decides from agreed values only, so that every worker decides alike without asking.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, get_args

from peelsum.allreduce.errors import InvalidRequestError
from peelsum.allreduce.plan import FORMS, Form

RequestedForm = Literal["dense", "compact", "sketch", "auto"]
#: A bitmap costs one bit per element of 32 bits.
_INDEX_COST = 1 / 32
#: Compact must promise to halve the words: it takes one more exchange than it saves on small tensors.
_WORTHWHILE = 1 / 2


class FormChooser:
    """Forms of tensors by name.

    `forms` is one form for all tensors, or a form per name; a name that is not in it is `auto`. An `auto`
    tensor starts out dense, or compact if it is named in `sparse`; afterwards it is compact while the union
    of its non-zeros promises to be worth an index. Raises InvalidRequestError for a form that is none.
    """

    def __init__(
        self, forms: RequestedForm | Mapping[str, RequestedForm] = "auto", sparse: Collection[str] = ()
    ) -> None:
        self._forms = {} if isinstance(forms, str) else dict(forms)
        self._default: RequestedForm = forms if isinstance(forms, str) else "auto"
        for name, form in [("every tensor", self._default), *self._forms.items()]:
            if form not in get_args(RequestedForm):
                known = ", ".join(get_args(RequestedForm))
                raise InvalidRequestError(f"forms: {form!r} for {name} is unknown; use one of {known}")
        self._sparse = frozenset(sparse)
        self._density: dict[str, float] = {}

    def choose(self, name: str) -> Form:
        """The form of a tensor in the coming step."""
        requested = self._forms.get(name, self._default)
        if requested in FORMS:
            return requested
        if name in self._density:
            return "compact" if self._density[name] + _INDEX_COST < _WORTHWHILE else "dense"
        return "compact" if name in self._sparse else "dense"

    def wants_density(self, name: str) -> bool:
        """Whether a tensor's form depends on its density."""
        return self._forms.get(name, self._default) == "auto"

    def learn(self, name: str, density: float) -> None:
        """Take note of a tensor's density, one that all workers know."""
        self._density[name] = density
