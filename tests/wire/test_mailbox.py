import itertools
import logging
import threading
import time
from pathlib import Path

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from mstar_core.errors import ConfigurationError
from mstar_core.wire.address import Keys, host_identity
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import Address, Stop, WorkerFailed

PATIENCE_S = 30.0
"""Long enough that only a deadlock takes it."""


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
            parties[name].send(parties[peer].address, numbered(number, size=10_000))
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
            sender.send(receiver.address, numbered(number, size=1000))
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
        sender.send(receiver.address, numbered(1000 * index + number))
    got = received(receiver, 300)
    for index in range(3):
        assert [each for each in got if each // 1000 == index] == list(range(1000 * index, 1000 * index + 100))


def test_a_slow_peer_does_not_keep_messages_from_others(boxes):
    sender, slow, quick = boxes("sender"), boxes("slow"), boxes("quick")
    for number in range(5000):
        sender.send(slow.address, numbered(number, size=1000))
    sender.send(quick.address, numbered(7))
    assert received(quick, 1) == [7]
    sender.disconnect(slow.address)


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


def test_a_closed_mailbox_takes_nothing_and_its_wakers_do_not_wait_for_it(boxes):
    box = boxes("gone")
    waker = box.waker()
    box.close()
    for _ in range(3000):
        waker.send(Stop())
    waker.wake()
    waker.close()


def test_a_mailbox_closes_twice_whatever_waits_in_it(boxes):
    sender, slow = boxes("sender"), boxes("slow")
    for number in range(5000):
        sender.send(slow.address, numbered(number, size=1000))
    assert sender.waiting > 0
    slow.close()
    sender.close()
    sender.close()
    assert sender.waiting == 0


def test_a_burst_is_received_in_parts(boxes):
    sender, receiver = boxes("sender"), boxes("receiver")
    for number in range(2500):
        sender.send(receiver.address, numbered(number))
    got, parts = [], []
    while len(got) < 2500:
        sender.receive(0)
        parts.append([int(message.worker) for message in receiver.receive(PATIENCE_S)])
        got += parts[-1]
    assert got == list(range(2500))
    assert max(map(len, parts)) <= 1000


def test_what_waits_for_a_peer_that_is_gone_is_dropped(boxes):
    sender, slow, quick = boxes("sender"), boxes("slow"), boxes("quick")
    for number in range(5000):
        sender.send(slow.address, numbered(number, size=1000))
    assert sender.waiting > 0
    sender.disconnect(slow.address)
    sender.disconnect(slow.address)
    assert sender.waiting == 0
    sender.send(quick.address, numbered(7))
    assert sender.receive(0) == []
    assert received(quick, 1) == [7]


def test_a_party_that_comes_back_at_its_endpoint_is_sent_to_again(context, tmp_path):
    with Mailbox(context, f"ipc://{tmp_path}/sender") as sender:
        for number in range(2):
            with Mailbox(context, f"ipc://{tmp_path}/peer") as peer:
                sender.send(peer.address, numbered(number))
                assert received(peer, 1) == [number]
                sender.disconnect(peer.address)


def test_what_was_sent_just_before_a_close_arrives(boxes):
    sender, receiver = boxes("sender"), boxes("receiver")
    for number in range(100):
        sender.send(receiver.address, numbered(number, size=10_000))
    sender.close()
    assert received(receiver, 100) == list(range(100))


def test_a_closed_mailbox_leaves_no_socket_file_and_a_lost_file_does_not_silence_wakers(context, tmp_path):
    file = tmp_path / "box"
    with Mailbox(context, f"ipc://{file}") as box:
        assert box.address == Address(host_identity(), f"ipc://{file}")
        file.unlink()
        waker = box.waker()
        waker.send(Stop())
        assert box.receive(PATIENCE_S) == [Stop()]
        waker.close()
    with Mailbox(context, f"ipc://{file}"):
        assert file.is_socket()
    assert list(tmp_path.iterdir()) == []


def test_frames_that_are_no_messages_are_dropped_and_reported_once(context, tmp_path, caplog):
    with Mailbox(context, f"ipc://{tmp_path}/box") as box, context.socket(zmq.PUSH) as stranger:
        stranger.connect(box.address.near)
        with caplog.at_level(logging.WARNING):
            for frame in (b"nonsense", b"\x81\xa4type\xa7unknown", b"\xc1" * 1000):
                stranger.send(frame)
            stranger.send(b"\x81\xa4type\xa4stop")
            got = []
            while not got:
                got = box.receive(PATIENCE_S)
        assert got == [Stop()]
        assert [record.message[:16] for record in caplog.records] == ["dropped 1 frames"]


def test_a_mailbox_between_hosts_needs_keys_and_an_interface(context, tmp_path, keys):
    with pytest.raises(ConfigurationError, match="needs keys"):
        Mailbox(context, f"ipc://{tmp_path}/box", far="tcp://127.0.0.1:0")
    with pytest.raises(ConfigurationError, match="one interface"):
        Mailbox(context, f"ipc://{tmp_path}/box", far="tcp://*:0", keys=keys)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def far(context, tmp_path, keys):
    """A mailbox that is reached from other hosts."""
    with Mailbox(context, f"ipc://{tmp_path}/far", far="tcp://127.0.0.1:0", keys=keys, host="far") as box:
        yield box


def refused(socket, act):
    """Do something with a socket, and wait until a handshake of it has failed."""
    failures = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    monitor = socket.get_monitor_socket(failures | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
    with monitor:
        act()
        assert monitor.poll(PATIENCE_S * 1000), "nobody refused the handshake"
        recv_monitor_message(monitor)
        socket.disable_monitor()


def encrypt(socket, own, server=None):
    socket.curve_publickey, socket.curve_secretkey = own.public.encode(), own.secret.encode()
    if server:
        socket.curve_serverkey = server.public.encode()


@pytest.mark.parametrize("knows", ["nothing", "the wrong key", "the public key"])
def test_a_stranger_cannot_send_into_a_mailbox(far, keys, knows):
    with zmq.Context() as elsewhere, elsewhere.socket(zmq.PUSH) as stranger:
        stranger.linger = 0
        if knows != "nothing":
            encrypt(stranger, Keys.generate(), server=keys if knows == "the public key" else Keys.generate())
        where = far.address.far

        def send():
            stranger.connect(where)
            stranger.send(b"\x81\xa4type\xa4stop")

        if knows == "the public key":
            refused(stranger, send)
        else:  # the handshake fails where it cannot be read
            refused(far._inbox, send)
    assert far.receive(0) == []


@pytest.mark.parametrize("has", ["no keys", "other keys"])
def test_an_impostor_gets_nothing_of_what_is_sent_to_its_endpoint(far, has):
    with zmq.Context() as elsewhere, elsewhere.socket(zmq.PULL) as impostor:
        if has == "other keys":
            impostor.curve_server = True
            encrypt(impostor, Keys.generate())
        port = impostor.bind_to_random_port("tcp://127.0.0.1")
        address = Address("elsewhere", "ipc:///nowhere", f"tcp://127.0.0.1:{port}")
        refused(impostor, lambda: far.send(address, Stop()))
        assert not impostor.poll(0)
        far.disconnect(address)


def test_a_gate_stays_open_for_the_other_mailboxes_of_a_context(context, far, tmp_path, keys):
    with Mailbox(context, f"ipc://{tmp_path}/one", far="tcp://127.0.0.1:0", keys=keys, host="one"):
        pass
    with zmq.Context() as elsewhere, Mailbox(elsewhere, f"ipc://{tmp_path}/two", keys=keys, host="two") as sender:
        sender.send(far.address, numbered(5))
        assert received(far, 1) == [5]


@pytest.mark.parametrize("kind", ["near", "far"])
def test_two_processes_that_burst_at_each_other_before_either_reads_both_finish(
    children, context, tmp_path, keys, kind
):
    keys.save(tmp_path / "keys")
    own = {"far": "tcp://127.0.0.1:0", "keys": keys, "host": "here"} if kind == "far" else {}
    theirs = {"far": "tcp://127.0.0.1:0", "keys": str(tmp_path / "keys"), "host": "there"} if kind == "far" else {}
    with Mailbox(context, f"ipc://{tmp_path}/here", **own) as box:
        here = [box.address.host, box.address.near, box.address.far]
        child = children({"near": f"ipc://{tmp_path}/there", **theirs}, "burst", here, 3000)
        for number in range(3000):
            box.send(child.address, numbered(number, size=10_000))
        got = []
        while Stop() not in got:
            got += box.receive(1.0)
            assert child.poll() in (None, 0)
        assert [int(message.worker) for message in got[:-1]] == list(range(3000))
        assert child.wait(PATIENCE_S) == 0
        assert not Path(tmp_path, "there").exists()


def test_parties_of_the_host_need_no_keys_for_a_mailbox_that_others_reach_with_them(context, far, tmp_path):
    with Mailbox(context, f"ipc://{tmp_path}/neighbour", host="far") as sender:
        sender.send(far.address, numbered(3))
        assert received(far, 1) == [3]


def test_a_party_that_was_never_reachable_can_be_disconnected(boxes):
    boxes("sender").disconnect(Address("elsewhere", "ipc:///nowhere"))
