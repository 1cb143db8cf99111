"""Generated 64-bit expressions compared with integers of any size, on random trees of operators."""

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from peelsum.softswitch.compiler.emit_expressions import ExactExpressions, Expressions, unsigned
from peelsum.softswitch.errors import UnsupportedConstruct
from peelsum.softswitch.program.operations import Binary, Bool, Const, FieldRef, Ternary, Unary
from peelsum.softswitch.runtime.native import K as MACHINE_K
from peelsum.softswitch.runtime.plain import clamp, shl, shr

FIELDS = {"a": 64, "b": 64, "c": 32, "d": 13, "e": 1}
SIGNED = {"s": 32, "t": 8}
WIDE = {"v": 65, "w": 128}
ALL = FIELDS | SIGNED | WIDE


class Page:
    """The names that expressions need; variables are called like their fields."""

    def __init__(self):
        self.expressions = Expressions(self)

    def constant(self, value):
        return f"K({value})"

    def read(self, ref):
        if ref.field in SIGNED:
            return self.expressions.sign_extended(ref.field, SIGNED[ref.field])
        if ref.field in WIDE:
            return unsigned(self.limb(ref, 0), WIDE[ref.field])
        return unsigned(ref.field, FIELDS[ref.field])

    def limb(self, ref, number):
        if not isinstance(ref, FieldRef) or ref.field not in WIDE:
            return None
        return f"{ref.field}{number}" if number < 2 else "K(0)"


class ExactPage(Page):
    """The names that expressions for the interpreter need: fields of any width are one variable."""

    def __init__(self):
        self.expressions = ExactExpressions(self)

    def read(self, ref):
        if ref.field in SIGNED:
            return super().read(ref)
        return unsigned(ref.field, ALL[ref.field])

    def limb(self, ref, number):
        return None


NAMES = st.sampled_from([FieldRef("h", name) for name in (*FIELDS, *SIGNED, *WIDE)])
MASKS = st.sampled_from([Const((1 << bits) - 1) for bits in (1, 8, 13, 32, 48, 64, 100)])
SHIFTS = st.one_of(st.builds(Const, st.integers(0, 140)), st.just(FieldRef("h", "d")))
CASTS = st.sampled_from(["two_comp_mod", "usat_cast", "sat_cast"])
CAST_WIDTHS = st.builds(Const, st.sampled_from([1, 8, 32, 63, 64]))
NUMBERS = st.deferred(
    lambda: st.one_of(
        NAMES,
        st.builds(Const, st.integers(-(2**33), 2**64 - 1)),
        st.builds(Binary, st.sampled_from(["+", "-", "*", "&", "|", "^"]), NUMBERS, NUMBERS),
        st.builds(Binary, st.just("&"), NUMBERS, MASKS),
        st.builds(Binary, st.sampled_from(["<<", ">>"]), NUMBERS, SHIFTS),
        st.builds(Binary, CASTS, NUMBERS, CAST_WIDTHS),
        st.builds(Unary, st.just("~"), NUMBERS),
        st.builds(Unary, st.just("b2d"), TRUTHS),
        st.builds(Ternary, TRUTHS, NUMBERS, NUMBERS),
    )
)
TRUTHS = st.deferred(
    lambda: st.one_of(
        st.builds(Bool, st.booleans()),
        st.builds(Unary, st.just("d2b"), NUMBERS),
        st.builds(Binary, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), NUMBERS, NUMBERS),
        st.builds(Unary, st.just("not"), TRUTHS),
        st.builds(Binary, st.sampled_from(["and", "or", "==", "!="]), TRUTHS, TRUTHS),
    )
)
VALUES = st.fixed_dictionaries(
    {
        name: st.sampled_from([0, 1, (1 << bits) - 1, 1 << bits - 1]) | st.integers(0, (1 << bits) - 1)
        for name, bits in ALL.items()
    }
)


TRUE = Bool(True)
NEGATIVE = dict.fromkeys(ALL, 0) | {"t": 128, "d": 3}
MARKED = NEGATIVE | {"w": 0x0123456789ABCDEFFEDCBA9876543210}


