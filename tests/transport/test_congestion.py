"""The congestion window by itself: when it is cut, how far, and how it grows back."""

import pytest

from peelsum.transport.congestion import cuts, fullness, new_window, on_losses, on_results, on_turn, size


def cut(window, base):
    """Mark chunk `base` with a full window outstanding; return the new size."""
    on_results(window, 1, True, base, base + size(window))
    return size(window)


def test_the_first_mark_halves_later_ones_take_a_fifth():
    window = new_window(400, 400)
    assert [cut(window, base) for base in (0, 1000, 2000)] == [200, 160, 128]
    assert cuts(window) == 3


def test_a_window_is_cut_once_however_many_marks_it_has():
    window = new_window(400, 400)
    cut(window, 0)
    for base in range(1, 400):
        on_results(window, 1, True, base, 400)
    assert (size(window), cuts(window)) == (200, 1)
    on_results(window, 1, True, 400, 600)
    assert (size(window), cuts(window)) == (160, 2)


def test_growth_is_a_doubling_until_the_first_cut_and_one_per_window_after_it():
    window = new_window(512, 64)
    on_results(window, 64, False, 64, 128)
    assert size(window) == 128
    cut(window, 128)
    for round_ in range(10):
        on_results(window, size(window), False, 1000 * round_, 1000 * round_)
    assert size(window) == pytest.approx(64 + 10, abs=1)


def test_losses_alone_never_cut_a_window():
    """With 64 workers, nearly every chunk lacks one's packet at 5% of loss."""
    window = new_window(1000, 128)
    for end in range(128, 5000):
        on_losses(window, end, 50.0)
    assert (size(window), cuts(window)) == (128, 0)


def test_what_the_path_holds_is_unknown_before_the_first_round_trip():
    window = new_window(1000, 128)
    on_results(window, 500, False, 0, 500)
    on_losses(window, 1000, 0.0)
    assert size(window) == 628


def test_random_loss_does_not_shrink_a_window_that_fills_the_path():
    """Half of the round trip is the path, the other half may be a queue."""
    window = new_window(400, 100)
    for end in range(100, 40_000, 100):
        on_losses(window, end, 1.5)
        on_results(window, 100, False, end, end + 100, 1.5)
    assert (size(window), cuts(window)) == (400, 0)


@pytest.mark.parametrize(("full", "expected"), [(2.0, 1000), (3.0, 666), (5.0, 400), (50.0, 128)])
def test_a_loss_leaves_what_fills_the_path_twice_and_no_less_than_the_first_window(full, expected):
    window = new_window(1000, 128)
    on_results(window, 1000, False, 0, 128)
    on_losses(window, 1000, full)
    assert (size(window), cuts(window)) == (expected, 0)


def test_after_a_loss_a_queue_ends_the_growth_until_a_whole_window_passed_without_one():
    window = new_window(1000, 250)
    on_losses(window, 128, 1.0)
    on_results(window, 100, False, 128, 300, 2.0)
    assert size(window) == 350, "no queue yet"
    for base in (300, 1127):
        on_results(window, 100, False, base, base + 350, 2.1)
        assert size(window) == 350
    on_results(window, 350, False, 1128, 1478, 2.1)
    assert size(window) == 351, "the queue was found: growth by one per window"


@pytest.mark.parametrize(
    ("batch", "expected"), [(0, 10.0), (1, 1000 / 101), (100, 5.0), (400, 2.0), (900, 1.0)]
)
def test_the_path_holds_a_batch_beside_what_is_answered_in_the_shortest_round_trip(batch, expected):
    window = new_window(1000, 1000)
    if batch:
        on_turn(window, batch)
    assert fullness(window, 2e-3, 2e-4) == pytest.approx(expected)


@pytest.mark.parametrize(("last", "least"), [(0.0, 1e-4), (1e-3, float("inf")), (1e-3, 0.0)])
def test_without_a_round_trip_time_it_is_unknown_what_the_path_holds(last, least):
    assert fullness(new_window(1000, 1000), last, least) == 0


def test_the_largest_batch_counts_and_is_forgotten_by_a_64th_at_each_turn():
    window = new_window(1000, 1000)
    for results in (640, 1, 2):
        on_turn(window, results)
    assert fullness(window, 1.0, 0.0) == 0
    assert 1000 / fullness(window, 1e9, 1e-9) == pytest.approx(640 * (63 / 64) ** 2)
    on_turn(window, 700)
    assert 1000 / fullness(window, 1e9, 1e-9) == pytest.approx(700)


@pytest.mark.parametrize("shares", [(300, 20), (20, 300), (160, 160)])
def test_two_windows_that_are_marked_together_become_equal(shares):
    """Chiu and Jain's argument: all windows grow by the same amount, and lose in proportion to their size."""
    windows = [new_window(512, share) for share in shares]
    for round_ in range(300):
        marked = sum(size(window) for window in windows) > 100
        for window in windows:
            on_results(window, size(window), marked, 1000 * round_, 1000 * round_)
    low, high = sorted(size(window) for window in windows)
    assert high - low <= 2
    assert 60 <= low + high <= 105


@pytest.mark.parametrize(("most", "least"), [(400, 16), (16, 16), (9, 9)])
def test_a_cut_leaves_16_chunks_or_the_largest_window(most, least):
    window = new_window(most, most)
    assert [cut(window, 1000 * number) for number in range(30)][-1] == least
