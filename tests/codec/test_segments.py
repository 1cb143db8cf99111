"""`SegmentCodec`: every device writes the reference's words and results, with any pieces and cores."""

import numpy as np
import pytest
from poison import Guarded

from peelsum.codec import device, threads
from peelsum.codec.cpu import segments as cpu_segments
from peelsum.codec.segments import ROW, Segment, SegmentTable

REFERENCE = device("reference")
#: Around a row, a word of rows, a block of floats, and a vector.
SIZES = [1, 15, 16, 17, 31, 32, 33, 64, 65, 1023, 1024, 1025, 4095, 4097, 8191, 8192, 8193, 20_001]
DENSITIES = [0.0, 0.001, 0.02, 0.04, 0.3, 1.0]


def tables(rng):
    sizes = rng.choice(SIZES, int(rng.integers(1, 12))).tolist()
    if rng.random() < 0.1:
        sizes = [1 + m * 7 % 100 for m in range(90)]
    dense = int(rng.integers(0, len(sizes) + 1))
    return SegmentTable([Segment(n, s >= dense, 2 ** int(rng.integers(5, 16))) for s, n in enumerate(sizes)])


def drawn(n, rng):
    """Draw floats of many magnitudes among zeros of either sign; some tensors are not finite, some tiny."""
    values = rng.standard_normal(n) * 2.0 ** rng.integers(-20, 20, n) * 10.0 ** rng.integers(-40, 30)
    values[rng.random(n) >= rng.choice(DENSITIES)] = rng.choice([0.0, -0.0])
    if rng.random() < 0.1:
        values[rng.integers(n)] = rng.choice([np.nan, np.inf, -np.inf])
    return values.astype(np.float32)


def run(ops, table, seed, workers):
    """Go through a step of one worker among several; return everything that its codec writes."""
    rng, host = np.random.default_rng(seed), ops.to_host
    arrays = [drawn(n, rng) for n in table.elements.tolist()]
    if seed % 2:  # the tensors lie end to end
        whole = ops.to_device(np.concatenate(arrays))
        values = [whole[a:b] for a, b in zip(table.begins, table.begins[1:], strict=False)]
    else:
        values = [ops.to_device(array.copy()) for array in arrays]
    # Where results go: an array of the caller's between guards, over the values, or a new array.
    rooms = [Guarded(n, np.float32, ops) for n in table.elements.tolist()]
    kinds = rng.integers(3, size=len(table)) if seed % 4 else np.zeros(len(table), int)
    out = [[own, room.array, None][kind] for own, room, kind in zip(values, rooms, kinds, strict=True)]
    codec = ops.segments(table, values, out, workers)
    words = Guarded(table.scale_words, ops=ops)
    bitmap = host(codec.write_scales(words.array)).copy()
    union = bitmap.copy()
    for s in range(table.dense, len(table)):  # other workers have non-zeros elsewhere
        first, end = table.first_words[s - table.dense :][:2]
        others = rng.random(int(end - first) * ROW) < rng.choice([0, 0.01, 0.5])
        others[table.elements[s] :] = False
        union[first:end] |= np.packbits(others, bitorder="little").view(np.uint32)
    codec.read_scales(host(words.array).copy())
    for candidates in (union | bitmap[::-1] & union, union):  # placed again, as if an index was refined
        dense, sparse = codec.set_candidates(ops.to_device(candidates.copy()))
    written = Guarded(dense + sparse, np.int32, ops)
    codec.write_dense(written.array[:dense])
    codec.gather(written.array[dense:])
    numbers = host(written.array).view(np.int32).copy()
    numbers[~np.repeat(codec.fields != 255, codec.sent)] = 0  # undefined in a segment that is not finite
    sums = numbers.copy()
    sums[rng.random(sums.size) < rng.choice([0.2, 0.9])] = 0  # as if another worker had the opposite
    some = np.flatnonzero(rng.random(int(table.begins[-1])) < rng.choice([0, 0.01, 0.5]))
    some_values = codec.values_at(some) + np.float32(0)  # -0.0 may be 0.0 by now
    other = some[rng.random(some.size) < 0.5]
    corrected = other, rng.standard_normal(other.size).astype(np.float32)
    totals = ops.to_device(sums[:dense]), ops.to_device(sums[dense:])
    results = codec.decode(*totals, workers, corrected if seed % 3 else None)
    for result, requested in zip(results, out, strict=True):
        assert requested is None or result is requested
    for guarded in (written, words, *rooms):
        guarded.check()
    counts = codec.counts()
    counts = counts._replace(local=np.where(codec.fields == 255, 0, counts.local))
    blocks = codec.occupied(totals[1], (np.arange(len(table)) % 3 > 0).astype(np.int64))
    floats = [
        np.where(np.isnan(item), np.float32(np.nan), item) for item in [some_values, *map(host, results)]
    ]
    bits = [item.view(np.uint32) for item in floats]
    return [
        host(words.array),
        bitmap,
        codec.fields,
        codec.scales,
        codec.sent,
        numbers,
        *counts,
        blocks,
        *bits,
    ]


