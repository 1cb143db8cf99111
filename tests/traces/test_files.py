"""Traces come back from their files as they were recorded, and malformed files are one line."""

import io
import json
import zipfile
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peelsum.traces import (
    SUFFIX,
    TraceError,
    TraceRecorder,
    decode,
    encode,
    read,
    read_folder,
    union_count,
    write,
)


def recorded(worker=0, workers=1, *, values=True, seed=0):
    """A trace of three steps and two tensors, and each step's gradient."""
    random = np.random.default_rng([seed, worker])
    recorder, gradients = TraceRecorder("drawn", worker, workers, values=values), []
    for step in range(3):
        big = np.where(random.random((40, 25)) < 0.05, random.standard_normal((40, 25)), 0).astype(np.float32)
        small = random.standard_normal(7).astype(np.float32) * np.float32(2.0**-40)
        recorder.add(["small"], [(7,)], [small], 0.5)
        recorder.add(["big"], [(40, 25)], [big], 0.75 + step)
        recorder.end_step()
        gradients.append(np.concatenate([small, big.reshape(-1)]))
    return recorder.trace(), gradients


def test_gradients_come_back_bit_for_bit(tmp_path):
    trace, gradients = recorded()
    path = tmp_path / f"0{SUFFIX}"
    write(trace, path)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    back = read(path)
    assert (back.names, back.shapes, back.steps) == (("small", "big"), ((7,), (40, 25)), 3)
    assert back.ready_s.tolist() == [[0.5, 0.75], [0.5, 1.75], [0.5, 2.75]]
    assert back.bucket.tolist() == [[0, 1]] * 3
    for step, gradient in enumerate(gradients):
        np.testing.assert_array_equal(back.gradient(step).view(np.uint32), gradient.view(np.uint32))


def test_without_values_supports_and_exponents_are_the_same(tmp_path):
    _, gradients = recorded()
    bare, _ = recorded(values=False)
    write(bare, tmp_path / "bare")
    back = read(tmp_path / "bare")
    for step, gradient in enumerate(gradients):
        drawn = back.gradient(step, seed=3)
        np.testing.assert_array_equal(np.flatnonzero(drawn), np.flatnonzero(gradient))
        np.testing.assert_array_equal(back.gradient(step, seed=3), drawn)
        for part in (slice(0, 7), slice(7, None)):
            exponents = [int(np.abs(one[part]).view(np.int32).max()) >> 23 for one in (drawn, gradient)]
            assert exponents[0] == exponents[1]


def test_a_tensor_that_is_not_summed_in_a_step_is_zero():
    recorder = TraceRecorder("drawn", 0, 1, values=True)
    recorder.add(["a"], [(2,)], [np.ones(2, np.float32)], 0.1)
    recorder.end_step()
    recorder.add(["b"], [(3,)], [np.ones(3, np.float32)], 0.1)
    recorder.end_step()
    trace = recorder.trace()
    assert trace.bucket.tolist() == [[0, -1], [-1, 0]]
    assert [trace.gradient(step).tolist() for step in range(2)] == [[1, 1, 0, 0, 0], [0, 0, 1, 1, 1]]


