import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitbit_kit.api.errors import SplitbitError, UsageError
from splitbit_kit.text.batches import (
    Windows,
    batch,
    evaluation_batches,
    require_tokens,
    samples_for_epochs,
    steps_for_epochs,
)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 400),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**40),
)
def test_an_epoch_visits_each_window_once_and_stays_inside(seq_len, more, seed, epoch):
    count = seq_len + more
    windows = Windows(count, seq_len, seed)
    per_epoch = windows.per_epoch
    assert per_epoch == max(1, (count - seq_len) // seq_len)
    offsets = np.sort(windows.offsets(epoch * per_epoch, per_epoch))
    assert (np.diff(offsets) == seq_len).all(), "side by side, none twice"
    assert 0 <= offsets[0] < seq_len
    assert offsets[-1] + seq_len + 1 <= count


def test_all_shifts_and_orders_occur():
    windows = Windows(41, 8, seed=3)
    epochs = [windows.offsets(epoch * 4, 4) for epoch in range(200)]
    assert {int(offsets.min()) for offsets in epochs} == set(range(8))
    assert len({tuple(offsets // 8) for offsets in epochs}) == 24
    barely = Windows(9, 8, seed=3)
    assert barely.offsets(0, 5).tolist() == [0] * 5


def test_the_samples_are_a_function_of_seed_and_number():
    windows = Windows(1000, 16, seed=7)
    run = windows.offsets(0, 300)
    for first, rows in ((0, 1), (59, 5), (61, 130), (299, 1)):
        assert Windows(1000, 16, 7).offsets(first, rows).tolist() == list(run[first : first + rows])
    assert (run != Windows(1000, 16, 8).offsets(0, 300)).any()
    assert sorted(run[:61]) != sorted(run[61:122]), "a new shift each epoch"


def test_the_order_is_pinned_for_ever():
    # Recorded; a change here would change what a resumed run sees.
    assert Windows(100, 10, seed=1234).offsets(0, 12).tolist() == [
        2,
        52,
        62,
        42,
        22,
        82,
        12,
        72,
        32,
        62,
        12,
        72,
    ]


def test_a_batch_is_inputs_targets_positions_and_starts():
    ids = np.arange(100, 200, dtype=np.uint16)
    windows = Windows(100, 10, seed=0)
    made = batch(ids, windows, 5, 3)
    offsets = windows.offsets(5, 3)
    expected = np.concatenate([np.arange(o, o + 10) + 100 for o in offsets])
    assert made.ids.tolist() == expected.tolist()
    assert made.targets.tolist() == (expected + 1).tolist()
    assert made.positions.tolist() == [*range(10)] * 3
    assert made.starts.tolist() == [0, 10, 20, 30]
    for array in (made.ids, made.targets, made.positions, made.starts):
        assert array.dtype == np.int32
        assert array.flags.c_contiguous
        assert type(array) is np.ndarray


def test_a_limit_makes_the_last_batch_ragged():
    ids = np.arange(100)
    windows = Windows(100, 10, seed=0, limit=7)
    whole = Windows(100, 10, seed=0)
    assert [len(batch(ids, windows, first, 3).starts) - 1 for first in (0, 3, 6, 9)] == [3, 3, 1, 0]
    assert batch(ids, windows, 6, 3).ids.tolist() == batch(ids, whole, 6, 1).ids.tolist()


@pytest.mark.parametrize("count", [11, 20, 21, 95, 100, 101])
@pytest.mark.parametrize("rows", [1, 4, 50])
@pytest.mark.parametrize("limit", [1 << 18, 35])
def test_evaluation_covers_everything_up_to_its_limit_once(count, rows, limit, tmp_path):
    ids = np.memmap(tmp_path / "ids", np.uint16, mode="w+", shape=(count,))
    ids[:] = np.arange(count)
    batches = list(evaluation_batches(ids, 10, rows, limit))
    total = min(count - 1, limit)
    assert np.concatenate([b.ids for b in batches]).tolist() == list(range(total))
    assert np.concatenate([b.targets for b in batches]).tolist() == list(range(1, total + 1))
    for made in batches:
        lengths = np.diff(made.starts)
        assert (lengths[:-1] == 10).all()
        assert 1 <= lengths[-1] <= 10
        assert len(lengths) <= rows
        assert made.positions.tolist() == [p for length in lengths for p in range(length)]
        assert made.ids.dtype == made.positions.dtype == np.int32
        assert type(made.ids) is np.ndarray
    assert all(len(np.diff(made.starts)) == rows for made in batches[:-1])


def test_too_few_tokens_name_the_split_and_a_length_that_works():
    message = r"training split: 10 tokens, seq_len \+ 1 = 513 needed; use --seq-len 9 or less"
    with pytest.raises(SplitbitError, match=message):
        Windows(10, 512, seed=0)
    Windows(10, 9, seed=0)
    with pytest.raises(SplitbitError, match="held-out split: 10 tokens"):
        next(evaluation_batches(np.arange(10), 512, 1, split="held-out"))
    with pytest.raises(SplitbitError, match=r"validation split: 5 tokens.*--seq-len 4 or less"):
        require_tokens(512, training=45, validation=5)
    for count in (0, 1):
        with pytest.raises(SplitbitError, match=f"{count} tokens, .* needed; use more text"):
            require_tokens(8, training=count)
    with pytest.raises(UsageError, match="seq_len 0"):
        require_tokens(0, training=5)
    for seed in (-1, 2**64):
        with pytest.raises(UsageError, match="seed"):
            Windows(100, 10, seed)


def test_epochs_in_samples_and_steps():
    windows = Windows(1001, 10, seed=0)  # 99 windows an epoch
    assert windows.per_epoch == 99
    assert samples_for_epochs(1, windows) == 99
    assert steps_for_epochs(1, windows, 12) == 9
    assert steps_for_epochs(3, windows, 12) == 25
    assert samples_for_epochs(1.1, Windows(110, 10, seed=0)) == 11
    assert steps_for_epochs(0.5, windows, 10) == 5
