"""The names of parameters, by which forms, statistics and residuals are found."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary

from peelsum.torch.errors import HookConfigError


class ParameterNames:
    """One name for each live parameter. The name of a deleted parameter can be assigned to another."""

    def __init__(self) -> None:
        self._names: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._owners: dict[str, TensorWeakRef] = {}
        self._unnamed = 0

    @property
    def assigned(self) -> Collection[str]:
        """All names that have been assigned, to live parameters or to deleted ones."""
        return self._owners.keys()

    def items(self) -> list[tuple[str, torch.Tensor]]:
        """Return pairs of name and live parameter, as `assign` takes them."""
        owners = ((name, owner()) for name, owner in self._owners.items())
        return [(name, parameter) for name, parameter in owners if parameter is not None]

    def assign(self, parameters: Iterable[Any]) -> None:
        """Name the parameters of (name, parameter) pairs, replacing earlier names.

        Raises HookConfigError if an item is not such a pair, if another live parameter has the name, and for
        complex parameters.
        """
        for pair in parameters:
            match pair:
                case (str() as name, torch.Tensor() as parameter):
                    pass
                case _:
                    raise HookConfigError(
                        f"names: has a {type(pair).__name__} where a name and its parameter should be; "
                        "give model.named_parameters()"
                    )
            # Two parameters of one name would share sums and residuals.
            if self._owner_id(name) not in (None, id(parameter)):
                gc.collect()  # an unreferenced module can be in cycles
                if self._owner_id(name) not in (None, id(parameter)):
                    raise HookConfigError(
                        f"names: {name!r} names two parameters; prefix it with the names of their modules, "
                        "or delete the module that has it"
                    )
            self._assign(name, parameter)

    def of(self, parameters: Sequence[torch.Tensor]) -> tuple[str, ...]:
        """Return the parameters' names. A parameter without a name becomes "parameter N", N counting up."""
        names = []
        for parameter in parameters:
            # Torch does not annotate it.
            name: str | None = self._names.get(parameter)  # type: ignore[no-untyped-call]
            while name is None:
                candidate = f"parameter {self._unnamed}"
                self._unnamed += 1  # names of deleted modules are not reused
                if candidate not in self._owners:
                    self._assign(candidate, parameter)
                    name = candidate
            names.append(name)
        return tuple(names)

    def _assign(self, name: str, parameter: torch.Tensor) -> None:
        """Give a parameter this name, and free its earlier one. Raises HookConfigError if it is complex."""
        if parameter.is_complex():
            raise HookConfigError(
                f"names: {name!r} is {parameter.dtype}; use its real and imaginary parts as parameters"
            )
        if parameter in self._names:
            del self._owners[self._names[parameter]]
        self._names[parameter] = name
        self._owners[name] = TensorWeakRef(parameter)

    def _owner_id(self, name: str) -> int | None:
        """Return the id of the live parameter that has this name, or None."""
        owner = self._owners[name]() if name in self._owners else None
        return None if owner is None else id(owner)
