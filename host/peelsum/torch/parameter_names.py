"""The names of parameters, by which forms, statistics and residuals are found."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary

from peelsum.torch.errors import HookConfigError


class ParameterNames:
    """One name for each live parameter. A deleted parameter's name can be given to another."""

    def __init__(self) -> None:
        self._names: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._owners: dict[str, TensorWeakRef] = {}
        self._unnamed = 0

    @property
    def given(self) -> Collection[str]:
        """All names that were given to parameters, live or deleted."""
        return self._owners.keys()

    def pairs(self) -> list[tuple[str, torch.Tensor]]:
        """Return the names and the live parameters, as `give` takes them."""
        owners = ((name, owner()) for name, owner in self._owners.items())
        return [(name, parameter) for name, parameter in owners if parameter is not None]

    def give(self, parameters: Iterable[Any]) -> None:
        """Name the parameters of (name, parameter) pairs, replacing earlier names.

        Raises HookConfigError for anything else, such as a tensor, if another live parameter has one of the
        names, and for complex parameters.
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
            if self._owner(name) not in (None, id(parameter)):
                gc.collect()  # an unreferenced module can be in cycles
                if self._owner(name) not in (None, id(parameter)):
                    raise HookConfigError(
                        f"names: {name!r} names two parameters; prefix it with the names of their modules, "
                        "or delete the module that has it"
                    )
            self._give(name, parameter)

    def of(self, parameters: Sequence[torch.Tensor]) -> tuple[str, ...]:
        """Return the parameters' names; one without a name becomes "parameter N", with the next free N."""
        return tuple(map(self._name_of, parameters))

    def _name_of(self, parameter: torch.Tensor) -> str:
        # Torch does not annotate it.
        name: str | None = self._names.get(parameter)  # type: ignore[no-untyped-call]
        while name is None:
            free = f"parameter {self._unnamed}"
            self._unnamed += 1  # names of deleted modules are not reused
            if free not in self._owners:
                self._give(free, parameter)
                name = free
        return name

    def _give(self, name: str, parameter: torch.Tensor) -> None:
        if parameter.is_complex():
            raise HookConfigError(
                f"names: {name!r} is {parameter.dtype}; use its real and imaginary parts as parameters"
            )
        if parameter in self._names:
            del self._owners[self._names[parameter]]
        self._names[parameter] = name
        self._owners[name] = TensorWeakRef(parameter)

    def _owner(self, name: str) -> int | None:
        """Return the id of the live parameter that has this name, or None."""
        owner = self._owners[name]() if name in self._owners else None
        return None if owner is None else id(owner)
