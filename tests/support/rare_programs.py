"""Changes of compiled programs to what p4c seldom or never writes, and frames for them."""

import struct

from unrolled_lanes import expression, number


def with_declared_length(document, empty=0):
    """Declare the varbit's width, 8 bits times `first`, with the header, as compilers of P4_14 did.

    empty: the number of fields of 0 bits before `first`, which are added to the width.
    """
    width = expression("*", {"type": "local", "value": empty}, number(8))
    for place in range(empty):
        width = expression("+", width, {"type": "local", "value": place})
    kind = next(item for item in document["header_types"] if item["name"] == "options_h")
    kind["fields"][:0] = [[f"nothing{place}", 0, False] for place in range(empty)]
    kind["length_exp"] = width
    for state in document["parsers"][0]["parse_states"]:
        for item in state["parser_ops"]:
            if item["op"] == "extract_VL":
                item["op"] = "extract"
                del item["parameters"][1:]
    return document


def option_frames(rng):
    """Yield frames of variable.p4 whose two declarations of the varbit's width agree."""
    for first in (*range(10), 15):
        options = ((first << 8 * first | rng.getrandbits(8 * first)) << 4 | rng.choice([5, 7])).to_bytes(
            1 + first, "big"
        )
        yield struct.pack(">BBHHI", 8, 1, 8 * first, 0, 0) + b"\0" + options + b"\1x" + rng.randbytes(90)
    yield struct.pack(">BBHHI", 0, 0, 64, 0, 0) + b"\x80ab"


def with_deparser(document, *primitives):
    """Give a program's deparser statements, with their parameters."""
    document["deparsers"][0]["primitives"] = [
        {"op": op, "parameters": list(parameters)} for op, *parameters in primitives
    ]


#: A statement that writes a line to the log.
LOGS = ("log_msg", {"type": "string", "value": "leaves"}, {"type": "parameters_vector", "value": []})
