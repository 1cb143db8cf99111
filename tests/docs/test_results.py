"""Results files can be read, and every table of a results page has their figures, as far as printed."""

import csv
import json
import re
from functools import partial
from math import log2
from pathlib import Path
from statistics import median

import pytest

from benchmarks.rivals.slot_protocols import ATP_SLOTS
from benchmarks.rivals.sparse_sums import scenario_of

ROOT = Path(__file__).parents[2]
RESULTS, PAGES = ROOT / "benchmarks/results", ROOT / "docs/results"


#: By page and beginning of a table's heading: the cells of its rows, made from the committed rows.
TABLES = {}
#: Tables that other tests compare, and one without figures.
ELSEWHERE = {("training.md", "condition"), ("codec.md", "form | aim")}


def table_of(page, heading):
    """Register the function that yields a table's cells."""

    def register(rows):
        TABLES[page, heading] = rows
        return rows

    return register


def committed(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def select(name, **where):
    """Return the rows of a file with these values."""
    return [row for row in committed(name) if where.items() <= row.items()]


def only(name, **where):
    (row,) = select(name, **where)
    return row


def figures(row, columns):
    """Return a row's values of columns such as `lanes` and `100*density`, which are separated by spaces."""
    parts = [column.rpartition("*") for column in columns.split()]
    return [float(factor) * row[name] if factor else row[name] for factor, _, name in parts]


def tables(page):
    """Yield the heading and the rows of each table of a page."""
    for block in re.findall(r"(?:^\|.*\n?)+", page.read_text(), re.M):
        heading, _, *lines = block.strip().splitlines()
        cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
        yield (
            heading.removeprefix("|").removesuffix("|").strip(" ") if heading[2] != "|" else heading[1:],
            cells,
        )


def shows(cell, expected):
    """Return whether a cell has a text, or figures rounded to as many digits as it prints."""
    if isinstance(expected, str):
        return expected in ("", cell)
    printed = re.findall(r"-?\d[\d,]*(?:\.\d+)?", cell)
    values = [expected] if isinstance(expected, int | float) else list(expected)
    return len(printed) == len(values) and all(
        abs(float(text.replace(",", "")) - value) <= 0.5 * 10.0 ** -len(text.partition(".")[2]) + 1e-9
        for text, value in zip(printed, values, strict=True)
    )


def _switch(name, key):
    for row in committed(name):
        assert row["bmv2"] == "measured"
        latencies = "latency_p50_us latency_p99_us latency_to_bmv2"
        yield figures(row, f"target ports {key} packets_per_s rate_to_bmv2 {latencies}")


table_of("performance.md", "target | ports | lanes")(lambda: _switch("switch", "lanes"))
table_of("performance.md", "target | ports | workers")(lambda: _switch("ports", "workers"))


@table_of("performance.md", "ports | lanes | workers")
def interfaces():
    names = "packets_per_s rate_to_bmv2 latency_p50_us latency_p99_us packets_per_cpu_s"
    for row in select("interfaces", target="softswitch"):
        if row["ports"] != "udp":
            yield figures(row, f"ports lanes workers {names}")


@table_of("performance.md", "what | lanes")
def endpoint():
    names = {"sockets": "endpoint and sockets", "bare": "bare sockets"}
    for row in committed("endpoint"):
        yield names[row["way"]], *figures(row, "lanes packets_per_core_s share_of_bare packets_per_s")


def _transcribed(begin):
    (run,) = (run for command, run in committed("transcribed")["runs"].items() if begin in command)
    assert run["date"]
    assert run["machine"]
    return iter(run["rows"])


table_of("performance.md", "planes | workers")(lambda: _transcribed("--planes"))
table_of("performance.md", "elements | density")(lambda: _transcribed("bench allreduce"))


@table_of("simulation.md", "loss | peelsum")
def loss():
    for share in (0.0, 0.001, 0.005, 0.01, 0.02, 0.05):
        of = partial(only, "simulation_loss", loss=share)
        mine, slow = (of(algorithm="peelsum", timers=timers) for timers in ("quick", "default"))
        pool, atp, ring = (of(algorithm=way) for way in ("switchml", "atp", "ring"))
        assert (ATP_SLOTS, scenario_of(8).slots) == (40_000, 4096)
        cells = (mine["goodput_gbps"], 100 * mine["in_switch"], slow["goodput_gbps"], pool["goodput_gbps"])
        yield 100 * share, *cells, atp["goodput_gbps"], 100 * atp["in_switch"], ring["goodput_gbps"]


@table_of("codec.md", "non-zeros | lower bound, bits")
def size():
    forms = {"sketch": ("bitmap", "bloom"), "lhc": (None,), "lhc_fewest": (None,)}
    for share in (0.001, 0.01, 0.05, 0.2, 0.5):
        entropy = -share * log2(share) - (1 - share) * log2(1 - share)
        points = [{"support": support, "form": "auto"} for support in ("uniform", "rows", "columns")]
        points += [
            {"support": "uniform", "form": form, **({"index": index} if index else {})}
            for form, indexes in forms.items()
            for index in indexes
        ]
        ratios = (only("codec_size", density=share, **point)["over_lower_bound"] for point in points)
        yield 100 * share, 32 * share + entropy, *ratios


@table_of("codec.md", "densities | auto")
def sequences():
    columns = (("words", "auto"), ("default", "auto"), ("words", "sketch"))
    for sequence in dict.fromkeys(row["sequence"] for row in committed("codec_sequence")):
        rows = [only("codec_sequence", sequence=sequence, network=net, way=way) for net, way in columns]
        yield "", *(row["over_lower_bound"] for row in rows), rows[0]["exchanges"], rows[1]["exchanges"]


@table_of("codec.md", "support | cells")
def recovery():
    for row in select("recovery", kind="table"):
        yield figures(row, "support cells lanes 100*lhc 100*ours ours_rounds")


@table_of("codec.md", "elements | non-zeros | LHC")
def speed():
    forms = [("compact", "bitmap"), ("auto", None), ("sketch", "bitmap"), ("sketch", "bloom")]
    for elements in (2**20, 2**22, 2**24, 2**26):
        for share in (0.001, 0.01, 0.05, 0.1, 0.2):
            of = partial(only, "codec", elements=elements, density=share, support="uniform")
            lhc = [of(form=form)["codec_ms"] for form in ("lhc_published", "lhc_best")]
            rows = [of(form=form, **({"index": index} if index else {})) for form, index in forms]
            times = [(row["codec_ms"], 1 / row["time_ratio_to_best"]) for row in rows]
            yield elements, 100 * share, *lhc, *times


table_of("codec.md", "model | step")(lambda: _transcribed("--precision"))


@table_of("training.md", "model | tensor")
def densities():
    tensors = {
        "ncf": ("users.weight", "items.weight", "perceptron.0.weight"),
        "lstm": ("embedding.weight", "softmax.weight", "lstm.weight_hh_l0"),
        "vgg19": ("features.7.weight", "features.34.weight", "classifier.3.weight"),
        "bert": ("words.weight", "positions.weight", "encoder.layers.0.linear1.weight"),
    }
    for model, names in tensors.items():
        rows = {row["tensor"]: row for row in committed("train")[f"peelsum bench densities --model {model}"]}
        for name in (*names, "all"):
            shown_name = "all of it" if name == "all" else f"`{name}`"
            columns = "elements 100*worker 100*union_2 100*union_4 100*union_8"
            yield model, shown_name, *figures(rows[name], columns)


def _iterations():
    """Yield model, rate and the rows by path of each iteration that was measured."""
    for command, rows in committed("train").items():
        if "--gbps" in command:
            name = rows[0]["model"] + (", top 1%" if "--top-k" in command else "")
            for gbps in (0.1, 1, 10):
                yield name, gbps, {row["path"]: row for row in rows if row["gbps"] == gbps}


PATHS = ("switch", "switch-dense", "gloo", "hook-gloo", "fp16")


@table_of("training.md", "model | union")
def bytes_of_a_step():
    for name, gbps, rows in _iterations():
        if gbps == 1:
            sent = (rows[path]["bytes_per_step"] / 1e6 for path in PATHS)
            yield name, 100 * rows["switch"]["density_union"], *sent


def _times(of, over, *first):
    for name, gbps, rows in _iterations():
        switch, gloo = rows["switch"], rows["hook-gloo"]
        ratios = switch[f"{over}_over_dense"], switch[f"{over}_over_gloo"], gloo[f"{over}_over_gloo"]
        yield name, gbps, *(switch[column] for column in first), *(rows[path][of] for path in PATHS), *ratios


table_of("training.md", "model | Gbit/s | computing")(lambda: _times("iteration_ms", "speedup", "compute_ms"))
table_of("training.md", "model | Gbit/s | switch, ms")(lambda: _times("aggregation_ms", "aggregation"))


@table_of("training.md", "sums by | lstm")
def processor_time():
    for path in PATHS:
        cells = []
        for model in ("lstm", "ncf", "bert", "vgg19"):
            begin = f"peelsum bench train --model {model} --cpu"
            runs = [rows for command, rows in committed("train").items() if command.startswith(begin)]
            path_rows = [next(row for row in rows if row["path"] == path) for rows in runs]
            assert len(path_rows) == 3
            shares = [row["cpu_of_gloo"] for row in path_rows]
            ms = median(row["cpu_ms"] for row in path_rows)
            cells.append((ms, median(shares), min(shares), max(shares)) if path != "gloo" else ms)
        yield "", *cells


def _trained(model):
    """Yield the rows of each compressor, which differ in the rate, of a model's table."""
    rows = select("accuracy", model=model, workers=4, shares="iid")
    for compressor in dict.fromkeys(row["compressor"] for row in rows):
        yield [row for row in rows if row["compressor"] == compressor]


@table_of("accuracy.md", "model | data")
def subjects():
    for model in ("digits", "ratings", "text", "transformer", "images"):
        dense, *_ = next(rows for rows in _trained(model) if rows[0]["compressor"] == "dense")
        ends = dense["at_80_percent"], dense["final"]
        # The name of the ratings' metric has a figure of its own.
        yield model, "", "", [10, *ends] if model == "ratings" else ends


def methods(model):
    for rows in _trained(model):
        row, dense = rows[0], rows[0]["compressor"] == "dense"
        columns = "time_s time_spread_s" + ("" if dense else " faster")
        times = ("-" if at["time_s"] is None else figures(at, columns) for at in rows)
        below = "-" if dense or row["faster"] is None else row["pays_below_gbps"] or "never"
        compress = max(at["compress_ms"] for at in rows)
        final = "-" if row["final"] is None else (row["final"], row["final_spread"])
        reached = row["steps_to_target"] or f"{row['reached']} of {row['seeds']} runs"
        sent = row["bytes_per_step"], row["times_less"]
        yield f"`{row['compressor']}`", final, sent, reached, compress, *times, below


for _model, _metric, _target in (
    ("digits", "accuracy", "0.947"),
    ("ratings", "hit rate at 10", "0.65"),
    ("text", "perplexity", "22.9"),
    ("transformer", "perplexity", "19.1"),
    ("images", "accuracy", "0.732"),
):
    _heading = f"method | {_metric} at the end | bytes a step | steps to {_target}"
    table_of("accuracy.md", _heading)(partial(methods, _model))


@table_of("gpu.md", "elements | density")
def gpu_stages():
    for row in committed("gpu")["stages"]:
        rate = row["candidates"] / row["peel_us"] / 1e3
        stages = figures(row, "100*density copy_us index_us numbers_us peel_us")
        yield f"2^{log2(row['elements']):.0f}", *stages, rate, row["results_us"]


@table_of("gpu.md", "tensors | elements of each")
def gpu_buckets():
    for row in sorted(committed("gpu")["buckets"], key=lambda row: (row["tensors"], row["elements"])):
        yield figures(row, "tensors elements tensor_us")


@table_of("gpu.md", "model | parameters")
def gpu_training():
    rows = committed("gpu")["training"]
    for model, name in (("ncf", "NCF"), ("bert", "BERT-base"), ("vgg19", "VGG19")):
        step_ms = {row["sums"]: row["step_ms"] for row in rows if row["model"] == model}
        (parameters,) = {row["parameters"] for row in rows if row["model"] == model}
        yield name, parameters / 1e6, step_ms["ddp"], step_ms["hook, cpu"], step_ms["hook, gpu"]


@table_of("gpu.md", "form | index")
def gpu_codec():
    forms = {
        "lhc_published": "LHC, as published", "lhc_cuda": "LHC, its CUDA program",
        "lhc": "LHC, its best table", "lhc_best": "LHC, its best table",
    }  # fmt: skip
    indexes = {"four_bit": "four bits", "bitmap": "bitmap", "bloom": "Bloom filter"}
    for row in committed("gpu")["codec"]:
        name = forms.get(row["form"], f"`{row['form']}`")
        columns = "bits_per_element encode_gbps decode_gbps codec_ms"
        yield name, indexes[row["index"]], *figures(row, columns)


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.name)
def test_tables_have_the_figures_of_their_rows(page):
    for heading, printed in tables(page):
        keys = [key for key in (*ELSEWHERE, *TABLES) if key[0] == page.name and heading.startswith(key[1])]
        assert len(keys) == 1, heading
        if keys[0] not in ELSEWHERE:
            for cells, row in zip(printed, TABLES[keys[0]](), strict=True):
                differing = [pair for pair in zip(cells, row, strict=True) if not shows(*pair)]
                assert differing == [], heading


