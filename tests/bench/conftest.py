"""Benchmarks write their rows below the folder in which they run: here, one of each test."""

from importlib.util import find_spec

import pytest

#: The import of scikit-learn takes seconds, of every process that collects tests.
collect_ignore = (
    []
    if find_spec("torch") and find_spec("sklearn")
    else ["test_accuracy_in_processes.py", "test_bench_accuracy.py", "test_changing_training.py"]
)


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
