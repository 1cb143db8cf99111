"""Parsers that end among lanes, as loops over lanes and unrolled."""

import struct

import pytest
from unrolled_lanes import expression, field, number, one_array, stack_of_lanes

from peelsum.softswitch import Frames, Switch
from peelsum.softswitch.compiler.loading import parse


@pytest.mark.parametrize("ending", ["extract", "verify"])
def test_a_parser_that_ends_among_its_lanes_does_nothing_after_them(ending):
    """Lane 2 of 8 is missing, or not 0. A loop over lanes would end there, and the parser go on behind it."""
    document = (stack_of_lanes if ending == "extract" else one_array)(8)
    (state,) = document["parsers"][0]["parse_states"]
    head, *extracts = state["parser_ops"]
    body = [{"op": "set", "parameters": [field("scalars", f"held_{lane}"), number(0)]} for lane in range(8)]
    if ending == "extract":
        body = [step for pair in zip(extracts, body, strict=True) for step in pair]
    else:
        zero = [expression("==", field("lanes", f"v{lane}"), number(0)) for lane in range(8)]
        body = [*extracts, *({"op": "verify", "parameters": [test, number(3)]} for test in zero)]
    after = {"op": "set", "parameters": [field("head", "slot"), number(77)]}
    state["parser_ops"] = [head, *body, after]
    document["actions"][0]["primitives"][1:] = []
    lanes = [0, 0] if ending == "extract" else [0, 0, 1, 0, 0, 0, 0, 0]
    frame = struct.pack(f">{1 + len(lanes)}I", 1, *lanes)
    for roll in (False, True):
        switch = Switch(parse(document, "ending"), "python", roll=roll)
        assert switch.process(Frames.of([(1, frame)]), 0).pairs() == [(1, frame)], roll
