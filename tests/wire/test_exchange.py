"""What holds for every transport; `test_shm.py` has what only shared memory does."""

import numpy as np
import pytest

from mstar_core.wire.exchange import Exchange
from mstar_core.wire.messages import Address, TensorRef
from mstar_core.wire.store import Local, LocalStore

DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]

SHAPES = [(), (0, 3), (5,), (17, 1001)]

BFLOAT16_ONE = 0x3F80
"""The upper half of float32's one."""


def exchanges_by(transport):
    """Two exchanges whose larger tensors move by that transport."""
    if transport == "local":
        store = LocalStore()
        return [Exchange(Address("h", f"inproc://{name}"), local=store) for name in "ab"]
    return [Exchange(Address("h" if transport == "shm" else name, f"ipc:///{name}")) for name in "ab"]


@pytest.fixture(params=["local", "shm", "inline"])
def pair(request):
    """A publisher and a receiver."""
    exchanges = exchanges_by(request.param)
    exchanges[0].transport = request.param
    yield exchanges
    for exchange in exchanges:
        exchange.close()


def counted(exchange):
    """Values of all samples, by name and transport."""
    return {(each.name, *each.labels.values()): each.value for each in exchange.samples()}


def kept(exchange):
    """How many tensors an exchange's transports keep."""
    return sum(each.value for each in exchange.samples() if each.kind == "gauge" and each.name.endswith("_tensors"))


