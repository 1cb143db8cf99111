"""Programs that the loader accepts, and constructs that it refuses by name."""

import contextlib
import copy
import json
import random
from pathlib import Path

import pytest
from json_places import places
from random_frames import Generator

from peelsum.softswitch import Frames, SoftswitchError, Switch, load
from peelsum.softswitch.compiler.loading import MOST_PROGRAM_BYTES, parse
from peelsum.softswitch.errors import BadProgram, UnsupportedConstruct

P4 = Path(__file__).parents[1] / "p4"


@pytest.fixture(scope="module")
def router_json():
    return json.loads((P4 / "router.json").read_text())


@pytest.fixture
def document(router_json):
    return copy.deepcopy(router_json)


def pipeline(document, name="ingress"):
    return next(item for item in document["pipelines"] if item["name"] == name)


def table(document, name):
    return next(item for item in pipeline(document)["tables"] if item["name"] == name)


def action(document, name):
    return next(item for item in document["actions"] if item["name"] == name)


@pytest.mark.parametrize(
    ("section", "item", "message"),
    [
        (
            "meter_arrays",
            {"name": "I.police", "rate_count": 3, "source_info": {"filename": "x.p4", "line": 7}},
            r"meter I.police: 3 rates; use two \(line 7 of x.p4\)",
        ),
        ("extern_instances", {"name": "psa"}, "extern instance psa"),
        (
            "learn_lists",
            {"id": 1, "name": "macs", "elements": [{"type": "payload"}]},
            "digest macs: payload: not supported",
        ),
        (
            "field_lists",
            {"name": "kept", "id": 1, "elements": [{"type": "payload"}]},
            "field list kept: holds a payload",
        ),
    ],
)
def test_sections_that_are_not_run_are_refused_by_name(document, section, item, message):
    document.setdefault(section, []).append(item)
    with pytest.raises(UnsupportedConstruct, match=message):
        parse(document, "x")


def acl(document):
    return table(document, "RouterIngress.acl")


def too_large(document):
    acl(document).update(max_size=1 << 40)
    del acl(document)["entries"]


def in_drop(op, *parameters):
    """Return what appends a primitive to an action; parameters are (type, value), or whole."""
    arguments = [
        one if isinstance(one, dict) else dict(zip(("type", "value"), one, strict=True)) for one in parameters
    ]
    step = {"op": op, "parameters": arguments}
    return lambda document: action(document, "RouterIngress.drop")["primitives"].append(step)


def in_state(position, part):
    return lambda document: document["parsers"][0]["parse_states"][position][part][0]


TTL, ONE = ("field", ["ipv4", "ttl"]), ("hexstr", "0x1")


def of(op, left, right):
    """Return an expression of two operands."""
    left, right = ({"type": kind, "value": value} for kind, value in (left, right))
    return "expression", {"op": op, "left": left, "right": right}


REFUSED = [
    (in_drop("assign", TTL, of("rotate", TTL, TTL)), "operator rotate"),
    (in_drop("mirror"), "action RouterIngress.drop: primitive mirror"),
    (
        lambda d: acl(d).update(action_profile="p", source_info={"filename": "x.p4", "line": 7}),
        r"RouterIngress.acl: entries with action profile p: not supported, as in BMv2; .* \(line 7 of x.p4\)",
    ),
    (too_large, "table RouterIngress.acl: size"),
    (lambda d: acl(d)["key"][0].update(match_type="selector"), "acl: match kind selector"),
    (lambda d: d["calculations"][0].update(algo="md5"), "checksum .*: hash md5"),
    (lambda d: in_state(0, "parser_ops")(d).update(op="rewind"), "parser state start: rewind"),
    (
        lambda d: d["deparsers"][0]["primitives"].append({"op": "set", "parameters": []}),
        "deparser: primitive set",
    ),
    (lambda d: d["register_arrays"][0].update(bitwidth=2049), "register RouterIngress.*: 2049 bits"),
    (
        lambda d: d["actions"][0]["runtime_data"].append({"name": "wide", "bitwidth": 1 << 31}),
        "action .* bits",
    ),
    (lambda d: d["header_types"][-1]["fields"].append(["odd", 3, False]), "not whole bytes"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_constructs_are_refused_by_name(document, change, message):
    change(document)
    with pytest.raises(UnsupportedConstruct, match=message):
        parse(document, "x")


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("parsers"),
        lambda d: d["headers"][-1].update(header_type="nowhere"),
        lambda d: d["deparsers"][0]["order"].append("nowhere"),
        lambda d: pipeline(d).update(init_table="nowhere"),
        lambda d: d["parsers"][0].update(init_state="nowhere"),
        in_drop("add_header", ("header", "nowhere")),
        in_drop("resubmit", ("hexstr", "0x9")),
        in_drop("pop", ("header_stack", "nowhere"), ONE),
        in_drop("assign", ("field", ["ipv4", "nowhere"]), ONE),
        in_drop("register_write", ("register_array", "nowhere"), ONE, ONE),
        in_drop("execute_meter", ("meter_array", "nowhere"), ONE, TTL),
        in_drop("generate_digest", ONE, ONE),
        in_drop(
            "log_msg", ("string", "x"), ("parameters_vector", [{"type": "field", "value": ["no", "no"]}])
        ),
        lambda d: acl(d).update(action_profile="nowhere", entries=None),
        lambda d: d.setdefault("header_union_stacks", []).append({"name": "u"}),
        lambda d: d.setdefault("parse_vsets", []).append({"name": "known_vids"}),
    ],
)
def test_a_file_that_does_not_hang_together_is_a_bad_program(document, change):
    change(document)
    with pytest.raises(BadProgram):
        parse(document, "x")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pipelines": 3}', "null", '"text"'])
