"""The congestion window by itself: when it is cut, how far, and how it grows back."""

import pytest

from peelsum.transport.congestion import CongestionWindow


def cut(window: CongestionWindow, base: int) -> int:
    """Mark chunk `base` with a full window outstanding; return the new size."""
    window.on_results(1, True, base, base + window.size)
    return window.size


def test_the_first_mark_halves_later_ones_take_a_fifth() -> None:
    window = CongestionWindow(400, 400)
    assert [cut(window, base) for base in (0, 1000, 2000)] == [200, 160, 128]
    assert window.cuts == 3


def test_a_window_is_cut_once_however_many_marks_it_has() -> None:
    window = CongestionWindow(400, 400)
    cut(window, 0)
    for base in range(1, 400):
        window.on_results(1, True, base, 400)
    assert (window.size, window.cuts) == (200, 1)
    window.on_results(1, True, 400, 600)
    assert (window.size, window.cuts) == (160, 2)


def test_growth_is_a_doubling_until_the_first_cut_and_one_per_window_after_it() -> None:
    window = CongestionWindow(512, 64)
    window.on_results(64, False, 64, 128)
    assert window.size == 128
    cut(window, 128)
    for round_ in range(10):
        window.on_results(window.size, False, 1000 * round_, 1000 * round_)
    assert window.size == pytest.approx(64 + 10, abs=1)


def test_a_window_that_lost_more_than_half_is_halved_whatever_was_before() -> None:
    window = CongestionWindow(1600, 1600)
    cut(window, 0)
    window.on_losses(400, 2000, 3000)
    assert (window.size, window.cuts) == (800, 1)
    window.on_losses(1, 2000, 3000)
    assert (window.size, window.cuts) == (400, 2)


def test_losses_are_counted_by_what_was_sent_however_long_the_oldest_is_missing() -> None:
    window = CongestionWindow(400, 200)
    for end in range(200, 3000, 10):
        window.on_losses(4, 0, end)
    assert window.cuts == 0
    for end in range(3000, 3600, 10):
        window.on_losses(6, 0, end)
    assert window.cuts == 1, "once per window: its oldest chunk is still missing"


def test_half_of_a_few_may_be_lost_by_chance() -> None:
    """Losses of a small window are judged over 128 chunks."""
    window = CongestionWindow(16, 16)
    window.on_losses(64, 0, 16)
    assert window.cuts == 0
    window.on_losses(1, 0, 16)
    assert window.cuts == 1


@pytest.mark.parametrize(("round_trip", "cuts"), [(4.0, 0), (4.1, 1)])
def test_heavy_loss_cuts_only_if_round_trips_show_a_queue(round_trip: float, cuts: int) -> None:
    window = CongestionWindow(128, 128)
    window.on_losses(65, 0, 128, round_trip)
    assert (window.cuts, window.size) == (cuts, 128 >> cuts)


def test_random_loss_does_not_shrink_a_window_that_fills_the_path() -> None:
    """Half of the round trip is the path, the other half may be a queue."""
    window = CongestionWindow(400, 100)
    for end in range(100, 40_000, 100):
        window.on_losses(5, end - 100, end, 1.5)
        window.on_results(100, False, end, end + 100, 1.5)
    assert (window.size, window.cuts) == (400, 0)


@pytest.mark.parametrize(("round_trip", "size"), [(2.0, 1000), (3.0, 666), (5.0, 400), (50.0, 250)])
def test_a_loss_leaves_what_fills_the_path_twice_and_no_less_than_a_quarter(
    round_trip: float, size: int
) -> None:
    window = CongestionWindow(1000, 128)
    window.on_results(1000, False, 0, 128)
    window.on_losses(1, 0, 1000, round_trip)
    assert (window.size, window.cuts) == (size, 0)


def test_after_a_loss_a_queue_ends_the_growth_until_a_whole_window_passed_without_one() -> None:
    window = CongestionWindow(1000, 250)
    window.on_losses(1, 0, 128, 1.0)
    window.on_results(100, False, 128, 300, 2.0)
    assert window.size == 350, "no queue yet"
    for base in (300, 1127):
        window.on_results(100, False, base, base + 350, 2.1)
        assert window.size == 350
    window.on_results(350, False, 1128, 1478, 2.1)
    assert window.size == 351, "the queue was found: growth by one per window"


@pytest.mark.parametrize("shares", [(300, 20), (20, 300), (160, 160)])
def test_two_windows_that_are_marked_together_become_equal(shares: tuple[int, int]) -> None:
    """Chiu and Jain's argument: all windows grow by the same amount, and lose in proportion to their size."""
    windows = [CongestionWindow(512, share) for share in shares]
    for round_ in range(300):
        marked = sum(window.size for window in windows) > 100
        for window in windows:
            window.on_results(window.size, marked, 1000 * round_, 1000 * round_)
    low, high = sorted(window.size for window in windows)
    assert high - low <= 2
    assert 60 <= low + high <= 105


@pytest.mark.parametrize(("most", "least"), [(400, 16), (16, 16), (9, 9)])
def test_a_cut_leaves_16_chunks_or_the_largest_window(most: int, least: int) -> None:
    window = CongestionWindow(most, most)
    assert [cut(window, 1000 * number) for number in range(30)][-1] == least
