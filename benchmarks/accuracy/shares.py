"""Divide training examples among workers: alike, by label, or by a Dirichlet distribution of labels.

The last is that of Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification" (arXiv 1909.06335): a small alpha gives each worker few labels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
IID, BY_LABEL = "iid", "label"
LEAST_ALPHA, MOST_ALPHA = 0.01, 1000.0


class SharesError(ValueError):
    """Shares that cannot be made. The message names field, value and remedy in one line."""


def divide(labels: Numbers, workers: int, shares: str, seed: int) -> list[Numbers]:
    """Return each worker's examples, as numbers into labels[n]. Every example is in exactly one share.

    shares: "iid" draws them at random, "label" sorts them by label first, and an alpha draws each label's
    division from a Dirichlet distribution. Raises SharesError for other shares, and for an empty share.
    """
    rng = np.random.default_rng([seed, 1])
    order = rng.permutation(labels.size)
    if shares == IID:
        divided = [order[worker::workers] for worker in range(workers)]
    elif shares == BY_LABEL:
        divided = np.array_split(order[np.argsort(labels[order], kind="stable")], workers)
    else:
        alpha, parts = _alpha(shares), list[list[Numbers]]()
        for label in np.unique(labels):
            examples = order[labels[order] == label]
            cuts = np.rint(np.cumsum(rng.dirichlet([alpha] * workers)) * examples.size).astype(np.int64)
            parts.append(np.split(examples, cuts[:-1]))
        divided = [np.concatenate(share) for share in zip(*parts, strict=True)]
    for worker, share in enumerate(divided):
        if not share.size:
            raise SharesError(
                f"shares: {shares} leaves worker {worker} without examples; "
                "use fewer workers, or a larger alpha"
            )
    return divided


def _alpha(shares: str) -> float:
    """Return the alpha that a text is. Raises SharesError if it is none."""
    try:
        alpha = float(shares)
    except ValueError:
        raise SharesError(f"shares: {shares!r} is unknown; use iid, label, or an alpha such as 0.5") from None
    if not LEAST_ALPHA <= alpha <= MOST_ALPHA:
        raise SharesError(f"shares: alpha {alpha:g} is out of range; use {LEAST_ALPHA:g} to {MOST_ALPHA:g}")
    return alpha
