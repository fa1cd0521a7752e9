import pytest

from mstar_core.spec.chunks import FixedChunkPolicy, LeftContextChunkPolicy, SlidingWindowChunkPolicy
from mstar_core.spec.graph import StreamingEdge
from mstar_core.worker.streams import Stream

POLICIES = [
    FixedChunkPolicy(1),
    FixedChunkPolicy(3),
    SlidingWindowChunkPolicy(window=4, stride=2),
    LeftContextChunkPolicy(chunk=2, left=3),
]


def stream(policy=None, **options):
    return Stream(StreamingEdge(source="a.x", target="b.x", policy=policy or FixedChunkPolicy(2), **options))


def put(stream, *items):
    for item in items:
        stream.reserve()
        stream.push(item)


def played(stream, items, *, eager):
    """The chunks that a consumer gets of `items`; an eager one takes each as soon as it is there."""
    chunks, waiting = [], list(items)
    while not stream.ended:
        while waiting and stream.room() and not (eager and stream.ready()):
            put(stream, waiting.pop(0))
        if not waiting:
            stream.finish()
        assert stream.ready()
        chunks.append(stream.take())
        assert stream.buffered <= stream._edge.buffer_items
    return chunks


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "lazy"])
@pytest.mark.parametrize("count", range(14))
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_every_item_is_new_once_in_order_and_the_last_chunk_alone_is_final(policy, count, eager):
    chunks = played(stream(policy), range(count), eager=eager)
    assert [item for chunk in chunks for item in chunk.items[chunk.context :]] == list(range(count))
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    for chunk in chunks:
        assert list(chunk.items) == list(range(chunk.position, chunk.position + len(chunk.items)))


def test_a_producer_without_room_waits_until_a_chunk_is_taken():
    buffer, woken = stream(capacity=3), []
    put(buffer, 0, 1)
    buffer.reserve()
    assert not buffer.room()
    buffer.when_room(lambda: woken.append("producer"))
    assert woken == []
    buffer.take()
    assert woken == ["producer"]
    assert buffer.room()


def test_a_run_without_an_item_gives_its_place_back():
    buffer, woken = stream(capacity=2), []
    put(buffer, 0)
    buffer.reserve()
    buffer.when_room(lambda: woken.append("producer"))
    buffer.release()
    assert woken == ["producer"]
    assert buffer.room()


def test_a_consumer_waits_until_its_chunk_is_whole():
    buffer, woken = stream(), []
    buffer.when_ready(lambda: woken.append("consumer"))
    put(buffer, 0)
    assert woken == []
    put(buffer, 1)
    assert woken == ["consumer"]


def test_a_consumer_is_woken_by_the_end_of_the_stream():
    buffer, woken = stream(), []
    put(buffer, 0)
    buffer.when_ready(lambda: woken.append("consumer"))
    buffer.finish()
    assert woken == ["consumer"]
    last = buffer.take()
    assert (last.items, last.final) == ((0,), True)


def test_a_waiter_is_called_once():
    buffer, woken = stream(FixedChunkPolicy(1)), []
    buffer.when_ready(lambda: woken.append("consumer"))
    put(buffer, 0, 1)
    buffer.finish()
    assert woken == ["consumer"]


def test_after_the_end_nothing_is_ready_unless_the_consumer_outlives_its_producer():
    short, long = stream(), stream(outlives=True)
    for buffer in (short, long):
        put(buffer, 0)
        buffer.finish()
        assert buffer.take().final
    assert not short.ready()
    assert long.ready()
    for _ in range(3):
        chunk = long.take()
        assert (chunk.items, chunk.context, chunk.position, chunk.final) == ((), 0, 1, True)


def test_context_stays_in_the_buffer_and_takes_room():
    buffer = stream(LeftContextChunkPolicy(chunk=1, left=2), capacity=3)
    put(buffer, 0, 1, 2)
    taken = [buffer.take().items for _ in range(3)]
    assert taken == [(0,), (0, 1), (0, 1, 2)]
    assert buffer.buffered == 2
    assert buffer.room()