def meaning(expr, values):
    """Return an expression's value in integers that never wrap, as BMv2 computes it."""

    def of(part):
        return meaning(part, values)

    match expr:
        case Const(value) | Bool(value):
            return value
        case FieldRef(_, name):
            raw, bits = values[name], ALL[name]
            return raw - (1 << bits) if name in SIGNED and raw >> bits - 1 else raw
        case Unary(op, x):
            return {"~": lambda v: ~v, "not": lambda v: not v, "d2b": bool, "b2d": int}[op](of(x))
        case Ternary(condition, if_true, if_false):
            return of(if_true) if of(condition) else of(if_false)
        case Binary("two_comp_mod", left, Const(bits)):
            low = of(left) & (1 << bits) - 1
            return low - (1 << bits) if low >> bits - 1 else low
        case Binary("usat_cast", left, Const(bits)):
            return max(0, min(of(left), (1 << bits) - 1))
        case Binary("sat_cast", left, Const(bits)):
            return max(-(1 << bits - 1), min(of(left), (1 << bits - 1) - 1))
        case Binary("and", left, right):
            return of(left) and of(right)
        case Binary("or", left, right):
            return of(left) or of(right)
        case Binary("<<", left, right):
            return of(left) << min(of(right), 4096)
        case Binary(op, left, right):
            return eval(f"x {op} y", {"x": of(left), "y": of(right)})
    raise AssertionError(expr)


def limbs(values):
    """Return the values by variable: those past 64 bits in limbs."""
    variables = {name: value for name, value in values.items() if name not in WIDE}
    return variables | {f"{name}{n}": values[name] >> 64 * n & (1 << 64) - 1 for name in WIDE for n in (0, 1)}


def machine(text, values):
    """Evaluate the text on unsigned 64-bit numbers that wrap, as machine code does."""

    def clamped(value, low, high):
        return MACHINE_K(clamp(*(int(part.astype(np.int64)) for part in (value, low, high))))

    names = {"K": MACHINE_K, "clamp": clamped, "shl": lambda v, n: v << n if n < 64 else MACHINE_K(0)}
    names["shr"] = lambda v, n: v >> n if n < 64 else MACHINE_K(0)
    with np.errstate(over="ignore"):
        return int(eval(text, names | {name: MACHINE_K(value) for name, value in limbs(values).items()}))


def plain(text, values):
    return eval(text, {"K": int, "clamp": clamp, "shl": shl, "shr": shr, **limbs(values)})


@settings(max_examples=60, deadline=None, derandomize=True)
@given(NUMBERS, VALUES, st.sampled_from([1, 8, 13, 32, 48, 64]))
@example(Binary("<<", FieldRef("h", "t"), Const(3)), NEGATIVE, 32)
@example(Binary("<<", FieldRef("h", "t"), FieldRef("h", "d")), NEGATIVE, 32)
@example(Binary(">>", FieldRef("h", "t"), Const(3)), NEGATIVE, 32)
@example(Binary(">>", FieldRef("h", "t"), FieldRef("h", "d")), NEGATIVE, 32)
@example(Binary(">>", FieldRef("h", "t"), FieldRef("h", "d")), NEGATIVE | {"d": 64}, 32)
@example(Binary(">>", FieldRef("h", "t"), Const(64)), NEGATIVE, 32)
def test_what_is_stored_is_what_integers_of_any_size_give(expr, values, bits):
    page = Page()
    try:
        text, value = page.expressions.truncated(expr, bits), page.expressions.value(expr)
    except UnsupportedConstruct:
        assume(False)
    true = meaning(expr, values)
    assert value.low <= true <= value.high, "the range that the text claims"
    expected = true & (1 << bits) - 1
    assert (plain(text, values), machine(text, values)) == (expected, expected), text


