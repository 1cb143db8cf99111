"""The first complaint about a description, in words that its author understands."""

from __future__ import annotations

from pydantic import ValidationError


def first_complaint(error: ValidationError, of: str) -> str:
    """The first problem as `field: value: what would be right`. `of` is what is described: 'a topology'."""
    problem = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    match problem["type"]:
        case "missing":
            return f"{where}: is missing; add it"
        case "extra_forbidden":
            return f"{where}: is no field of {of}; remove it or correct its name"
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
            message = f"must list at most {problem['ctx']['max_length']}"
    prefix = f"{where}: " if where else ""
    return f"{prefix}{problem['input']!r}: {message[0].lower()}{message[1:]}"
