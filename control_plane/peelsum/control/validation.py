"""Turn pydantic's validation errors into one line for the author of a description."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

#: How similar a suggestion must be to an unknown name: `gbps` to `gbp` is, `network` to `worker` is not.
_MIN_SIMILARITY = 0.66
#: For each kind of range error: the bound's name in pydantic's error context, and the remedy.
_RANGES = {
    "greater_than": ("gt", "more than {}"),
    "greater_than_equal": ("ge", "{} or more"),
    "less_than": ("lt", "less than {}"),
    "less_than_equal": ("le", "{} or less"),
}


def first_validation_error(error: ValidationError, of: str, model: type[BaseModel]) -> str:
    """Return the first validation error as text: field, value and remedy.

    An unknown name is preferred: if it is misspelled, pydantic also reports the correct one as missing.
    of: the kind of description, e.g. 'a topology'. model: the class that was validated.
    """
    problems = error.errors(include_url=False)
    problem = next((item for item in problems if item["type"] == "extra_forbidden"), problems[0])
    where = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    match problem["type"]:
        case "missing":
            return f"{where}: is missing; add it"
        case "extra_forbidden":
            fields = _field_names(model, problem["loc"][:-1])
            suggestions = get_close_matches(str(problem["loc"][-1]), fields, 1, _MIN_SIMILARITY)
            remedy = f"call it {suggestions[0]!r}" if suggestions else f"use one of {', '.join(fields)}"
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


def _field_names(model: type[BaseModel], where: Sequence[str | int]) -> list[str]:
    """Return the field names of the section at the path `where` in a description."""
    models: list[type[BaseModel]] = [model]
    for step in where:
        fields = models[0].model_fields
        if str(step) in fields:  # otherwise `step` is the key of a mapping or the index of a list
            models = _models(fields[str(step)].annotation)
        if not models:
            return []
    return list(models[0].model_fields)


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the models in a type such as `dict[str, Host]` or `Host | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models(argument)]
