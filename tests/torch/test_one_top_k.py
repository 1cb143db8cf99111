"""A compressor's name means the same in peelsum.torch, peelsum.compress and the pages."""

import dataclasses
import re
from pathlib import Path

import pytest
from compressors import COMPRESSORS

import peelsum.compress
import peelsum.torch

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["TopK", "RandomK", "Threshold"])
def test_both_packages_export_one_class(name):
    assert getattr(peelsum.torch, name) is getattr(peelsum.compress, name)


def test_elements_compete_within_their_tensor_by_default():
    fields = [
        field.default
        for one in {type(compressor) for compressor in COMPRESSORS.values()}
        for field in dataclasses.fields(one)
        if field.name == "per"
    ]
    assert len(fields) > 10
    assert set(fields) == {"tensor"}


@pytest.mark.parametrize(
    "page", ["reference/compressors.md", "reference/torch.md", "tutorial/train-a-model.md"]
)
def test_pages_give_that_default(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    assert re.search(r'`per="tensor"`, the\s+default|default scope: the elements\s+of\s+each\s+tensor', text)
