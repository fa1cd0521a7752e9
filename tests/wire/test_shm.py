"""What only shared memory does: slots that are given back, parties that die, an arena that is full."""

import gc
import os
import signal
import threading
from contextlib import suppress

import numpy as np
import pytest
import zmq

from mstar_core.wire.arena import SUPPORTED, OwnArena
from mstar_core.wire.exchange import Exchange
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import Address, Emitted, Output, Stop

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="needs memfd, which Linux has")

PATIENCE_S = 30.0

LARGE = 100_000
"""Bytes of a tensor that goes into a slot."""


@pytest.fixture
def exchanges():
    """Makes exchanges of one host, that are closed at the end."""
    made = []

    def make(name, **options):
        made.append(Exchange(Address("h", f"ipc:///{name}"), **options))
        return made[-1]

    yield make
    for exchange in made:
        exchange.close()


def filled(value, size=LARGE):
    return np.full(size, value, np.uint8)


def slots(exchange):
    """Tensors and bytes in the party's arena."""
    values = {sample.name: int(sample.value) for sample in exchange.samples()}
    return values["mstar_shared_tensors"], values["mstar_shared_bytes"]


def test_a_slot_is_given_back_when_the_array_and_its_views_are_gone(exchanges):
    publisher, receiver = exchanges("a"), exchanges("b")
    array = receiver.take(publisher.publish(filled(1), receiver.address))
    row = array.reshape(100, -1).view(np.int8)[3][5:]
    assert slots(publisher) == (1, 100_096)
    del array
    assert slots(publisher) == (1, 100_096)
    assert (row == 1).all()
    del row
    assert slots(publisher) == (0, 0)


