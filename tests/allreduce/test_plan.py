"""Workers whose plans differ all raise the same error, in any step; forms follow from agreed values."""

import math

import numpy as np
import pytest
from patience import PATIENCE_S

from peelsum.allreduce import (
    Allreduce,
    Choice,
    InvalidRequestError,
    NetworkModel,
    Plan,
    PlanMismatchError,
    TensorPlan,
    costs,
)
from peelsum.allreduce.indexes import UnionCounts
from peelsum.allreduce.plan import FORMS, PlanSettings, agreed, agreement_words
from peelsum.codec import CodecError

ONES = np.ones((4, 5), np.float32)

DIFFERENT = {
    "shape": {"g": np.ones((5, 4), np.float32)},
    "length": {"g": np.ones((40, 50), np.float32)},
    "dtype": {"g": np.ones((4, 5), np.float64)},
    "name": {"h": ONES},
    "more tensors": {"g": ONES, "h": ONES},
    "no tensors": {},
}


@pytest.mark.parametrize("odd", DIFFERENT.values(), ids=DIFFERENT.keys())
@pytest.mark.parametrize("steps_before", [0, 2])
@pytest.mark.parametrize(("form", "sent"), [("dense", "dense"), ("sparse", "sketch")])
def test_every_worker_raises(make_workers, odd, steps_before, form, sent):
    group = make_workers(3, forms=form, values="sketch", timeout_s=PATIENCE_S)
    for _ in range(steps_before):
        group.sum([{"g": ONES}] * 3)
    failures = group.failures([{"g": ONES}, odd, {"g": ONES}])
    assert [type(failure) for failure in failures] == [PlanMismatchError] * 3
    assert f"'g' float32[4, 5] {sent}" in str(failures[0])
    assert "worker 2 has" in str(failures[2])
    assert "\n" not in str(failures[1])


@pytest.mark.parametrize(
    "setting",
    [
        {"seed": 1},
        {"forms": "sparse"},
        {"average": True},
        {"cells_per_candidate": 2.0},
        {"values": "sketch"},
        {"network": NetworkModel(gbps=100.0)},
    ],
)
def test_settings_are_part_of_the_plan(make_workers, setting):
    group = make_workers(2, timeout_s=PATIENCE_S)
    group.reduces[1] = Allreduce(group.summations[1], **setting)
    assert [type(failure) for failure in group.failures([{"g": ONES}] * 2)] == [PlanMismatchError] * 2


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("steps_before", [1, 3])
def test_a_worker_that_counts_steps_from_0_again_stops_all(make_workers, form, steps_before):
    """A sketch's layout depends on the step, so one worker's new Allreduce would add to the wrong cells."""
    group = make_workers(3, forms=form, timeout_s=PATIENCE_S)
    for _ in range(steps_before):
        group.sum([{"g": ONES}] * 3)
    group.reduces[1] = Allreduce(group.summations[1], forms=form)
    failures = group.failures([{"g": ONES}] * 3)
    assert [type(failure) for failure in failures] == [PlanMismatchError] * 3
    assert f"in step {steps_before + 1}; " in str(failures[0])
    assert "in step 1; " in str(failures[1])


def test_after_a_failure_nothing_is_summed(make_workers):
    group = make_workers(2)
    group.failures([{"g": ONES}, {"h": ONES}])
    for failure in group.failures([{"g": ONES}] * 2):
        assert isinstance(failure, InvalidRequestError)
        assert "start again with a new summation" in str(failure)