@settings(max_examples=60, deadline=None, derandomize=True)
@given(NUMBERS, TRUTHS, VALUES, st.sampled_from([1, 13, 64, 65, 200]))
@example(Binary(">>", Binary("-", FieldRef("h", "v"), FieldRef("h", "w")), Const(70)), TRUE, NEGATIVE, 64)
@example(
    Binary("sat_cast", Binary("*", FieldRef("h", "w"), FieldRef("h", "t")), Const(100)), TRUE, NEGATIVE, 200
)
@example(Binary("-", FieldRef("h", "a"), Const(1)), TRUE, NEGATIVE | {"a": 0}, 65)
def test_the_interpreter_computes_with_integers_of_any_size(expr, truth, values, bits):
    expressions = ExactPage().expressions
    text, value = expressions.truncated(expr, bits), expressions.value(expr)
    true, names = meaning(expr, values), {"K": int, "clamp": clamp, "min": min, **values}
    assert value.low <= true <= value.high, "the range that the text claims"
    assert eval(text, names) == true & (1 << bits) - 1, text
    assert bool(eval(expressions.condition(truth), names)) == bool(meaning(truth, values))
    limbs_read = [eval(part, names) for part in expressions.limbs(expr, bits)]
    whole = sum(part << 64 * number for number, part in enumerate(reversed(limbs_read)))
    assert whole == true & (1 << bits) - 1


@settings(max_examples=50, deadline=None, derandomize=True)
@given(TRUTHS, VALUES)
@example(Binary("<", Binary("-", FieldRef("h", "e"), Const(1)), FieldRef("h", "d")), NEGATIVE)
@example(
    Binary("<", Binary("+", FieldRef("h", "a"), Const(1)), FieldRef("h", "d")), NEGATIVE | {"a": 2**64 - 1}
)
def test_truth_values_are_those_of_integers_of_any_size(expr, values):
    try:
        text = Page().expressions.condition(expr)
    except UnsupportedConstruct:
        assume(False)
    expected = bool(meaning(expr, values))
    assert (bool(plain(text, values)), bool(machine(text, values))) == (expected, expected), text


#: Of operators that wide numbers have, on one another.
WIDE_NUMBERS = st.deferred(
    lambda: st.one_of(
        st.sampled_from([FieldRef("h", name) for name in (*WIDE, "a", "c")]),
        st.builds(Const, st.integers(0, 2**128 - 1)),
        st.builds(Binary, st.sampled_from(["&", "|", "^"]), WIDE_NUMBERS, WIDE_NUMBERS),
        st.builds(Binary, st.sampled_from(["<<", ">>"]), WIDE_NUMBERS, st.builds(Const, st.integers(0, 140))),
        st.builds(Binary, st.just("&"), st.builds(Unary, st.just("~"), WIDE_NUMBERS), MASKS),
    )
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(WIDE_NUMBERS, WIDE_NUMBERS, VALUES)
@example(Binary(">>", FieldRef("h", "w"), Const(16)), FieldRef("h", "w"), MARKED)
@example(Binary(">>", FieldRef("h", "w"), Const(64)), FieldRef("h", "w"), MARKED)
@example(Binary(">>", FieldRef("h", "w"), Const(100)), FieldRef("h", "w"), MARKED)
@example(Binary("<<", FieldRef("h", "w"), Const(28)), FieldRef("h", "w"), MARKED)
@example(Binary("<<", FieldRef("h", "w"), Const(64)), FieldRef("h", "w"), MARKED)
@example(Binary("^", FieldRef("h", "w"), Const(MARKED["w"])), FieldRef("h", "w"), MARKED)
def test_wide_numbers_limb_by_limb_are_never_refused(expr, other, values):
    page, true = Page(), meaning(expr, values)
    for number in range(4):
        text, expected = page.expressions.limb(expr, number), true >> 64 * number & (1 << 64) - 1
        assert (plain(text, values), machine(text, values)) == (expected, expected), text
    cut = page.expressions.truncated(Binary("&", expr, Const(0xFFFF)), 64)
    assert (plain(cut, values), machine(cut, values)) == (true & 0xFFFF,) * 2
    for operand, op in ((other, "=="), (other, "!="), (expr, "==")):
        text = page.expressions.condition(Binary(op, expr, operand))
        expected = (true == meaning(operand, values)) == (op == "==")
        assert (bool(plain(text, values)), bool(machine(text, values))) == (expected, expected), text


@pytest.mark.parametrize("bits", [Const(0), Const(65), FieldRef("h", "d")])
def test_casts_to_widths_that_there_are_not_are_refused(bits):
    with pytest.raises(UnsupportedConstruct, match="operator usat_cast: to "):
        Page().expressions.value(Binary("usat_cast", FieldRef("h", "a"), bits))
