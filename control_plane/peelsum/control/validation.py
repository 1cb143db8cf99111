"""Turn pydantic's validation errors into one line for a description's author."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

#: How similar a name must be to be proposed for an unknown one: `gbp` for `gbps`, not `worker` for `network`.
_SIMILAR = 0.66
#: The bound of each kind of range error: its name in pydantic's context, and how to stay within it.
_RANGES = {
    "greater_than": ("gt", "more than {}"),
    "greater_than_equal": ("ge", "{} or more"),
    "less_than": ("lt", "less than {}"),
    "less_than_equal": ("le", "{} or less"),
}


def first_validation_error(error: ValidationError, of: str, model: type[BaseModel]) -> str:
    """Return the first validation error as `field: value: remedy`.

    An unknown name comes first: if it is misspelled, the right name is also reported as missing.
    of: what is described, e.g. 'a topology'; model: what the description was checked against.
    """
    problems = error.errors(include_url=False)
    problem = next((found for found in problems if found["type"] == "extra_forbidden"), problems[0])
    where = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    match problem["type"]:
        case "missing":
            return f"{where}: is missing; add it"
        case "extra_forbidden":
            fields = _fields(model, problem["loc"][:-1])
            near = get_close_matches(str(problem["loc"][-1]), fields, 1, _SIMILAR)
            remedy = f"call it {near[0]!r}" if near else f"use one of {', '.join(fields)}"
            return f"{where}: is not a field of {of}; {remedy}, or remove it"
        case kind if kind in _RANGES:
            name, remedy = _RANGES[kind]
            bound = str(problem["ctx"][name]).removesuffix(".0")
            return f"{where}: {problem['input']!r} is out of range; use {remedy.format(bound)}"
        case "value_error" if not where:
            return message
        case "string_pattern_mismatch":
            message = "must be host:port, as 127.0.0.1:9559"
        case "model_type" | "model_attributes_type" | "dict_type":
            message = "must be a table, in JSON an object" + ("" if where else f", with the fields of {of}")
        case "tuple_type":
            message = "must be a list"
        case "too_short":
            message = f"must list at least {problem['ctx']['min_length']}"
        case "too_long":
            most, listed = problem["ctx"]["max_length"], len(problem["input"])
            return f"{where}: lists {listed}; list at most {most}"
    prefix = f"{where}: " if where else ""
    return f"{prefix}{problem['input']!r}: {message[0].lower()}{message[1:]}"


def _fields(model: type[BaseModel], where: Sequence[str | int]) -> list[str]:
    """Return the field names of the table at path `where` of a description."""
    found: list[type[BaseModel]] = [model]
    for step in where:
        fields = found[0].model_fields
        if str(step) in fields:  # otherwise a key of a mapping or an index of a list
            found = _models(fields[str(step)].annotation)
        if not found:
            return []
    return list(found[0].model_fields)


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the models in a type such as `dict[str, Host]` or `Host | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models(argument)]