def compare(ops, table, seed, workers):
    for ours, theirs in zip(
        run(ops, table, seed, workers), run(REFERENCE, table, seed, workers), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


# A device converts a float beyond the integers to another one than the host.
@pytest.mark.filterwarnings("error:invalid value encountered in cast")
@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_words_and_results_are_those_of_the_reference(name):
    """Few jobs in the interpreter of a GPU's kernels, which is slow."""
    interpreted = name == "gpu" and not pytest.importorskip("gpu_device").REAL
    for seed in range(8 if interpreted else 48):
        compare(device(name), tables(np.random.default_rng(seed)), seed, [1, 2, 3, 32][seed % 4])


@pytest.mark.parametrize("seed", range(10))
def test_elements_of_flagged_blocks_are_located(seed):
    rng = np.random.default_rng(seed)
    table = tables(rng)
    flags = rng.random(int(table.blocks[-1])) < rng.choice([0, 0.1, 1])
    expected, element, block, row = [], 0, 0, 0
    for s, segment in enumerate(table.segments):
        for i in range(segment.elements):
            if flags[block + i // segment.block]:
                expected.append((element + i, s, block + i // segment.block, ROW * row + i))
        element, block = element + segment.elements, block + -(-segment.elements // segment.block)
        row += -(-segment.elements // ROW)
    located = table.locate_elements(flags)
    assert list(zip(*(part.tolist() for part in located), strict=True)) == expected
    some = np.flatnonzero(rng.random(len(expected)) < 0.5)
    assert located.take(some).padded.tolist() == [expected[i][3] for i in some.tolist()]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("cores", [1, 3])
def test_pieces_over_several_cores_change_nothing(seed, cores, monkeypatch):
    monkeypatch.setattr(threads, "_CORES", cores)
    for module in (threads, cpu_segments):
        monkeypatch.setattr(module, "PER_CORE", 2**13)
    monkeypatch.setattr(cpu_segments, "_PIECE", 2**15)
    rng = np.random.default_rng(seed)
    sizes = rng.choice([33, 4097, 32767, 32768, 32769, 65536, 100_001], 4)
    dense = int(rng.integers(0, 5))
    table = SegmentTable(
        [Segment(int(n), s >= dense, 2 ** int(rng.integers(5, 16))) for s, n in enumerate(sizes)]
    )
    pieces = len(cpu_segments._pieces(table)[0])
    assert pieces >= (len(sizes) if sizes.max() <= 2**15 else len(sizes) + 1)
    calls, work = [], cpu_segments.write_magnitudes
    monkeypatch.setattr(cpu_segments, "write_magnitudes", lambda *given: [calls.append(1), work(*given)])
    compare(device("cpu"), table, seed, 3)
    assert len(calls) == len(threads.slices(pieces, int(table.begins[-1])))
    assert (len(calls) > 1) == (cores > 1 and int(table.begins[-1]) >= 2 * 2**13)


def test_a_table_has_the_begins_of_rows_and_blocks():
    table = SegmentTable([Segment(70, False, 64), Segment(1, True), Segment(33, True, 32)])
    assert (table.dense, table.scale_words, table.words) == (1, 3 + 2 + 1 + 2, 3)
    assert table.first_words.tolist() == [0, 1, 3]
    assert table.segment_of_row.tolist() == [0, 0, 0, 1, 2, 2]
    assert table.begin_of_row.tolist() == [0, 32, 64, 70, 71, 103, 104]
