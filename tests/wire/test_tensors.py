import gc
import itertools

import numpy as np
import pytest
import torch

from mstar_core.wire.exchange import Exchange
from mstar_core.wire.messages import Address
from mstar_core.wire.store import LocalStore
from mstar_core.wire.tensors import publish_tensor, take_tensor

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]

SHAPES = [(), (0, 3), (5,), (17, 1001)]


@pytest.fixture(params=["local", "shm", "inline"])
def pair(request):
    """A publisher and a receiver, between whom larger tensors move by that transport."""
    store = LocalStore()
    kind = "inproc" if request.param == "local" else "ipc"
    hosts = "ab" if request.param == "inline" else "hh"
    exchanges = [
        Exchange(Address(host, f"{kind}:///{name}"), local=store) for host, name in zip(hosts, "ab", strict=True)
    ]
    yield exchanges
    for exchange in exchanges:
        exchange.close()


def shared_tensors(exchange):
    return next(sample.value for sample in exchange.samples() if sample.name == "mstar_shared_tensors")


def moved(pair, tensor):
    publisher, receiver = pair
    return take_tensor(receiver, publish_tensor(publisher, tensor, receiver.address))


def ones_and_zeros(shape, dtype, device="cpu"):
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) % 2).to(device, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_tensor_arrives_as_it_was_published(pair, shape, dtype):
    tensor = ones_and_zeros(shape, dtype)
    arrived = moved(pair, tensor)
    assert (arrived.dtype, arrived.shape) == (dtype, tensor.shape)
    torch.testing.assert_close(arrived, tensor, rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tensors_of_a_device_arrive_as_they_were_published(pair):
    for dtype, shape in itertools.product(DTYPES, SHAPES):
        tensor = ones_and_zeros(shape, dtype, "cuda")
        arrived = moved(pair, tensor)
        assert (arrived.dtype, arrived.shape) == (dtype, tensor.shape)
        torch.testing.assert_close(arrived.cpu(), tensor.cpu(), rtol=0, atol=0)


def test_views_and_lazily_computed_numbers_arrive_in_their_order(pair):
    numbers = torch.randn(60, 100, dtype=torch.complex64)
    for tensor in (numbers.T[5:], numbers.conj(), numbers.conj().imag, numbers.real.expand(2, 60, 100)):
        torch.testing.assert_close(moved(pair, tensor), tensor, rtol=0, atol=0)


def test_a_tensor_that_needs_gradients_arrives_without_them(pair):
    tensor = torch.randn(20_000, requires_grad=True)
    arrived = moved(pair, tensor)
    assert not arrived.requires_grad
    torch.testing.assert_close(arrived, tensor.detach())


def test_what_arrived_can_be_written_to(pair):
    for size in (1, 30_000):
        arrived = moved(pair, torch.ones(size, dtype=torch.bfloat16))
        arrived += 1
        assert (arrived == 2).all()


def test_a_tensor_is_an_array_for_those_without_torch_and_the_other_way_round(pair):
    publisher, receiver = pair
    ref = publish_tensor(publisher, torch.full((30_000,), 2, dtype=torch.bfloat16), receiver.address)
    bits = receiver.take(ref)
    assert (bits.dtype, bits.shape) == (np.uint16, (30_000,))
    assert torch.equal(torch.from_numpy(bits.copy()).view(torch.bfloat16), torch.full((30_000,), 2.0).bfloat16())
    array = np.arange(20_000.0)
    assert torch.equal(take_tensor(publisher, receiver.publish(array, publisher.address)), torch.from_numpy(array))


def test_within_a_process_the_tensor_itself_is_taken():
    store = LocalStore()
    publisher, receiver = (Exchange(Address("h", f"inproc://{name}"), local=store) for name in "ab")
    tensor, array = torch.randn(10, 10), np.zeros(4)
    for view in (tensor, tensor.T, tensor[2:]):
        ref = publish_tensor(publisher, view, receiver.address)
        taken = take_tensor(receiver, ref)
        assert (taken.data_ptr(), taken.stride()) == (view.data_ptr(), view.stride())
    assert take_tensor(receiver, publisher.publish(array, receiver.address)).data_ptr() == array.ctypes.data
    array.flags.writeable = False
    assert torch.equal(take_tensor(receiver, publisher.publish(array, receiver.address)), torch.zeros(4).double())


def test_a_slot_is_given_back_when_the_tensor_and_its_views_are_gone():
    publisher, receiver = (Exchange(Address("h", f"ipc:///{name}")) for name in "ab")
    arrived = moved((publisher, receiver), torch.ones(30_000, dtype=torch.bfloat16))
    part = arrived.view(300, 100)[7].view(torch.int16)
    del arrived
    gc.collect()
    assert shared_tensors(publisher) == 1
    assert (part == part[0]).all()
    del part
    assert shared_tensors(publisher) == 0
    publisher.close(), receiver.close()


def test_what_is_no_dense_tensor_is_refused(pair):
    with pytest.raises(TypeError, match="make it dense"):
        moved(pair, torch.eye(3).to_sparse())