def test_any_other_file_is_a_bad_program(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(BadProgram):
        load(tmp_path / "x.json")


def test_a_file_that_is_too_large_may_be_written_shorter(tmp_path):
    with (tmp_path / "x.json").open("wb") as file:
        file.truncate(MOST_PROGRAM_BYTES + 1)
    with pytest.raises(BadProgram, match=r"more than 16,777,216 bytes; .* --compact"):
        load(tmp_path / "x.json")


def test_modes_have_names(program_of):
    with pytest.raises(SoftswitchError, match="mode: 'llvm'"):
        Switch(program_of("replicate"), "llvm")


def test_another_version_of_the_format_is_refused(document):
    document["__meta__"]["version"] = [3, 0]
    with pytest.raises(UnsupportedConstruct, match="version"):
        parse(document, "x")


@pytest.mark.parametrize("meta", [True, [], {"version": 2.0}, {"version": {}}])
def test_a_version_that_is_none_is_a_bad_program(document, meta):
    document["__meta__"] = meta
    with pytest.raises(BadProgram, match="incomplete"):
        parse(document, "x")


@pytest.mark.parametrize("bits", [-1, 2049, 1_000_000])
def test_fields_of_more_bits_than_p4c_has_are_refused(document, bits):
    """Writing the code of a field takes time that grows with the square of its bits."""
    kind = next(item for item in document["header_types"] if item["name"] == "ipv4_h")
    kind["fields"][0][1] = bits
    with pytest.raises(UnsupportedConstruct, match=rf"field ipv4_h\..*: {bits} bits; use 1 to 2048"):
        parse(document, "x")


@pytest.mark.parametrize("section", ["register_arrays", "counter_arrays"])
def test_cells_that_no_memory_holds_are_refused(document, section):
    item = next(item for item in document[section] if not item.get("is_direct"))
    item["size"] = 1 << 60
    with pytest.raises(UnsupportedConstruct, match=r"no memory for \d+ cells"):
        Switch(parse(document, "x"), "python")
    item["size"] = -1
    with pytest.raises(BadProgram, match=f"{item['name']}: size -1"):
        parse(document, "x")


@pytest.mark.parametrize("value", [[-8, 8], [0, 0]])
def test_a_lookahead_outside_the_packet_is_a_bad_program(document, value):
    """Machine code would read memory before the packet."""
    (steps,) = (s["parser_ops"] for s in document["parsers"][0]["parse_states"] if s["name"] == "start")
    target = {"type": "field", "value": ["scalars", "tmp_0"]}
    steps.append({"op": "set", "parameters": [target, {"type": "lookahead", "value": value}]})
    with pytest.raises(BadProgram, match=r"lookahead: \d bits after"):
        parse(document, "x")


@pytest.mark.parametrize(
    "step",
    [
        {"op": "shift", "parameters": [-8]},
        {"op": "advance", "parameters": [{"type": "hexstr", "value": "-0x40"}]},
    ],
)
def test_a_parser_that_goes_back_is_a_bad_program(document, step):
    """Machine code would read and write memory before the packet."""
    document["parsers"][0]["parse_states"][0]["parser_ops"].append(step)
    with pytest.raises(BadProgram, match="advances by -8 bytes"):
        parse(document, "x")


@pytest.mark.parametrize("name", ["m\u00b2", "\ufb01", "a b\n#"])
def test_any_name_becomes_one_of_python(document, name):
    """Python refuses the first, a digit to `re`, and takes the second for `fi`."""
    text = json.dumps(document).replace('"tmp"', json.dumps(name))
    switch = Switch(parse(json.loads(text.replace('"ethernet"', json.dumps(name))), "x"), "python")
    assert switch.source.isascii()


def test_branches_nested_too_deeply_are_refused(document):
    conditions = [
        {
            "name": f"deep_{n}",
            "expression": {"type": "bool", "value": True},
            "true_next": f"deep_{n + 1}",
            "false_next": None,
        }
        for n in range(2000)
    ]
    conditions[-1]["true_next"] = "RouterIngress.acl"
    pipeline(document).update(init_table="deep_0")
    pipeline(document)["conditionals"] += conditions
    with pytest.raises(UnsupportedConstruct, match="nested too deeply"):
        parse(document, "x")


def test_a_parser_whose_branches_share_much_code_does_the_same(document):
    """As nested blocks, states that each lead to the next two would need exponentially much code."""
    plain = Switch(parse(document, "x"), "python")
    (parser,) = document["parsers"]
    names = [*(f"step_{n}" for n in range(20)), parser["init_state"], parser["init_state"]]
    for number, name in enumerate(names[:-2]):
        odd = {"type": "hexstr", "value": "0x01", "mask": None, "next_state": names[number + 2]}
        even = {"type": "default", "value": None, "mask": None, "next_state": names[number + 1]}
        key = [{"type": "lookahead", "value": [number, 1]}]
        state = {"name": name, "parser_ops": [], "transition_key": key, "transitions": [odd, even]}
        parser["parse_states"].append(state)
    parser["init_state"] = names[0]
    switch = Switch(parse(document, "x"), "python")
    frames = Frames.of([(1, frame) for frame in Generator(plain, random.Random(1)).frames(50, 0)])
    assert switch.process(frames, 0).pairs() == plain.process(frames, 0).pairs()


def test_a_parser_may_select_on_a_constant(document):
    (parser,) = document["parsers"]
    start = next(state for state in parser["parse_states"] if state["name"] == parser["init_state"])
    start["transition_key"] = [{"type": "hexstr", "value": "0x0800"}]
    selecting = Switch(parse(document, "x"), "python")
    (only,) = (row for row in start["transitions"] if row["value"] == "0x0800")
    start["transitions"] = [{**only, "type": "default", "value": None}]
    always = Switch(parse(document, "x"), "python")
    frames = Frames.of([(1, frame) for frame in Generator(always, random.Random(1)).frames(50, 0)])
    assert selecting.process(frames, 0).pairs() == always.process(frames, 0).pairs()


def test_a_varbit_may_be_as_long_as_a_jumbo_frame():
    document = json.loads((P4 / "variable.json").read_text())
    kind = next(item for item in document["header_types"] if item.get("max_length"))
    kind["max_length"] = 9216
    assert max(field.bits for field in parse(document, "x").headers["options"].fields) > 70_000
    kind["max_length"] = 10_000
    with pytest.raises(UnsupportedConstruct, match="bits; use 1 to 73728"):
        parse(document, "x")


def test_a_field_list_keeps_the_fields_beside_a_constant():
    document = json.loads((P4 / "again.json").read_text())
    before = parse(document, "x").field_lists
    document["field_lists"][0]["elements"].append({"type": "hexstr", "value": "0x63"})
    assert parse(document, "x").field_lists == before


def test_what_older_compilers_leave_out_means_the_same(document):
    """They write no types of transitions and, for P4_14, no numbers of a table's actions."""
    whole = parse(copy.deepcopy(document), "x")
    for state in document["parsers"][0]["parse_states"]:
        for transition in state["transitions"]:
            if transition.pop("type") == "default":
                transition["value"] = "default"
    del table(document, "RouterIngress.acl")["action_ids"]
    read = parse(document, "x")
    assert read.parser == whole.parser
    by_name = {made.name: number for number, made in read.actions.items()}
    made = read.ingress.nodes["RouterIngress.acl"]
    assert made.actions == (by_name["RouterIngress.permit"], by_name["RouterIngress.deny"])


ODD_VALUES = [None, -1, 0, 1, 7, 1 << 70, "", "0x", "nowhere", "0xffff", True, 2.5]
ODD_VALUES += [[], [1, 2], {}, {"type": "field"}]


@pytest.mark.parametrize("path", ["p4/variable.json", "p4runtime/p4/externs.json", "p4/again.json"])
def test_programs_with_random_changes_are_refused_or_load(path):
    text = (P4.parent / path).read_text()
    rng = random.Random(path)
    for _ in range(40):
        changed = json.loads(text)
        found = list(places(changed))
        for _ in range(rng.choice([1, 1, 3])):
            container, key = rng.choice(found)
            if rng.random() < 0.3 and isinstance(container, dict):
                container.pop(key, None)
            elif isinstance(container, dict) or key < len(container):
                container[key] = rng.choice([*ODD_VALUES, copy.deepcopy(rng.choice(found)[0])])
        with contextlib.suppress(SoftswitchError):
            Switch(parse(changed, "x"), "python")


def test_the_name_of_a_digest_is_a_string():
    document = json.loads((P4.parent / "p4runtime/p4/externs.json").read_text())
    document["learn_lists"][0]["name"] = {}
    with pytest.raises(BadProgram, match="digest 1: its name is not a string"):
        parse(document, "externs")
