"""Every form of the sparse vector's numbers has a case everywhere, or an import fails."""

from __future__ import annotations

from typing import get_args

import pytest

from peelsum.allreduce import RequestedValues, choosing, costs, exchange
from peelsum.allreduce.plan import AHEAD, FORMS, Settings, by_form


@pytest.mark.parametrize("odd", ["pairs", "sketch"])
def test_a_table_without_a_form_or_with_another_is_an_error_that_names_it(odd):
    table = dict.fromkeys({*FORMS} ^ {odd}, 0)
    with pytest.raises(
        ImportError, match=f"costs: {odd} is not in both the table and the forms dense, compact, sketch"
    ):
        by_form("costs", table)


def test_what_a_user_may_ask_for_is_sent():
    for values in get_args(RequestedValues):
        form = choosing.Chooser(values=values).sparse_form
        assert form == {"auto": "compact"}.get(values, values)


def test_only_some_forms_travel_with_the_index():
    seen = costs.Seen.uniform(100_000, 0.01)
    for ahead, forms in ((False, set(FORMS)), (True, set(AHEAD))):
        found = costs.candidates(100_000, seen, Settings(), ahead=ahead)
        assert {one.choice.form for one in found} == forms


def test_each_form_has_rounds_of_its_own():
    assert exchange._NUMBERS["sketch"] is not exchange._NUMBERS["compact"]
