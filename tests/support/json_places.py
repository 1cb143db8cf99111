"""Places in a JSON document, for tests that change one at random."""


def places(node):
    """Yield each container of a JSON document, and the key or index of each item in it."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in list(items):
        yield node, key
        yield from places(value)
