"""`SegmentCodec`: the compiled loops write the reference's words and results, with any pieces and cores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from poison import Guarded

from peelsum.codec import threads
from peelsum.codec.cpu import segments as cpu_segments
from peelsum.codec.cpu.segments import CpuSegments
from peelsum.codec.cpu.vectors import HAS_AVX512
from peelsum.codec.reference.segments import ReferenceSegments
from peelsum.codec.segments import ROW, Segment, Table

#: Around a row, a word of rows, a block of floats, and a vector.
SIZES = [1, 15, 16, 17, 31, 32, 33, 64, 65, 1023, 1024, 1025, 4095, 4097, 8191, 8192, 8193, 20_001]
DENSITIES = [0.0, 0.001, 0.02, 0.04, 0.3, 1.0]


def tables(rng: np.random.Generator) -> Table:
    sizes = rng.choice(SIZES, int(rng.integers(1, 12))).tolist()
    dense = int(rng.integers(0, len(sizes) + 1))
    return Table([Segment(n, s >= dense, 2 ** int(rng.integers(5, 16))) for s, n in enumerate(sizes)])


def drawn(n: int, rng: np.random.Generator) -> Any:
    """Draw floats of many magnitudes among zeros of either sign; some tensors are not finite, some tiny."""
    values = rng.standard_normal(n) * 2.0 ** rng.integers(-20, 20, n) * 10.0 ** rng.integers(-40, 30)
    values[rng.random(n) >= rng.choice(DENSITIES)] = rng.choice([0.0, -0.0])
    if rng.random() < 0.1:
        values[rng.integers(n)] = rng.choice([np.nan, np.inf])
    return values.astype(np.float32)


def run(codecs: Any, table: Table, seed: int, workers: int) -> list[Any]:
    """Go through a step of one worker among several; return all that its codec writes, between guards."""
    rng = np.random.default_rng(seed)
    values = [drawn(one.elements, rng) for one in table.segments]
    # Where results go: an array of the caller's between guards, over the values, or a new array.
    rooms = [Guarded(one.elements, np.float32) for one in table.segments]
    out = [[own, room.array, None][rng.integers(3)] for own, room in zip(values, rooms, strict=True)]
    codec = codecs(table, values, out, workers)
    words = np.full(table.scale_words, 0xA5A5A5A5, np.uint32)
    bitmap = codec.write_scales(words)
    for s in range(table.dense, len(table)):  # other workers have non-zeros elsewhere
        first, end = table.first_words[s - table.dense :][:2]
        others = rng.random(int(end - first) * ROW) < rng.choice([0, 0.01, 0.5])
        others[table.elements[s] :] = False
        bitmap[first:end] |= np.packbits(others, bitorder="little").view(np.uint32)
    codec.read_scales(words)
    dense, sparse = codec.place(bitmap)
    numbers = Guarded(dense + sparse, np.int32)
    own = numbers.array
    codec.write_dense(own[:dense])
    codec.gather(own[dense:])
    finite = np.repeat(codec.fields != 255, codec.sent)
    own[~finite] = 0  # numbers of a segment that is not finite are undefined
    sums = own.copy()
    sums[rng.random(sums.size) < rng.choice([0.2, 0.9])] = 0  # as if another worker had the opposite
    some = np.flatnonzero(rng.random(int(table.begins[-1])) < rng.choice([0, 0.01, 0.5]))
    found_at = codec.values_at(some) + np.float32(0)  # -0.0 may be 0.0 by now
    wide = some[rng.random(some.size) < 0.5]
    given = rng.standard_normal(wide.size).astype(np.float32)
    results = codec.read(sums[:dense], sums[dense:], workers, (wide, given) if seed % 2 else None)
    for result, asked, before in zip(results, out, values, strict=True):
        assert asked is None or result is asked
        assert result.size == before.size
    for one in (numbers, *rooms):
        one.check(one.array)
    counts = codec.counts()
    counts = counts._replace(local=np.where(codec.fields == 255, 0, counts.local))
    occupied = codec.occupied(sums[dense:], (np.arange(len(table)) % 3 > 0).astype(np.int64))
    results = [np.where(np.isnan(one), np.float32(np.nan), one) for one in [found_at, *results]]
    results = [one.view(np.uint32) for one in results]
    return [words, bitmap, codec.fields, codec.scales, codec.sent, own, *counts, occupied, *results]


def compare(table: Table, seed: int, workers: int) -> None:
    ours, wanted = (run(codecs, table, seed, workers) for codecs in (CpuSegments, ReferenceSegments))
    for one, other in zip(ours, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(params=[True, False], ids=["vectors", "plain"])
def vectors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as on a processor with AVX-512 and as on one without: the loops then run as Python."""
    if request.param:
        if not HAS_AVX512:
            pytest.skip("this processor has no AVX-512")
        return
    monkeypatch.setattr(cpu_segments, "HAS_AVX512", False)
    for name in ("write_sparse", "write_results"):
        monkeypatch.setattr(cpu_segments, name, getattr(cpu_segments, name).py_func)


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("seed", range(30))
def test_words_and_results_are_those_of_the_reference(seed: int) -> None:
    compare(tables(np.random.default_rng(seed)), seed, [1, 2, 3, 32][seed % 4])


