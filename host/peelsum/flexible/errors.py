"""The error of flexible communication."""


class FlexibleConfigError(ValueError):
    """A value out of range. The message names field, value and remedy in one line."""


def within(name: str, value: float, least: float, most: float) -> None:
    """Raise FlexibleConfigError, which names the field, unless least <= value <= most."""
    if not least <= value <= most:
        raise FlexibleConfigError(f"{name}: {value:g} is out of range; use {least:g} to {most:g}")
