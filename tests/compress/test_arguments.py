"""A compressor is declared once: what is missing, taken or out of range is refused in one line."""

import importlib
import re
from typing import Annotated, Literal

import numpy as np
import pytest

import peelsum.compress
from peelsum.allreduce import Allreduce, LocalSummation
from peelsum.compress import (
    DGC,
    QSGD,
    CompressConfigError,
    CompressedSum,
    Compressor,
    Half,
    Int8Blocks,
    PackedIntegers,
    PowerSGD,
    RandomK,
    Single,
    Sparsifier,
    StarTopK,
    Threshold,
    TopK,
    VarTopK,
    registered,
)
from peelsum.compress.arguments import Allowed, Argument


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: TopK(0), "ratio: 0 is not a share; give a number above 0, up to 1"),
        (lambda: TopK(True), "ratio: True is not a share; give"),
        (lambda: TopK("a"), "ratio: 'a' is not a share; give"),
        (lambda: TopK(0.1, sample=-1), "sample: -1 is not a share"),
        (lambda: TopK(0.1, per="layer"), "per: 'layer' is unknown; use 'tensor', 'bucket'"),
        (lambda: TopK(0.1, warm_up_steps=1.5), "warm_up_steps: 1.5 is not a number of steps; give"),
        (lambda: TopK(0.1, momentum=1), "momentum: 1 is out of range; give a number from 0 to below 1"),
        (lambda: TopK(0.1, clip=0), "clip: 0 is not a norm; give a number above 0"),
        (lambda: TopK(0.1, seed=-1), "seed: -1 is not a seed; give an integer from 0 on"),
        (lambda: DGC(0.5), "warm_up_from: 0.25 is below the ratio, 0.5; give at least the ratio"),
        (lambda: RandomK(0.1, seeds="mine"), "seeds: 'mine' is unknown; use 'shared', 'own'"),
        (lambda: VarTopK(float("nan")), "ratio: nan is not a share; give"),
        (lambda: Threshold(float("inf")), "value: inf is not a threshold; give a number above 0"),
        (lambda: QSGD(3), "bits: 3 is unknown; use 2, 4, 8, 16"),
        (lambda: QSGD(4.0), "bits: 4.0 is unknown; use 2, 4, 8, 16"),
        (lambda: QSGD(4, "one"), "norm: 'one' is unknown; use 'two', 'largest'"),
        (lambda: QSGD(4, block=0), "block: 0 is not a number of elements; give an integer from 1 on"),
        (lambda: Int8Blocks(1.5), "block: 1.5 is not a number of elements; give an integer from 1 on"),
        (lambda: Half(per=None), "per: None is unknown; use 'tensor', 'bucket'"),
        (lambda: PackedIntegers(8, 1), "rotate: 1 is unknown; use True, False"),
        (lambda: PowerSGD(0), "rank: 0 is not a rank; give an integer from 1 on"),
        (lambda: TopK(0.1, quantizer=4), "quantizer: 4 is not a Compressor; give one"),
        (lambda: TopK(0.1, quantizer=TopK(0.1)), "is not a quantizer; give e.g. QSGD(4)"),
        (lambda: RandomK(0.1, quantizer=PowerSGD(2)), "is not a quantizer; give e.g. QSGD(4)"),
        (
            lambda: TopK(0.1, quantizer=PackedIntegers(8)),
            "positions of TopK, which are not shared; use e.g. QSGD(4)",
        ),
        (lambda: StarTopK(0.1, quantizer=QSGD(4)), "which are shared; use e.g. PackedIntegers(8)"),
        (
            lambda: StarTopK(0.1, quantizer=PackedIntegers(8, rotate=True)),
            "quantizer: rotate=True needs the positions first; use rotate=False",
        ),
        (lambda: summed(TopK(0.1, momentum=0.9), error_feedback=False), "momentum: 0.9 needs error feedback"),
        (lambda: summed(TopK(0.1, clip=1.0), error_feedback=False), "clip: 1.0 needs error feedback; leave"),
        (lambda: summed(3), "compressor: 3 is not a Compressor; give e.g. TopK(0.01)"),
        (lambda: summed(TopK(0.5)).sum({"x": np.zeros(3)}), "tensors: 'x' is float64; give a float32 array"),
        (lambda: summed(TopK(0.5)).sum({"x": np.ma.zeros(3, np.float32)}), "tensors: 'x' is masked; give a"),
        (lambda: summed(TopK(0.5)).sum({1: np.zeros(3, np.float32)}), "tensors: 1 is not a text; give the"),
        (lambda: summed(TopK(0.5), allreduce=sums()), "allreduce: its average is False; give one with True"),
    ],
)
def test_what_cannot_be_used(make, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)) as caught:
        make()
    assert "\n" not in str(caught.value)


