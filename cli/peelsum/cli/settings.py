"""Commands whose options are the fields of settings classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer

from peelsum.options import CommandSettings, OptionError, options_of, take_settings


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command as Typer takes it: options in place of parameters that are settings classes.

    The returned function takes every option by keyword. An OptionError, of an option's value or of the
    command, becomes typer.BadParameter.
    """
    classes: dict[str, type[CommandSettings]] = {}
    parameters: list[Parameter] = []
    for name, parameter in signature(command, eval_str=True).parameters.items():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, CommandSettings):
            classes[name] = kind
            parameters += _parameters(kind)
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

    @wraps(command)
    def run(**values: Any) -> None:
        try:
            settings = {name: take_settings(kind, values) for name, kind in classes.items()}
            command(**settings, **values)
        except OptionError as error:
            raise typer.BadParameter(str(error)) from None

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameters(settings: type[CommandSettings]) -> list[Parameter]:
    """Return a parameter with Typer's annotation for each option of a settings class."""
    hints, options, parameters = get_type_hints(settings), options_of(settings), list[Parameter]()
    for field in fields(settings):
        if field.name not in options:
            continue
        _, option = options[field.name]
        hint, default = hints[field.name], Parameter.empty if field.default is MISSING else field.default
        if option.parse is not None:
            hint, default = (list[str] | None, None) if option.repeated else (str, option.shown(default))
        typer_option = typer.Option(
            *([option.name] if option.name else []),
            help=option.help, metavar=option.metavar, envvar=option.envvar, hidden=option.hidden,
        )  # fmt: skip
        annotation: Any = Annotated[hint, typer_option]
        parameters.append(
            Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    return parameters