@pytest.mark.parametrize("seed", range(20))
def test_elements_of_flagged_blocks_are_located(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = tables(rng)
    flags = rng.random(int(table.blocks[-1])) < rng.choice([0, 0.1, 1])
    wanted, element, block, row = [], 0, 0, 0
    for s, one in enumerate(table.segments):
        for i in range(one.elements):
            if flags[block + i // one.block]:
                wanted.append((element + i, s, block + i // one.block, ROW * row + i))
        element, block = element + one.elements, block + -(-one.elements // one.block)
        row += -(-one.elements // ROW)
    found = table.locate_elements(flags)
    assert list(zip(*(part.tolist() for part in found), strict=True)) == wanted
    some = np.flatnonzero(rng.random(len(wanted)) < 0.5)
    assert found.take(some).padded.tolist() == [wanted[i][3] for i in some.tolist()]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("cores", [1, 3])
def test_pieces_over_several_cores_change_nothing(
    seed: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_CORES", cores)
    for module in (threads, cpu_segments):
        monkeypatch.setattr(module, "PER_CORE", 2**13)
    monkeypatch.setattr(cpu_segments, "_PIECE", 2**15)
    rng = np.random.default_rng(seed)
    sizes = rng.choice([33, 4097, 32767, 32768, 32769, 65536, 100_001], 4)
    dense = int(rng.integers(0, 5))
    table = Table([Segment(int(n), s >= dense, 2 ** int(rng.integers(5, 16))) for s, n in enumerate(sizes)])
    assert len(cpu_segments._pieces(table)[0]) >= (len(sizes) if sizes.max() <= 2**15 else len(sizes) + 1)
    shares, measure = [], cpu_segments.write_magnitudes
    monkeypatch.setattr(cpu_segments, "write_magnitudes", lambda *given: [shares.append(1), measure(*given)])
    compare(table, seed, 3)
    most = min(cores, int(table.begins[-1]) // 2**13, len(cpu_segments._pieces(table)[0]))
    assert len(shares) == max(most, 1)


def test_a_table_tells_where_rows_and_blocks_lie() -> None:
    table = Table([Segment(70, False, 64), Segment(1, True), Segment(33, True, 32)])
    assert (table.dense, table.scale_words, table.words) == (1, 3 + 2 + 1 + 2, 3)
    assert table.first_words.tolist() == [0, 1, 3]
    assert table.segment_of_row.tolist() == [0, 0, 0, 1, 2, 2]
    assert table.begin_of_row.tolist() == [0, 32, 64, 70, 71, 103, 104]
    assert table.block_of_row.tolist() == [0, 0, 1, 2, 3, 4]
