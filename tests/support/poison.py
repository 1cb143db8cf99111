"""Memory poisoned before anyone may write to it: a fixture that conftest.py imports for its whole folder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """np.empty hands out garbage, so that elements and words which nobody writes are found out."""
    honest = np.empty

    def garbage(*args: Any, **kwargs: Any) -> NDArray[Any]:
        array = honest(*args, **kwargs)
        if array.flags.c_contiguous and array.nbytes:
            array.reshape(-1).view(np.uint8)[:] = 0xA5
        return array

    monkeypatch.setattr(np, "empty", garbage)
