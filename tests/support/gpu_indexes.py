"""Indexes of sparse tensors for tests that choose them, in place of the cheapest."""

from dataclasses import replace

from peelsum.allreduce.choosing import Chooser
from peelsum.allreduce.indexes import BlockIndex, BloomIndex

#: Every form of an index, refined or not; None: as the chooser has it.
INDEXES = [
    None,
    BlockIndex(8, refined=False),
    BlockIndex(64, refined=True),
    BloomIndex(3, 7, refined=False),
    BloomIndex(4, 9, refined=True),
]


def chosen(monkeypatch, *indexes):
    """Give sparse tensors these indexes in turn, by their sizes, in all steps; None leaves the choice."""
    cheapest = Chooser._find_cheapest

    def choose(self, form, elements, *rest):
        found, index = cheapest(self, form, elements, *rest), indexes[elements % len(indexes)]
        if found.choice.index is None or index is None:
            return found
        return replace(found, choice=replace(found.choice, index=index))

    monkeypatch.setattr(Chooser, "_find_cheapest", choose)