def sums():
    return Allreduce(LocalSummation.group(1)[0], average=False)


def summed(compressor, **options):
    return CompressedSum(LocalSummation.group(1)[0], compressor, **options)


def declared(base=Sparsifier, **members):
    """A class that chooses the first element, with these members."""
    usual = {
        "__doc__": "One.",
        "__module__": __name__,
        "name": "first",
        "choose": lambda *_: np.zeros(1, int),
    }
    return type(Compressor)("First", (base,), usual | members)


@pytest.fixture
def _unregistered(monkeypatch):
    monkeypatch.setattr(peelsum.compress.compressor, "_registered", dict(registered()))


@pytest.mark.usefixtures("_unregistered")
@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({"name": None}, "First: name is None; write name = 'my-own', or abstract=True"),
        ({"name": "First one"}, "First: name is 'First one'; write name = 'my-own'"),
        ({"name": "top-k"}, "First: 'top-k' is the name of TopK; give another"),
        ({"__doc__": None}, "First: docstring is missing; declare"),
        ({"choose": Sparsifier.choose}, "First: choose is missing; declare kind and docstring"),
        ({"base": Compressor}, "First: compress is missing; declare kind and docstring"),
        ({"__annotations__": {"n": int}}, "First: n is missing; declare"),
        (
            {"__annotations__": {"n": list[int]}, "n": 1},
            "n: has type list[int]; use int, float, bool, Literal",
        ),
    ],
)
def test_what_is_declared_in_part_is_refused_when_it_is_imported(members, complaint):
    before = dict(registered())
    with pytest.raises((CompressConfigError, TypeError), match=re.escape(complaint)):
        declared(**members)
    assert dict(registered()) == before


@pytest.mark.usefixtures("_unregistered")
def test_a_compressor_of_ones_own():
    own = declared(__annotations__={"n": Annotated[int, Allowed(lambda one: one > 1, "is small")]}, n=2)
    assert own(3) == own(3) != own(4)
    assert repr(own(3)).startswith("First(n=3, per='tensor', ")
    with pytest.raises(CompressConfigError, match="n: 1 is small"):
        own(1)
    assert summed(own(3)).sum({"x": np.float32([5, 6])})["x"].values.tolist() == [5, 0]
    assert registered()["first"] is own
    assert registered()["first"] is not declared()


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (int, "3", 3),
        (float, "0.5", 0.5),
        (bool, "true", True),
        (Literal[2, 4], "4", 4),
        (float | None, "none", None),
        (Annotated[int, Allowed(bool, "")], "1", 1),
    ],
)
def test_texts_of_a_command_line(hint, text, value):
    argument = Argument.of("x", hint)
    assert argument.parsed(text) == value
    argument.check(argument.parsed(text))


def test_texts_that_mean_nothing():
    for hint, text, complaint in (
        (int, "1.5", "x: '1.5' is not an integer; write an integer"),
        (float, "much", "x: 'much' is not a number; write a number"),
    ):
        with pytest.raises(CompressConfigError, match=complaint):
            Argument.of("x", hint).parsed(text)
    with pytest.raises(CompressConfigError, match="x: 3 is not a Compressor"):
        Argument.of("x", Compressor | None).check(3)
    Argument.of("x", Compressor | None).check(Single())


def test_the_former_name_of_the_strategy_says_what_to_write():
    with pytest.raises(ImportError, match=r"write e\.g\. `from peelsum\.compress import Flexible`"):
        importlib.import_module("peelsum.flexible")