def test_arrays_die_in_any_thread(exchanges):
    publisher, receiver = exchanges("a"), exchanges("b")
    arrays = [receiver.take(publisher.publish(filled(value), receiver.address)) for value in range(40)]

    def let_go():
        while arrays:
            with suppress(IndexError):
                assert np.ptp(arrays.pop()) == 0

    threads = [threading.Thread(target=let_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(100):
        receiver.release(publisher.publish(filled(number), receiver.address))
    for thread in threads:
        thread.join()
    assert slots(publisher) == (0, 0)


def test_releasing_what_was_taken_does_not_take_it_away(exchanges):
    publisher, receiver = exchanges("a"), exchanges("b")
    ref = publisher.publish(filled(1), receiver.address)
    array = receiver.take(ref)
    receiver.release(ref)
    publisher.publish(filled(2), receiver.address)
    assert (array == 1).all()
    assert slots(publisher)[0] == 2


def test_an_array_of_a_forgotten_receiver_gives_nothing_back_that_is_another_s(exchanges):
    publisher, lost, other = exchanges("a"), exchanges("b"), exchanges("c")
    lost_ref = publisher.publish(filled(1), lost.address)
    array = lost.take(lost_ref)
    publisher.forget(lost.address)
    assert slots(publisher) == (0, 0)
    ref = publisher.publish(filled(2), other.address)
    assert ref.key % 2**32 == lost_ref.key % 2**32
    del array
    lost.release(lost_ref)
    with pytest.raises(KeyError):
        lost.take(lost_ref)
    assert slots(publisher)[0] == 1
    assert (other.take(ref) == 2).all()


def test_what_finds_no_room_travels_in_the_message_until_there_is_room_again(exchanges):
    publisher, receiver = exchanges("a", shared_bytes=3 * LARGE), exchanges("b")
    arrays = [receiver.take(publisher.publish(filled(value), receiver.address)) for value in (0, 1)]
    refs = [publisher.publish(filled(2), receiver.address), publisher.hold(filled(3))]
    assert [(ref.transport, len(ref.data), ref.held) for ref in refs] == [("", LARGE, False), ("", LARGE, True)]
    assert [int(receiver.take(ref)[0]) for ref in refs] == [2, 3]
    full = next(sample for sample in publisher.samples() if sample.name == "mstar_transport_full")
    assert full.value == 2
    del arrays[0]
    assert publisher.publish(filled(4), receiver.address).data is None
    assert publisher.publish(filled(5, 10 * LARGE), receiver.address).data is not None


def test_slots_are_used_again_without_end(exchanges):
    publisher, receiver = exchanges("a", shared_bytes=10 * LARGE), exchanges("b")
    window = []
    for number in range(1000):
        window.append(publisher.publish(filled(number % 256, LARGE // 2 + 97 * number % LARGE), receiver.address))
        if len(window) == 5:
            ref = window.pop(0)
            assert ref.data is None
            array = receiver.take(ref)
            assert (array[0], array[-1]) == ((number - 4) % 256,) * 2
            del array
    for ref in window:
        receiver.release(ref)
    assert slots(publisher) == (0, 0)


def test_a_tensor_that_cannot_be_copied_leaves_no_slot(exchanges):
    publisher = exchanges("a")

    class Broken(np.ndarray):
        def __array_function__(self, *_):
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        publisher.publish(filled(1).view(Broken), exchanges("b").address)
    assert slots(publisher) == (0, 0)


def test_an_arena_has_no_name_and_its_length_is_sealed():
    arena = OwnArena(2**20)
    process, descriptor, _ = arena.place.split("/")
    assert os.stat(f"/proc/{process}/fd/{descriptor}").st_nlink == 0
    with pytest.raises(PermissionError):
        os.ftruncate(int(descriptor), 0)
    arena.close()


def test_without_shared_memory_tensors_travel_in_messages(exchanges):
    publisher, receiver = exchanges("a", shared_bytes=0), exchanges("b")
    ref = publisher.publish(filled(1), receiver.address)
    assert (receiver.take(ref) == 1).all()
    assert (ref.transport, slots(publisher)) == ("", (0, 0))


def test_closing_takes_nothing_from_those_who_have_it(exchanges):
    publisher, receiver, late = exchanges("a"), exchanges("b"), exchanges("c")
    array = receiver.take(publisher.publish(filled(1), receiver.address))
    ref = publisher.publish(filled(2), late.address)
    publisher.close()
    assert (array == 1).all()
    with pytest.raises(KeyError, match="gone"):
        late.take(ref)


class Party:
    """A mailbox and an exchange of this process, and a child that acts upon tensors (`child.py`)."""

    def __init__(self, context, children, directory):
        self.mailbox = Mailbox(context, f"ipc://{directory}/parent")
        self.exchange = Exchange(self.mailbox.address)
        self.child = children({"near": f"ipc://{directory}/child"}, "serve", 2**26)

    def ask(self, what, *arrays, dtype=None):
        """Have the child do `what` with tensors; its answer."""
        receiver = self.child.address
        refs = [self.exchange.publish(array, receiver, dtype) for array in arrays]
        outputs = [Output(number, what, ref) for number, ref in enumerate(refs)]
        self.mailbox.send(receiver, Emitted(self.mailbox.address, outputs))
        answers = []
        while not answers:
            answers = self.mailbox.receive(PATIENCE_S)
        return answers[0].outputs

    def kill(self):
        os.kill(self.child.pid, signal.SIGKILL)
        self.child.wait()
        self.mailbox.disconnect(self.child.address)

    def close(self):
        if self.child.poll() is None:
            self.mailbox.send(self.child.address, Stop())
        self.mailbox.close()
        self.exchange.close()


@pytest.fixture
def party(children, tmp_path):
    with zmq.Context() as context:
        party = Party(context, children, tmp_path)
        yield party
        party.close()


def test_tensors_go_to_another_process_and_back(party):
    sent = [np.random.default_rng(size).integers(0, 2**16, size, np.uint16) for size in (0, 1, 30_000, 300_000)]
    outputs = party.ask("echo", *sent, dtype="bfloat16")
    assert [output.tensor.transport for output in outputs] == ["", "", "shm", "shm"]
    assert {output.tensor.dtype for output in outputs} == {"bfloat16"}
    for output, array in zip(outputs, sent, strict=True):
        np.testing.assert_array_equal(party.exchange.take(output.tensor), array)
    gc.collect()
    assert slots(party.exchange) == (0, 0)


def test_another_process_gives_back_what_it_keeps_no_longer(party):
    party.ask("release", filled(1), filled(2))
    assert slots(party.exchange)[0] == 0
    party.ask("keep", filled(1), filled(2))
    assert slots(party.exchange)[0] == 2
    party.ask("let go", filled(0, 1))
    assert slots(party.exchange)[0] == 0


def test_what_a_killed_process_kept_or_never_took_is_freed_by_forgetting_it(party):
    party.ask("keep", filled(1), filled(2))
    party.kill()
    party.exchange.publish(filled(3), party.child.address)
    assert slots(party.exchange)[0] == 3
    party.exchange.forget(party.child.address)
    assert slots(party.exchange) == (0, 0)


def test_what_a_killed_process_published_stays_readable_and_is_then_gone(party):
    taken, untaken = party.ask("echo", filled(1), filled(2))
    array = party.exchange.take(taken.tensor)
    party.kill()
    assert (array == 1).all()
    party.exchange.forget(party.child.address)
    with pytest.raises(KeyError, match="gone"):
        party.exchange.take(untaken.tensor)
    party.exchange.release(untaken.tensor)
    assert (array == 1).all()
