"""What flows between nodes, on its way to another worker and back: tensors by reference, everything else as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import torch

from mstar_core.engines.base import Chunk, Row
from mstar_core.errors import Unavailable
from mstar_core.wire.exchange import Exchange
from mstar_core.wire.messages import Address, ChunkRef, ListRef, TensorRef, Value
from mstar_core.wire.tensors import publish_tensor, take_tensor


def pack(value: Any, receiver: Address, exchange: Exchange) -> Value:
    """A port's value for another worker. Raises for what cannot travel, `TypeError` as a rule."""
    if isinstance(value, np.generic):
        value = value.item()
    match value:
        case None | bool() | int() | float() | str():
            msgspec.msgpack.encode(value)  # too large a number and half a character are refused now
            return value
        case Row():
            return publish_tensor(exchange, value.tensor(), receiver)
        case torch.Tensor():
            return publish_tensor(exchange, value, receiver)
        case Chunk():
            items = [pack_item(item, receiver, exchange) for item in value.items]
            return ChunkRef(items, value.context, value.position, value.final)
        case list() | tuple():
            return ListRef([pack(each, receiver, exchange) for each in value])
    raise TypeError(
        f"a value of type {type(value).__name__} cannot go to another worker; give tensors, numbers or text"
    )


def pack_item(item: Any, receiver: Address, exchange: Exchange) -> TensorRef:
    """One item of a stream: a tensor, or a number, which becomes one."""
    if isinstance(item, Row):
        item = item.tensor()
    return publish_tensor(exchange, torch.as_tensor(item), receiver)


def taken(ref: TensorRef, exchange: Exchange) -> torch.Tensor:
    """The tensor behind a reference. Raises `Unavailable` when its owner is gone."""
    try:
        return take_tensor(exchange, ref)
    except KeyError:
        raise Unavailable("another party, which held a tensor of the request, is gone", retry_after=1.0) from None


def unpack(value: Value, exchange: Exchange) -> Any:
    """The value again. Raises `Unavailable` for a tensor whose owner is gone."""
    match value:
        case TensorRef():
            return taken(value, exchange)
        case ChunkRef(items, context, position, final):
            return Chunk(tuple(taken(item, exchange) for item in items), context, position, final)
        case ListRef(values):
            return [unpack(each, exchange) for each in values]
    return value


def tensors_in(values: Mapping[str, Value]) -> Iterator[TensorRef]:
    """Every reference among the values of ports."""
    for value in values.values():
        yield from _tensors(value)


def _tensors(value: Value) -> Iterator[TensorRef]:
    match value:
        case TensorRef():
            yield value
        case ChunkRef():
            yield from value.items
        case ListRef(values):
            for each in values:
                yield from _tensors(each)
