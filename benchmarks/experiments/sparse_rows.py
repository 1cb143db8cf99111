"""Sparse all-reduces of the process group over the softswitch, beside gloo's.

The tensor is the gradient of a table of ten million rows of 64 floats; every rank has drawn `touched` rows
for each call: all alike, or by a power law, as clicks are. Ranks are processes on this machine, with one
thread each. In every round, each backend runs the same calls, one after the other. Bytes are those of
peelsum's packets, headers included; gloo's are those of the indices and values that it gathers, by formula.
Results are compared with sums of integers that float32 holds exactly.
"""

from __future__ import annotations

from typing import Any

from benchmarks import Experiment, Plot, Series, Size
from benchmarks.experiments.pieces import COMPARED, TimedCall, compared, join, run_ranks, timed_rounds

_ROWS, _WIDTH = 10**7, 64
#: Of the power law by which clicks fall on rows.
_EXPONENT = 1.05
_INDEX_BYTES, _FLOAT_BYTES = 8, 4
DRAWS = ("uniform", "clicks")


def measure(seed: int, draw: str, touched: int, ranks: int, rounds: int, calls: int) -> dict[str, Any]:
    """Measure all-reduces over a star. Raises what a rank raises."""
    by_rank, sent, received = run_ranks(ranks, _rank, draw, touched, rounds, calls, seed)
    made, row_bytes = calls * (rounds + 1), _INDEX_BYTES + _FLOAT_BYTES * _WIDTH
    return {
        "sent_mb": round(sent / 1e6 / made, 4),
        "received_mb": round(received / 1e6 / made, 4),
        "gloo_mb": round((ranks - 1) * by_rank[0]["rows"] * row_bytes / 1e6, 4),
        "union": by_rank[0]["union"],
        **compared(by_rank),
        "wrong": sum(result["wrong"] for result in by_rank),
    }


def _rank(
    rank: int, path: str, seats: list[str], draw: str, touched: int, rounds: int, calls: int, seed: int
) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    groups = join(path, seats, rank)
    gradients = [_gradient(draw, touched, [seed, other]) for other in range(len(seats))]
    expected = torch.stack(gradients).sum(0).coalesce()

    def prepare(by: str) -> TimedCall:
        copies, sums = [gradients[rank].clone() for _ in range(calls)], list[torch.Tensor]()

        def run() -> None:
            sums.append(copies.pop())
            dist.all_reduce(sums[-1], group=groups[by])

        def wrong(_: int) -> int:
            totals = [gradient.coalesce() for gradient in sums]
            return sum(
                int((total.values() != expected.values()).sum())
                if torch.equal(total.indices(), expected.indices())
                else expected.values().numel()
                for total in totals
            )

        return TimedCall(run, wrong)

    result = timed_rounds(groups, rounds, calls, prepare)
    return {**result, "rows": gradients[rank]._nnz(), "union": expected._nnz()}


def _gradient(draw: str, touched: int, seed: list[int]) -> Any:
    """Return a table's gradient, of integers, whose sums float32 and 31-bit fixed point hold exactly."""
    import numpy as np
    import torch

    random = np.random.default_rng(seed)
    uniform, power = random.random(touched), 1 - _EXPONENT
    # For clicks, the inverse of the power law's distribution.
    places = (1 - uniform * (1 - _ROWS**power)) ** (1 / power) - 1 if draw == "clicks" else uniform * _ROWS
    rows = np.unique(places.astype(np.int64))
    values = random.integers(-999, 999, (rows.size, _WIDTH)).astype(np.float32)
    content = torch.from_numpy(rows[None]), torch.from_numpy(values), (_ROWS, _WIDTH)
    return torch.sparse_coo_tensor(*content, is_coalesced=True, check_invariants=False)


def against_gloo(medians: Any) -> str:
    """Return how many of gloo's bytes a rank sends, by the number of ranks."""
    share = {
        ranks: [medians[f"sent_mb@{draw}, {ranks}"] / medians[f"gloo_mb@{draw}, {ranks}"] for draw in DRAWS]
        for ranks in (2, 4)
    }
    least, most = min(share[4]), max(share[4])
    return f"""Of four ranks, each sends {least:.2f} to {most:.2f} of the bytes that it sends with gloo; of
        two, {min(share[2]):.2f} to {max(share[2]):.2f} times as many"""


EXPERIMENT = Experiment(
    measure=measure,
    plots=[
        Plot(
            "bytes",
            x="draw ranks",
            y="sent_mb gloo_mb",
            where={"touched": 10_000},
            kind="bars",
            finding=against_gloo,
            setting="""Sparse all-reduce of 10,000 rows of 64 floats a rank, of ten million. Ours is measured
                over the softswitch, gloo's computed.""",
            ylabel="Bytes that rank 0 sends in a call (MB)",
            names={
                "sent_mb": Series("peelsum", "blue", ours=True),
                "gloo_mb": Series("gloo", "brown"),
                "uniform, 2": "all rows alike, 2 ranks",
                "uniform, 4": "all rows alike, 4 ranks",
                "clicks, 2": "rows by a power law, 2 ranks",
                "clicks, 4": "rows by a power law, 4 ranks",
            },
            height=3.4,
        )
    ],
    columns={
        "sent_mb": "MB that rank 0 sends to the switch in a call",
        "received_mb": "MB that rank 0 gets from the switch in a call",
        "gloo_mb": "MB that rank 0 sends in a call with gloo, by formula, without headers",
        "union": "rows that any rank has",
        **COMPARED,
        "wrong": "elements with another value than an independent sum, over all ranks",
    },
    modelled_columns=("gloo_mb",),
    defaults={"draw": DRAWS},
    sizes={
        "quick": Size([{"touched": 100, "ranks": 2, "rounds": 1, "calls": 1}], 1),
        "usual": Size([{"touched": (100, 10_000), "ranks": (2, 4), "rounds": 5, "calls": 4}], 1),
    },
    ranges={"touched": (1, 10**6), "ranks": (2, 32), "rounds": (1, 1000), "calls": (1, 1000)},
    choices={"draw": DRAWS},
)
