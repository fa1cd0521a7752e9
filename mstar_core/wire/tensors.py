"""The torch half of the exchange: the same as `Exchange.publish` and `take`, for tensors of any device and dtype."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mstar_core.wire.exchange import Exchange
from mstar_core.wire.messages import Address, TensorRef
from mstar_core.wire.transport import STAND_INS, Payload, numpy_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray


def publish_tensor(exchange: Exchange, tensor: torch.Tensor, receiver: Address) -> TensorRef:
    """Make a tensor available to one receiver, who takes or releases it.

    One copy from where it is to where the receiver reads it; none within a process, where the caller no longer writes
    to it.
    """
    return exchange.publish_payload(TensorPayload(tensor.detach()), receiver)


def take_tensor(exchange: Exchange, ref: TensorRef) -> torch.Tensor:
    """The tensor behind a reference; once, unless it is held.

    In host memory, sharing what the transport provides; within a process it is the published tensor itself. Its memory
    is given back when it and all that shares it are gone; a held one may not be written to. Raises `KeyError` when its
    publisher has dropped it.
    """
    payload = exchange.take_payload(ref)
    if isinstance(payload, TensorPayload):
        return payload.tensor()
    array = payload.array()
    if not array.flags.writeable:  # the bytes of a message; torch has no tensors that cannot be written to
        array = array.copy()
    tensor = torch.from_numpy(array)
    return tensor.view(_torch_dtype(payload.dtype)) if payload.dtype in STAND_INS else tensor


class TensorPayload(Payload):
    """A tensor of any device, which may still be being computed by its current stream."""

    __slots__ = ("_done", "_tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided:
            raise TypeError(f"tensors of layout {tensor.layout} cannot go to another party; make it dense first")
        self._tensor = tensor
        self._done = torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None
        self.dtype = _name(tensor.dtype)
        self.shape = tuple(tensor.shape)
        self.nbytes = tensor.numel() * tensor.element_size()

    def tensor(self) -> torch.Tensor:
        """The tensor itself, for the current stream of its device."""
        if self._done is not None:
            stream = torch.cuda.current_stream(self._tensor.device)
            stream.wait_event(self._done)
            self._tensor.record_stream(stream)
        return self._tensor

    def write(self, room: NDArray[np.uint8]) -> None:
        """Copy to host memory, in one go from a device too."""
        if self.nbytes:
            torch.from_numpy(room).view(self._tensor.dtype).view(self.shape).copy_(self.tensor())

    def array(self) -> NDArray[Any]:
        """The tensor as an array: a copy only from a device, or of lazily conjugated or negated numbers."""
        tensor = self.tensor().cpu().resolve_conj().resolve_neg()
        if self.dtype in STAND_INS:
            tensor = tensor.contiguous().view(_torch_dtype(str(numpy_dtype(self.dtype))))
        array: NDArray[Any] = tensor.numpy()
        return array


@functools.cache
def _name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    numpy_dtype(name)
    return name


@functools.cache
def _torch_dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype
