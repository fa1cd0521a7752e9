import itertools
import threading
import time

import pytest
import zmq

from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import Stop, WorkerFailed

PATIENCE_S = 30.0
"""Long enough that only a deadlock takes it."""


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture(params=["inproc", "ipc"])
def boxes(context, request, tmp_path):
    """Makes mailboxes, between threads or as between processes, that are closed at the end."""
    made, where = [], "inproc://" if request.param == "inproc" else f"ipc://{tmp_path}/"

    def make(name):
        made.append(Mailbox(context, f"{where}{name}"))
        return made[-1]

    yield make
    for box in made:
        box.close()


def numbered(number, size=0):
    return WorkerFailed(str(number), "x" * size)


def received(box, count):
    """The numbers of the next `count` messages; a wake-up makes `receive` return without any."""
    numbers, deadline = [], time.monotonic() + PATIENCE_S
    while len(numbers) < count:
        assert time.monotonic() < deadline, f"nothing came after {len(numbers)} messages"
        numbers += [int(message.worker) for message in box.receive(1.0)]
    return numbers


def in_thread(call):
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_two_peers_that_burst_at_each_other_before_either_reads_both_finish(boxes):
    parties, got = {name: boxes(name) for name in ("left", "right")}, {"left": [], "right": []}
    both_have_sent = threading.Barrier(2)
    deadline = time.monotonic() + PATIENCE_S

    def play(name, peer):
        for number in range(3000):
            parties[name].send(parties[peer].endpoint, numbered(number, size=10_000))
        both_have_sent.wait(PATIENCE_S)
        while any(len(numbers) < 3000 for numbers in got.values()) and time.monotonic() < deadline:
            got[name] += [int(message.worker) for message in parties[name].receive(0.05)]

    threads = [in_thread(lambda: play("left", "right")), in_thread(lambda: play("right", "left"))]
    for thread in threads:
        thread.join(2 * PATIENCE_S)
        assert not thread.is_alive()
    assert got == {"left": list(range(3000)), "right": list(range(3000))}


def test_messages_to_one_peer_keep_their_order_whether_queued_or_waiting(boxes):
    sender, receiver = boxes("sender"), boxes("receiver")
    got = []
    for start in range(0, 6000, 1500):
        for number in range(start, start + 1500):
            sender.send(receiver.endpoint, numbered(number, size=1000))
        got += received(receiver, 100)
        sender.receive(0)
    while len(got) < 6000:
        sender.receive(0)
        got += [int(message.worker) for message in receiver.receive(0.01)]
    assert got == list(range(6000))


def test_each_sender_keeps_its_own_order(boxes):
    receiver = boxes("receiver")
    senders = [boxes(f"sender{index}") for index in range(3)]
    for number, (index, sender) in itertools.product(range(100), enumerate(senders)):
        sender.send(receiver.endpoint, numbered(1000 * index + number))
    got = received(receiver, 300)
    for index in range(3):
        assert [each for each in got if each // 1000 == index] == list(range(1000 * index, 1000 * index + 100))


def test_a_slow_peer_does_not_keep_messages_from_others(boxes):
    sender, slow, quick = boxes("sender"), boxes("slow"), boxes("quick")
    for number in range(5000):
        sender.send(slow.endpoint, numbered(number, size=1000))
    sender.send(quick.endpoint, numbered(7))
    assert received(quick, 1) == [7]


def test_receive_gives_up_after_its_timeout(boxes):
    assert boxes("lonely").receive(0) == []
    assert boxes("lonelier").receive(0.01) == []


def test_a_wake_up_ends_a_wait_without_a_message(boxes):
    box = boxes("sleeper")
    waker = box.waker()
    returned = []
    thread = in_thread(lambda: returned.append(box.receive(None)))
    waker.wake()
    thread.join(PATIENCE_S)
    waker.close()
    assert returned == [[]]


def test_a_wake_up_from_before_the_wait_is_not_swallowed(boxes):
    box = boxes("sleeper")
    waker = box.waker()
    for _ in range(200):
        waker.wake()
        assert box.receive(None) == []
    waker.close()


def test_wake_ups_into_a_full_inbox_do_not_block(boxes):
    box = boxes("busy")
    waker = box.waker()
    for _ in range(10_000):
        waker.wake()
    assert box.receive(None) == []
    waker.close()


def test_wakers_send_from_many_threads(boxes):
    box = boxes("receiver")
    waker = box.waker()

    def send(index):
        for number in range(100):
            waker.send(numbered(1000 * index + number))
            waker.wake()

    threads = [in_thread(lambda index=index: send(index)) for index in range(8)]
    got = received(box, 800)
    for thread in threads:
        thread.join(PATIENCE_S)
    waker.close()
    for index in range(8):
        assert [each for each in got if each // 1000 == index] == list(range(1000 * index, 1000 * index + 100))


def test_what_a_waker_sent_before_it_closed_arrives(boxes):
    box = boxes("receiver")
    waker = box.waker()
    waker.send(Stop())
    waker.close()
    assert box.receive(PATIENCE_S) == [Stop()]
