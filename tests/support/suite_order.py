"""Which tests come first, and which parameters of a `covering` test are slow."""

import pytest
from covering import covering

#: Folders whose tests start the most processes. They begin, so that nothing long is left at the end.
DEAR = (
    *("benchmarks", "torch", "cli", "training", "topology", "bench", "scenarios"),
    *("allreduce", "codec", "control"),
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Dear folders first; a `covering` test's parameters that are not chosen are slow."""
    order = {config.rootpath / "tests" / folder: place for place, folder in enumerate(DEAR)}
    items.sort(key=lambda item: order.get(item.path.parent, len(DEAR)))
    by_function = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("covering"):
            by_function.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for matrix in by_function.values():
        (strength,) = matrix[0].get_closest_marker("covering").args
        # Items share the objects that are their parameters, which need not be comparable.
        rows = [[id(value) for value in item.callspec.params.values()] for item in matrix]
        chosen = set(covering(rows, strength))
        for number, item in enumerate(matrix):
            if number not in chosen:
                item.add_marker("slow")
