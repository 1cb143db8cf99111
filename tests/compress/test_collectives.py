"""Words that go along with the first exchange of a step, and leave what it sums as it is."""

import numpy as np

from peelsum.compress.collectives import StepExchanges
from peelsum.summation import Part

OWN = np.array([1, 2, 4], np.uint32)
OTHER = np.array([8, 2, 1], np.uint32)


def words(*values):
    return np.array(values, np.uint32)


def exchanged(piggyback, parts):
    """Results of parts that another worker has, too, its own words aside; and the parts as they were sent."""
    sent = []

    def exchange(parts):
        sent.extend(parts)
        results = []
        for part in parts:
            theirs = part.words.copy()
            if len(theirs) >= len(OWN) and (theirs[: len(OWN)] == OWN).all():
                theirs[: len(OWN)] = OTHER
            total = part.words | theirs if part.op == "or" else part.words + theirs
            if part.check is not None:
                part.check(total)
            results.append(total)
        return results

    return piggyback.attach(parts, exchange), sent


def attached():
    piggyback = StepExchanges()
    piggyback.set(OWN)
    return piggyback


def test_they_join_a_first_part_that_is_ored():
    piggyback, seen = attached(), []
    results, sent = exchanged(piggyback, [Part(words(7, 9), "or", seen.append), Part(words(5), "add")])
    assert [one.tolist() for one in results] == [[7, 9], [10]]
    assert [one.tolist() for one in seen] == [[7, 9]]
    assert len(sent) == 2
    assert piggyback.result().tolist() == (OWN | OTHER).tolist()


def test_they_go_before_a_first_part_that_is_added():
    piggyback = attached()
    results, sent = exchanged(piggyback, [Part(words(5, 6), "add")])
    assert [one.tolist() for one in results] == [[10, 12]]
    assert [part.op for part in sent] == ["or", "add"]
    assert piggyback.result().tolist() == (OWN | OTHER).tolist()


def test_they_go_along_once():
    piggyback = attached()
    exchanged(piggyback, [Part(words(7), "or")])
    _, sent = exchanged(piggyback, [Part(words(7), "or")])
    assert [len(part.words) for part in sent] == [1]
    assert piggyback.result() is not None
    piggyback.set(None)
    assert piggyback.result() is None


def test_they_wait_for_an_exchange_of_something():
    piggyback = attached()
    assert exchanged(piggyback, [])[0] == []
    assert piggyback.result() is None
    exchanged(piggyback, [Part(words(7), "or")])
    assert piggyback.result() is not None


def test_they_go_along_with_a_gather():
    piggyback, data = attached(), np.arange(5, dtype=np.uint8)

    def exchange(data):
        return [data, np.concatenate([OTHER.view(np.uint8), data[OTHER.nbytes :] + 10])]

    mine, theirs = piggyback.gather(data, exchange)
    assert mine.tolist() == [0, 1, 2, 3, 4]
    assert theirs.tolist() == [10, 11, 12, 13, 14]
    assert piggyback.result().tolist() == (OWN | OTHER).tolist()
    assert [one.tolist() for one in piggyback.gather(data, lambda data: [data])] == [data.tolist()]