def test_the_values_that_a_core_sums_are_those_of_the_rows():
    (page,) = [path for path in (ROOT / "docs/how-to").glob("*.md") if path.stem == "aggregate-on-a-server"]
    (printed,) = [rows for heading, rows in tables(page) if heading.startswith("lanes | UDP ports")]
    for lanes, *cells in printed:
        for ports, cell in zip(("udp", "xdp", "packet"), cells, strict=True):
            many = int(lanes.replace(",", ""))
            row = only("interfaces", target="softswitch", ports=ports, lanes=many, workers=4)
            assert shows(cell, row["packets_per_cpu_s"] * row["lanes"] * 32 / 1e9)


def test_the_map_s_counts_are_those_of_its_rows():
    with (PAGES / "experiments/which_form/rows.csv").open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    guide = " ".join((ROOT / "docs/how-to/choose-a-form.md").read_text().split())
    for level, are in (("virtual", "simulated"), ("links", "measured over links")):
        mine = [row for row in rows if row["level"] == level]
        best = [sum(row["fastest"] == form for row in mine) for form in ("compact", "sketch", "dense")]
        near = sum(float(row["auto_over_fastest"]) <= 1.1 for row in mine)
        assert (
            f"the {len(mine)} points that were {are}, compact is fastest at {best[0]}, a sketch at "
            f"{best[1]}, dense at {best[2]}; `auto`'s form takes at most 1.1 times as long as the fastest at "
            f"{near}."
        ) in guide
