"""Words that go along with the first exchange of a step, and leave what it sums as it is."""

import numpy as np
import pytest

from peelsum.compress.collectives import StepExchanges
from peelsum.summation import Part

OWN = np.array([1, 2, 4], np.uint32)
OTHER = np.array([8, 2, 1], np.uint32)


def words(*values):
    return np.array(values, np.uint32)


def exchanged(exchanges, parts):
    """Results of parts that another worker has, too, with its own words; and the parts as they were sent."""
    sent = []

    def exchange(parts):
        sent.extend(parts)
        results = []
        for part in parts:
            theirs = part.words.copy()
            if theirs[: len(OWN)].tolist() == OWN.tolist():
                theirs[: len(OWN)] = OTHER
            total = part.words | theirs if part.op == "or" else part.words + theirs
            if part.check is not None:
                part.check(total)
            results.append(total)
        return results

    return [one.tolist() for one in exchanges.attach(parts, exchange)], sent


@pytest.fixture
def exchanges():
    made = StepExchanges()
    made.set(OWN)
    return made


def test_they_join_a_first_part_that_is_ored_once(exchanges):
    seen = []
    results, sent = exchanged(exchanges, [Part(words(7, 9), "or", seen.append), Part(words(5), "add")])
    assert results == [[7, 9], [10]]
    assert [one.tolist() for one in seen] == [[7, 9]]
    assert [part.words.size for part in sent] == [5, 1]
    assert exchanges.result().tolist() == (OWN | OTHER).tolist()
    assert exchanged(exchanges, [Part(words(7), "or")])[1][0].words.size == 1
    exchanges.set(None)
    assert exchanges.result() is None


def test_they_go_before_a_first_part_that_is_added_and_wait_for_one(exchanges):
    assert exchanged(exchanges, []) == ([], [])
    assert exchanges.result() is None
    results, sent = exchanged(exchanges, [Part(words(5, 6), "add")])
    assert results == [[10, 12]]
    assert [part.op for part in sent] == ["or", "add"]
    assert exchanges.result().tolist() == (OWN | OTHER).tolist()


def test_they_go_along_with_a_gather(exchanges):
    data = np.arange(5, dtype=np.uint8)

    def exchange(data):
        return [data, np.concatenate([OTHER.view(np.uint8), data[OTHER.nbytes :] + 10])]

    mine, theirs = exchanges.gather(data, exchange)
    assert [mine.tolist(), theirs.tolist()] == [[0, 1, 2, 3, 4], [10, 11, 12, 13, 14]]
    assert exchanges.result().tolist() == (OWN | OTHER).tolist()
    assert [one.tolist() for one in exchanges.gather(data, lambda data: [data])] == [data.tolist()]