@given(st.integers(1, 3000), st.floats(0, 1) | st.floats(0, 0.04), st.integers(0, 2**32))
def test_supports_come_back(elements, share, seed):
    positions = np.flatnonzero(np.random.default_rng(seed).random(elements) < share)
    data = encode(positions, elements)
    np.testing.assert_array_equal(decode(data, positions.size, elements), positions)
    assert data.size <= -(-elements // 8)


def test_the_shortest_form_is_used():
    """Nothing for none or all, else differences of four bytes, else a bitmap."""
    supports = [np.arange(count) for count in (0, 800, 24, 25)]
    assert [encode(one, 800).size for one in supports] == [0, 0, 96, 100]
    far = np.array([0, 2**32 - 2])
    np.testing.assert_array_equal(decode(encode(far, 2**32), 2, 2**32), far)


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """The bytes of a right file."""
    path = tmp_path_factory.mktemp("trace") / "right"
    write(recorded()[0], path)
    return path.read_bytes()


@settings(max_examples=100)
@given(st.data())
def test_damaged_files_are_read_or_are_an_error(content, tmp_path_factory, data):
    damaged = bytearray(content[: data.draw(st.integers(0, len(content)))])
    for _ in range(data.draw(st.integers(0, 4))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(damaged)
    with suppress(TraceError):
        trace = read(path)
        for step in range(trace.steps):
            trace.gradient(step)


CHANGES = {
    "another format": ({"header": {"format": "x"}}, "header: is not a trace's"),
    "a later version": ({"header": {"version": 9}}, "version: 9 is not 2"),
    "a worker too many": ({"header": {"worker": 1}}, "worker: 1 is not one of 1"),
    "names missing": ({"header": {"names": ["big"]}}, "names: do not fit the shapes"),
    "a shape below zero": ({"header": {"shapes": [[-7], [40, 25]]}}, "shapes: have a negative length"),
    "no header's field": ({"header": {"shapes": None}}, "is not a trace (TypeError"),
    "another dtype": ({"count": np.zeros((3, 2), np.int32)}, "count: is missing or of another type"),
    "other steps": ({"exponent": np.zeros((2, 2), np.uint8)}, "exponent: is not of 3 steps and 2 tensors"),
    "too few buckets": ({"ready_s": np.zeros((3, 1))}, "ready_s: does not fit the buckets"),
    "too many": ({"count": np.full((3, 2), 2000)}, "count: is out of range"),
    "supports cut": ({"supports": np.zeros(3, np.uint8)}, "supports: do not fit the counts"),
    "values cut": ({"values": np.zeros(3, np.float32)}, "values: do not fit the counts"),
    "an object": ({"bucket": np.array([None])}, "is not a trace (ValueError: Object arrays"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_wrong_part_is_named(content, tmp_path, change):
    changed, told = CHANGES[change]
    with np.load(io.BytesIO(content)) as file:
        arrays = dict(file)
    header = json.loads(arrays["header"].tobytes()) | changed.get("header", {})
    arrays |= {name: value for name, value in changed.items() if name != "header"}
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    path = tmp_path / "wrong.npz"
    np.savez(path, allow_pickle=True, **arrays)
    with pytest.raises(TraceError) as raised:
        read(path)
    assert str(raised.value).startswith(f"{path}: {told}")
    assert "\n" not in str(raised.value)


@settings(deadline=None)
@given(data=st.data(), elements=st.integers(1, 400))
def test_a_union_is_counted_without_positions(data, elements):
    """Supports of any form, also of all elements."""
    supports = data.draw(st.lists(st.sets(st.integers(0, elements - 1)), min_size=1, max_size=3))
    supports += data.draw(st.sampled_from([[], [set(range(elements))]]))
    traces = []
    for worker, support in enumerate(supports):
        recorder, gradient = TraceRecorder("drawn", worker, len(supports)), np.zeros(elements, np.float32)
        gradient[sorted(support)] = 1
        recorder.add(["tensor"], [(elements,)], [gradient], 0.0)
        recorder.end_step()
        traces.append(recorder.trace())
    assert union_count(traces, 0, 0) == len(set().union(*supports))


def test_a_file_that_unpacks_to_far_more_than_its_size_is_refused(content, tmp_path):
    with np.load(io.BytesIO(content)) as file:
        arrays = dict(file)
    path = tmp_path / "zeros.npz"
    np.savez_compressed(path, **{**arrays, "values": np.zeros(20_000_000, np.float32)})
    with pytest.raises(TraceError, match=r"unpacks to [\d,]+ bytes, more than 100 times its size"):
        read(path)


def test_a_folder_has_all_workers_of_one_run(tmp_path):
    for worker in range(3):
        write(recorded(worker, 3)[0], tmp_path / f"worker-{worker}{SUFFIX}")
    assert [trace.worker for trace in read_folder(tmp_path)] == [0, 1, 2]
    (tmp_path / f"worker-1{SUFFIX}").unlink()
    with pytest.raises(TraceError, match="has workers 0, 2 of 3"):
        read_folder(tmp_path)
    write(TraceRecorder("other", 1, 3).trace(), tmp_path / f"worker-1{SUFFIX}")
    with pytest.raises(TraceError, match="worker 1 has other tensors or steps"):
        read_folder(tmp_path)
    with pytest.raises(TraceError, match="has no files"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(TraceError, match="No such file"):
        read(tmp_path / "nowhere")
    with zipfile.ZipFile(tmp_path / f"worker-1{SUFFIX}", "w"):
        pass
    with pytest.raises(TraceError, match="is not a trace"):
        read_folder(tmp_path)
