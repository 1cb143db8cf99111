"""Finds experiments: those of the catalogue by name, a user's own by the path of its file."""

from __future__ import annotations

import hashlib
import sys
import tomllib
import traceback
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from peelsum.experiments.experiment import Experiment, ExperimentError, Sentences

CATALOGUE = Path(__file__).parent / "catalogue"


@dataclass(frozen=True)
class Source:
    """The text of an experiment's file, which makes the experiment wherever it is sent."""

    file: str
    """The file's name, for messages."""
    content: str
    """The file's text."""

    @property
    def digest(self) -> str:
        """The first 12 hexadecimal digits of the text's SHA-256."""
        return hashlib.sha256(self.content.encode()).hexdigest()[:12]


def known() -> list[str]:
    """Return the names of the catalogue's experiments."""
    return sorted(path.stem for path in CATALOGUE.glob("[a-z]*.py"))


def find(name: str) -> Source:
    """Return an experiment's source by its name, or by the path of its file, which ends in .py.

    Raises ExperimentError if there is none.
    """
    name = name if name.endswith(".py") else name.replace("-", "_")
    path = Path(name) if name.endswith(".py") else CATALOGUE / f"{name}.py"
    if not name.endswith(".py") and name not in known():
        raise ExperimentError(f"{name}: is unknown; use one of {', '.join(known())}, or the path of a file")
    try:
        return Source(path.name, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ExperimentError(f"{name}: {reason}; pass the path of an experiment's file") from None


def catalogue() -> list[Experiment]:
    """Return all experiments of the catalogue."""
    return [load(find(name)) for name in known()]


@cache
def load(source: Source) -> Experiment:
    """Return the experiment that a file defines as EXPERIMENT.

    Raises ExperimentError, which names file and field, if the file fails or defines none.
    """
    try:
        module = _module(source)
    except ExperimentError as error:
        raise ExperimentError(f"{source.file}: {error}") from None
    except Exception as error:
        raise ExperimentError(f"{source.file}: {_where(error, source.file)}{_told(error)}") from None
    experiment = vars(module).get("EXPERIMENT")
    if not isinstance(experiment, Experiment):
        raise ExperimentError(f"{source.file}: EXPERIMENT: is {experiment!r}; set it to an Experiment")
    title, _, about = (module.__doc__ or "").partition("\n\n")
    experiment = replace(
        experiment,
        name=experiment.name or Path(source.file).stem,
        title=experiment.title or " ".join(title.split()).rstrip("."),
        about=experiment.about or about,
    )
    taught = _sentences().get(experiment.name)
    return experiment if experiment.sentences or not taught else replace(experiment, sentences=taught)


def _module(source: Source) -> ModuleType:
    """Run a file as a module; import the catalogue's own, as other processes can import it, too."""
    own = CATALOGUE / source.file
    if own.exists() and own.read_text(encoding="utf-8") == source.content:
        return import_module(f"peelsum.experiments.catalogue.{own.stem}")
    module = ModuleType(f"peelsum_experiment_{source.digest}")
    sys.modules[module.__name__] = module  # dataclasses in the file look for their module there
    exec(compile(source.content, source.file, "exec"), vars(module))
    return module


@cache
def _sentences() -> dict[str, Sentences]:
    """Return what runs of the catalogue's experiments taught, by name."""
    found = tomllib.loads((CATALOGUE / "sentences.toml").read_text(encoding="utf-8"))
    return {name: Sentences(**said) for name, said in found.items()}


def _where(error: Exception, file: str) -> str:
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: "
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"line {lines[-1]}: " if lines else ""


def _told(error: Exception) -> str:
    said = error.msg if isinstance(error, SyntaxError) else error
    return f"{type(error).__name__}: {' '.join(str(said).split())}; correct it"
