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

sizes = st.integers(1, 9)
policies = st.one_of(
    st.builds(FixedChunkPolicy, sizes),
    sizes.flatmap(lambda window: st.builds(SlidingWindowChunkPolicy, st.just(window), st.integers(1, window))),
    st.builds(LeftContextChunkPolicy, sizes, st.integers(0, 9)),
    st.builds(GrowingContextChunkPolicy, st.lists(sizes, min_size=1, max_size=4).map(tuple), st.integers(0, 9)),
)


def consume(policy, length, arrivals):
    """All chunks of a stream whose items arrive in the groups that `arrivals` gives, read as early as possible."""
    cursor, arrived, chunks = Cursor(), 0, []
    for count in [*arrivals, length]:
        arrived = min(arrived + count, length)
        while not (chunks and chunks[-1].final):
            cut = next_chunk(policy, cursor, arrived, done=arrived == length and count == length)
            if cut is None:
                break
            span, cursor = cut
            chunks.append(span)
    return chunks


@given(policies, st.integers(0, 30), st.lists(st.integers(0, 5), max_size=12))
def test_every_item_is_new_once_and_exactly_one_chunk_is_final(policy, length, arrivals):
    chunks = consume(policy, length, arrivals)
    new = [item for chunk in chunks for item in range(chunk.start + chunk.context, chunk.stop)]
    assert new == list(range(length))
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert all(chunk.stop - chunk.start <= policy.longest for chunk in chunks)
    assert all(0 <= chunk.start <= chunk.start + chunk.context <= chunk.stop for chunk in chunks)


@pytest.mark.parametrize("length", range(13))
def test_a_stream_that_is_a_multiple_of_the_chunk_ends(length):
    chunks = consume(FixedChunkPolicy(4), length, [1] * length)
    assert chunks[-1].final
    assert sum(chunk.final for chunk in chunks) == 1


def test_left_context_is_what_there_is_of_it():
    chunks = consume(LeftContextChunkPolicy(chunk=2, left=3), 8, [1] * 8)
    assert [(chunk.start, chunk.context, chunk.stop) for chunk in chunks[:4]] == [
        (0, 0, 2),
        (0, 2, 4),
        (1, 3, 6),
        (3, 3, 8),
    ]


def test_a_growing_policy_repeats_its_last_size():
    chunks = consume(GrowingContextChunkPolicy((3, 1, 2), 0), 12, [1] * 12)
    assert [chunk.stop for chunk in chunks if not chunk.final] == [3, 4, 6, 8, 10, 12]


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedChunkPolicy(0),
        lambda: SlidingWindowChunkPolicy(3, 4),
        lambda: SlidingWindowChunkPolicy(3, 0),
        lambda: LeftContextChunkPolicy(0, 1),
        lambda: LeftContextChunkPolicy(1, -1),
        lambda: GrowingContextChunkPolicy((), 1),
    ],
)
def test_impossible_numbers_are_refused(make):
    with pytest.raises(ValueError, match="ChunkPolicy"):
        make()