def large(number=0):
    return np.arange(number, number + 5000, dtype=np.int32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_an_array_arrives_as_it_was_published(pair, dtype, shape):
    publisher, receiver = pair
    array = np.random.default_rng(1).integers(0, 2, shape).astype(dtype)
    ref = publisher.publish(array, receiver.address)
    assert (ref.dtype, ref.shape, ref.held) == (dtype, shape, False)
    taken = receiver.take(ref)
    assert (taken.dtype, taken.shape) == (array.dtype, shape)
    np.testing.assert_array_equal(taken, array)


def test_an_array_that_is_a_view_arrives_in_its_order(pair):
    publisher, receiver = pair
    array = large().reshape(50, 100).T[::-1]
    np.testing.assert_array_equal(receiver.take(publisher.publish(array, receiver.address)), array)


def test_bits_of_a_dtype_that_numpy_lacks_keep_its_name(pair):
    publisher, receiver = pair
    bits = np.full((100, 100), BFLOAT16_ONE, np.uint16)
    ref = publisher.publish(bits, receiver.address, "bfloat16", (10_000,))
    assert (ref.dtype, ref.shape) == ("bfloat16", (10_000,))
    taken = receiver.take(ref)
    assert (taken.dtype, taken.shape) == (np.uint16, (10_000,))
    assert (taken == BFLOAT16_ONE).all()


def test_a_tensor_is_taken_once(pair):
    publisher, receiver = pair
    ref = publisher.publish(large(), receiver.address)
    if ref.data is None:  # a message's bytes are the receiver's own
        receiver.take(ref)
        with pytest.raises(KeyError):
            receiver.take(ref)


def test_what_moves_by_which_transport_is_counted(pair):
    publisher, receiver = pair
    publisher.publish(large(), receiver.address)
    counts = counted(publisher)
    assert counts["mstar_tensors_sent", publisher.transport] == 1
    assert counts["mstar_tensor_bytes_sent", publisher.transport] == 20_000
    assert counts["mstar_transport_full",] == 0


def test_small_tensors_for_other_processes_travel_in_the_message():
    publisher, receiver = exchanges_by("shm")
    ref = publisher.publish(np.zeros(2**14, np.uint8), receiver.address)
    assert ref.data == bytes(2**14)
    publisher.close()
    np.testing.assert_array_equal(receiver.take(ref), np.zeros(2**14))
    receiver.close()


def test_within_a_process_the_array_itself_is_taken():
    publisher, receiver = exchanges_by("local")
    array = large()
    assert receiver.take(publisher.publish(array, receiver.address)) is array
    assert receiver.held_array(publisher.hold(array)) is array


def test_other_transports_do_not_share_memory_with_the_publisher():
    for transport in ("shm", "inline"):
        publisher, receiver = exchanges_by(transport)
        array = large()
        ref = publisher.publish(array, receiver.address)
        array[:] = 0
        np.testing.assert_array_equal(receiver.take(ref), large())
        publisher.close(), receiver.close()


def test_a_released_tensor_is_gone_and_releasing_again_is_fine(pair):
    publisher, receiver = pair
    ref = publisher.publish(large(), receiver.address)
    receiver.release(ref)
    receiver.release(ref)
    assert kept(publisher) == 0
    if ref.data is None:
        with pytest.raises(KeyError):
            receiver.take(ref)


def test_what_was_published_to_a_party_that_is_gone_is_freed_and_nothing_else(pair):
    publisher, receiver = pair
    publisher.publish(large(), receiver.address)
    other = publisher.publish(large(1), Address("h", receiver.address.near + "other"))
    held = publisher.hold(large(2))
    before = kept(publisher)
    publisher.forget(receiver.address)
    assert kept(publisher) == before - (publisher.transport != "inline")
    np.testing.assert_array_equal(publisher.take(other), large(1))
    np.testing.assert_array_equal(publisher.held_array(held), large(2))


def test_a_held_tensor_is_taken_often_until_it_is_dropped():
    for transport in ("local", "shm"):
        publisher, receiver = exchanges_by(transport)
        ref = publisher.hold(large())
        assert (ref.held, ref.data, receiver.reachable(ref)) == (True, None, True)
        for _ in range(3):
            np.testing.assert_array_equal(receiver.take(ref), large())
        receiver.release(ref)
        np.testing.assert_array_equal(publisher.held_array(ref), large())
        publisher.drop(ref)
        publisher.drop(ref)
        assert kept(publisher) == 0
        with pytest.raises(KeyError):
            receiver.take(ref)
        publisher.close(), receiver.close()


def test_what_is_held_on_another_host_is_fetched_as_bytes():
    publisher, receiver = exchanges_by("inline")
    ref = publisher.hold(large())
    assert publisher.reachable(ref)
    assert not receiver.reachable(ref)
    with pytest.raises(KeyError):
        receiver.take(ref)
    fetched = publisher.inline(ref)
    assert receiver.reachable(fetched)
    np.testing.assert_array_equal(receiver.take(fetched), large())
    publisher.drop(ref)
    assert kept(publisher) == 0
    publisher.close(), receiver.close()


def test_a_small_held_tensor_is_reachable_from_everywhere():
    publisher, receiver = exchanges_by("inline")
    ref = publisher.hold(np.arange(3), "int64")
    assert (ref.held, receiver.reachable(ref)) == (True, True)
    assert publisher.inline(ref) is ref
    np.testing.assert_array_equal(receiver.take(ref), np.arange(3))
    publisher.drop(ref)
    publisher.close(), receiver.close()


def test_a_reference_into_another_process_s_store_is_not_reachable():
    (publisher, _), (stranger, _) = exchanges_by("local"), exchanges_by("local")
    ref = publisher.publish(large(), publisher.address)
    assert not stranger.reachable(ref)
    stranger.release(ref)
    with pytest.raises(KeyError):
        stranger.take(ref)
    np.testing.assert_array_equal(publisher.take(ref), large())


def test_a_reference_of_a_transport_that_is_not_here_is_not_reachable():
    exchange = Exchange(Address("h", "ipc:///a"))
    ref = TensorRef("int8", (), None, "rdma")
    assert not exchange.reachable(ref)
    exchange.release(ref)
    with pytest.raises(KeyError, match="rdma"):
        exchange.take(ref)
    exchange.close()


@pytest.mark.parametrize("dtype", ["object", "S4", "M8[s]"])
def test_what_is_no_tensor_is_refused_on_both_sides(dtype):
    exchange = Exchange(Address("h", "inproc://a"))
    with pytest.raises(TypeError, match="tensors hold numbers"):
        exchange.publish(np.zeros(1, dtype), exchange.address)
    with pytest.raises(TypeError, match="tensors hold numbers"):
        exchange.take(TensorRef(dtype, (1,), bytes(8)))


def test_bytes_that_do_not_fill_their_shape_are_refused():
    exchange = Exchange(Address("h", "inproc://a"))
    with pytest.raises(ValueError, match=r"7 bytes are no tensor of shape \(2,\) and dtype float32"):
        exchange.take(TensorRef("float32", (2,), bytes(7)))


class Remote(Local):
    """A plugin's transport, which reaches one other host."""

    name = "remote"

    def reaches(self, receiver):
        return receiver.host == "b"


def test_a_transport_of_a_plugin_moves_what_it_reaches():
    store = LocalStore()
    publisher, receiver = (
        Exchange(address, transports=[Remote(address, store)])
        for address in (Address("a", "ipc:///a"), Address("b", "ipc:///b"))
    )
    ref = publisher.publish(large(), receiver.address)
    assert ref.transport == "remote"
    np.testing.assert_array_equal(receiver.take(ref), large())
    assert publisher.publish(large(), Address("c", "ipc:///c")).data is not None
    publisher.close(), receiver.close()