def test_what_is_asked_for_no_tensor_is_refused_by_all(make_workers):
    asked = {"g": "dense", "h": "dense"}
    for failure in make_workers(2, forms=asked).failures([{"g": ONES, "i": ONES}] * 2):
        assert isinstance(failure, InvalidRequestError)
        assert str(failure).startswith("forms: 'h' is not a tensor; there are 'g', 'i'; correct it")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"forms": {"g": "zip"}}, "forms: 'zip' for g is unknown; use one of dense, sparse, auto"),
        ({"values": "raw"}, "values: 'raw' is unknown; use one of compact, sketch, auto"),
        (
            {"cells_per_candidate": 0.0},
            "cells_per_candidate: 0.0 is not positive and finite; use 1.3 or more",
        ),
        ({"names": "g"}, "names: 'g' is a string; give a collection, e.g. ['g']"),
        ({"names": [0]}, "names: 0 is not a name; give strings ('0', '1', ... for a list of tensors)"),
        (
            {"forms": {0: "dense"}},
            "forms: 0 is not a name; give strings ('0', '1', ... for a list of tensors)",
        ),
        ({"forms": ["dense"]}, "forms: ['dense'] is not a form; give one for all, or a dict by name"),
        ({"average": 3}, "average: 3 is not a bool; use True or False"),
        (
            {"forms": "compact"},
            "forms: 'compact' for every tensor was removed; write 'sparse', with values='compact'",
        ),
        (
            {"forms": {"g": "sketch"}},
            "forms: 'sketch' for g was removed; write 'sparse', with values='sketch'",
        ),
        ({"index": "bloom"}, "index: was removed; leave it out: the index of every tensor is the cheapest"),
    ],
    ids=str,
)
def test_settings_of_another_kind_are_refused_at_once(make_workers, setting, message):
    with pytest.raises((InvalidRequestError, CodecError)) as raised:
        make_workers(1, **setting)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("gbps", 0.0), ("gbps", -1.0), ("gbps", math.nan), ("gbps", "10")),
        *(("round_trip_s", -1.0), ("round_trip_s", math.inf), ("round_trip_s", None)),
    ],
)
def test_impossible_networks_are_refused_at_once(field, value):
    with pytest.raises(InvalidRequestError, match=f"^{field}: {value!r} is not a .*; use "):
        NetworkModel(**{field: value})


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"g": np.ma.masked_array(ONES, ONES > 0)},
            "tensors: 'g' is a masked array; fill in its masked elements, e.g. with .filled(0)",
        ),
        ({"\ud800": ONES}, r"tensors: '\ud800' cannot be written in UTF-8; rename it"),
        ({1: ONES, "1": ONES}, "tensors: '1' names two tensors; give every tensor its own name"),
    ],
    ids=["masked", "surrogate", "alike"],
)
def test_tensors_that_would_be_taken_for_others_are_refused(make_workers, tensors, message):
    (failure,) = make_workers(1).failures([tensors])
    assert isinstance(failure, InvalidRequestError)
    assert str(failure) == message


def test_what_numpy_does_not_take_is_refused_before_anything_is_sent(make_workers):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    group = make_workers(1)
    given = {
        "Got unsupported ScalarType BFloat16": torch.ones(3).bfloat16(),
        "Can't call numpy() on Tensor that requires grad": torch.ones(3, requires_grad=True),
        "can't convert Sparse layout tensor to numpy": torch.ones(3).to_sparse(),
        "can't convert meta device type tensor to numpy": torch.ones(3, device="meta"),
        "The requested array has an inhomogeneous shape": [[1.0], [1.0, 2.0]],
    }
    for reason, tensor in given.items():
        with pytest.raises(InvalidRequestError) as raised:
            group.reduces[0].sum({"soft": tensor})
        message = str(raised.value)
        assert message.startswith("tensors: 'soft': NumPy does not take it (")
        assert reason in message
        assert message.endswith(
            "; give an array of float32 or float16, or the bits of bfloat16 in peelsum.codec.BFloat16"
        )
    (result,) = group.sum([{"soft": torch.ones(3)}])
    assert result["soft"].values.tolist() == [1, 1, 1]


def test_digests_agree_exactly_when_equal():
    rng = np.random.default_rng(0)
    digests = [int.from_bytes(rng.bytes(8)) for _ in range(50)]
    for one in digests:
        for flipped in (one ^ 1 << int(rng.integers(64)), int(digests[0])):
            joined = agreement_words(one) | agreement_words(flipped)
            assert agreed(joined) == (one == flipped)


def test_digest_is_the_same_in_every_process():
    plan = Plan((TensorPlan("g", (2, 3), "float32", Choice("dense")),), 4, 256, PlanSettings())
    assert f"{plan.digest:#018x}" == "0x7977f5c63374eee7"
    assert str(plan) == "0x7977f5c63374eee7 (sum over 4 workers of 'g' float32[2, 3] dense)"


class AllCandidates:
    """A backend that sets every bit of the indexes of 33 elements, and of those that fill up their row."""

    lanes, workers, worker_id = 256, 1, 0

    def sum_words(self, parts):
        sums = [part.words.copy() for part in parts]
        for part, words in zip(parts, sums, strict=True):
            if part.op == "or" and part.check is None:
                words[-2:] = 0xFFFFFFFF
        return sums


@pytest.mark.parametrize("implementation", ["reference", "cpu"])
@pytest.mark.parametrize("values", ["compact", "sketch"])
def test_bits_of_an_index_where_no_elements_are(implementation, values):
    reduce = Allreduce(AllCandidates(), forms="sparse", values=values, implementation=implementation)
    own = np.arange(33, dtype=np.float32)
    result = reduce.sum({"g": own})["g"]
    assert result.index == "bitmap"
    np.testing.assert_array_equal(result.values, own)
    np.testing.assert_array_equal(result.positions, np.arange(33))


def test_only_some_forms_travel_with_the_index():
    seen = UnionCounts.uniform(100_000, 0.01)
    for one_round, forms in ((False, set(FORMS)), (True, {"dense", "sketch"})):
        found = costs.cost_estimates(100_000, seen, PlanSettings(), one_round=one_round)
        assert {one.choice.form for one in found} == forms
