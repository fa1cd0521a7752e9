import pytest
from hypothesis import given
from hypothesis import strategies as st

from mstar_core.spec.chunks import (
    Cursor,
    FixedChunkPolicy,
    GrowingContextChunkPolicy,
    LeftContextChunkPolicy,
    SlidingWindowChunkPolicy,
    next_chunk,
)

SIZES = st.integers(1, 8)
LEFTS = st.integers(0, 8)

POLICIES = st.one_of(
    st.builds(FixedChunkPolicy, SIZES),
    SIZES.flatmap(lambda window: st.builds(SlidingWindowChunkPolicy, st.just(window), st.integers(1, window))),
    st.builds(LeftContextChunkPolicy, SIZES, LEFTS),
    st.builds(GrowingContextChunkPolicy, st.lists(SIZES, min_size=1, max_size=4).map(tuple), LEFTS),
)


def chunks(policy, arrivals, length):
    """The chunks of a stream whose consumer looks whenever `arrivals` items more have arrived, and at its end."""
    cursor, arrived, spans = Cursor(), 0, []
    steps = iter(arrivals)
    while not (spans and spans[-1].final):
        cut = next_chunk(policy, cursor, arrived, done=arrived == length)
        if cut is None:
            arrived = min(arrived + next(steps, length), length)
        else:
            spans.append(cut[0])
            cursor = cut[1]
    return spans


def lazy(policy, length):
    """The chunks of a consumer that looks only once the producer is done."""
    return chunks(policy, [length], length)


def eager(policy, length):
    """The chunks of a consumer that looks after every item, and at the end once more."""
    return chunks(policy, [1] * length, length)


def lengths(policy):
    return st.integers(0, 3 * policy.longest + 1)


@given(POLICIES.flatmap(lambda policy: st.tuples(st.just(policy), lengths(policy))), st.lists(st.integers(1, 9)))
def test_chunks_of_any_policy_length_and_arrival_bring_each_item_as_new_once_and_one_final_chunk(case, arrivals):
    policy, length = case
    spans = chunks(policy, arrivals, length)
    assert [item for span in spans for item in range(span.start + span.context, span.stop)] == list(range(length))
    assert [span.final for span in spans] == [False] * (len(spans) - 1) + [True]


@given(POLICIES.flatmap(lambda policy: st.tuples(st.just(policy), lengths(policy))), st.lists(st.integers(1, 9)))
def test_chunks_of_any_policy_hold_at_most_its_longest_and_context_that_was_new_before(case, arrivals):
    policy, length = case
    seen = 0
    for span in chunks(policy, arrivals, length):
        assert 0 <= span.context <= span.stop - span.start <= policy.longest
        assert span.start + span.context == seen
        seen = span.stop


@given(POLICIES, st.data())
def test_chunks_do_not_depend_on_when_the_consumer_looks_except_for_an_empty_last_one(policy, data):
    length = data.draw(lengths(policy))
    content = [[(span.start, span.stop, span.context) for span in cut(policy, length)] for cut in (eager, lazy)]
    late_end = [each for each in content[0] if each[1] - each[0] > each[2]]
    assert late_end == [each for each in content[1] if each[1] - each[0] > each[2]]


@pytest.mark.parametrize("length", range(14))
def test_left_context_chunks_follow_the_table(length):
    chunk, left = 3, 4
    spans = lazy(LeftContextChunkPolicy(chunk, left), length)
    expected = []
    for start in range(0, max(length, 1), chunk):
        stop = min(start + chunk, length)
        context = min(start, left)
        expected.append((start - context, stop, context, stop == length))
    assert [(span.start, span.stop, span.context, span.final) for span in spans] == expected


@pytest.mark.parametrize(
    ("policy", "length", "expected"),
    [
        (FixedChunkPolicy(2), 5, [(0, 2, 0), (2, 4, 0), (4, 5, 0)]),
        (FixedChunkPolicy(2), 0, [(0, 0, 0)]),
        (SlidingWindowChunkPolicy(4, 2), 7, [(0, 4, 0), (2, 6, 2), (4, 7, 2)]),
        (SlidingWindowChunkPolicy(28, 7), 3, [(0, 3, 0)]),
        (LeftContextChunkPolicy(2, 0), 4, [(0, 2, 0), (2, 4, 0)]),
        (GrowingContextChunkPolicy((1, 2, 4), 1), 12, [(0, 1, 0), (0, 3, 1), (2, 7, 1), (6, 11, 1), (10, 12, 1)]),
    ],
)
def test_chunks_of_a_finished_stream(policy, length, expected):
    assert [(span.start, span.stop, span.context) for span in lazy(policy, length)] == expected


def test_a_stream_that_ends_after_its_last_full_chunk_was_taken_ends_with_an_empty_final_one():
    cursor = Cursor(start=2, seen=2)
    assert next_chunk(FixedChunkPolicy(2), cursor, arrived=2, done=False) is None
    span, _ = next_chunk(FixedChunkPolicy(2), cursor, arrived=2, done=True)
    assert (span.start, span.stop, span.context, span.final) == (2, 2, 0, True)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: FixedChunkPolicy(0), "size must be at least 1, got 0"),
        (lambda: SlidingWindowChunkPolicy(2, 3), "stride beyond the window would skip items"),
        (lambda: SlidingWindowChunkPolicy(2, 0), "got stride 0, window 2"),
        (lambda: LeftContextChunkPolicy(0, 1), "got chunk 0, left 1"),
        (lambda: LeftContextChunkPolicy(1, -1), "got chunk 1, left -1"),
        (lambda: GrowingContextChunkPolicy((), 0), "sizes of at least 1"),
        (lambda: GrowingContextChunkPolicy((1, 0), 0), "sizes of at least 1"),
    ],
)
def test_a_policy_with_impossible_numbers_is_refused(make, problem):
    with pytest.raises(ValueError, match=problem):
        make()
