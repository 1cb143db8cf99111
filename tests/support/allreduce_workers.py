"""Workers as threads over a sum in memory, which records the words that they send; and one worker alone."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from peelsum.allreduce import Allreduce, LocalSummation


def recorded(summation):
    """Return a list to which all exchanges of a backend are appended from now on."""
    calls = []
    original = summation.sum_words

    def spy(parts):
        calls.append([(part.op, part.words.copy(), part.check is not None) for part in parts])
        return original(parts)

    summation.sum_words = spy
    return calls


class Workers:
    """A group of workers that run each step concurrently, one thread each."""

    def __init__(self, count, lanes=8, timeout_s=30.0, **settings):
        self.summations = LocalSummation.group(count, lanes, timeout_s)
        #: What each worker has sent.
        self.calls = [recorded(one) for one in self.summations]
        kinds = settings.pop("implementations", [settings.pop("implementation", "cpu")] * count)
        self.reduces = [
            Allreduce(summation, implementation=kind, **settings)
            for summation, kind in zip(self.summations, kinds, strict=True)
        ]

    def take(self):
        """Return the first worker's exchanges since the last call."""
        taken = [*self.calls[0]]
        self.calls[0].clear()
        return taken

    def each(self, work):
        """Run work(worker_id, its Allreduce) on every worker at once; raise the first worker's error."""
        with ThreadPoolExecutor(len(self.reduces)) as pool:
            return list(pool.map(work, range(len(self.reduces)), self.reduces))

    def sum(self, inputs):
        """Run one step with these inputs, one per worker."""
        return self.each(lambda worker_id, reduce: reduce.sum(inputs[worker_id]))

    def failures(self, inputs):
        """Run one step in which every worker must fail; return their errors."""

        def attempt(worker_id, reduce):
            with pytest.raises(Exception) as raised:  # noqa: PT011 - the caller looks at it
                reduce.sum(inputs[worker_id])
            return raised.value

        return self.each(attempt)


class Echo:
    """A backend of one worker, whose sums are copies of its own words."""

    lanes, workers, worker_id = 256, 1, 0

    def sum_words(self, parts):
        return [part.words.copy() for part in parts]
