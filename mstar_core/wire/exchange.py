"""A party's exchange of tensors with others: what it publishes, and what it takes. Torch-free.

A message names a tensor by a `TensorRef`. Which transport moves it is the publisher's choice, by who is to have it:
within a process by reference (`local`), within a host through shared memory (`shm`), or in the message itself: small
tensors, other hosts, and whenever another transport has no room. `wire/tensors.py` is the same for torch's tensors.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mstar_core.wire.messages import Address, Sample, TensorRef
from mstar_core.wire.shm import SHARED_BYTES, SharedMemory
from mstar_core.wire.store import INPROC, Local, LocalStore
from mstar_core.wire.transport import ArrayPayload, Inline, Payload, Transport

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Exchange:
    """One party's exchange. Safe from any thread; arrays that were taken may die in any thread.

    `address` is the party's own; `local` the store that all parties of its process share; `shared_bytes` the most
    that the party keeps in shared memory, which is taken from the system as it is used; `transports` those of plugins,
    which are asked before shared memory.
    """

    def __init__(
        self,
        address: Address,
        *,
        local: LocalStore | None = None,
        shared_bytes: int = SHARED_BYTES,
        transports: Sequence[Transport] = (),
    ) -> None:
        self.address = address
        inproc = address.near.startswith(INPROC)
        self._inline = Inline()
        self._transports: tuple[Transport, ...] = (
            *([Local(address, local)] if inproc and local is not None else []),
            *transports,
            *([] if inproc else [SharedMemory(address.host, shared_bytes)]),
            self._inline,
        )
        self._by_name = {transport.name: transport for transport in self._transports}
        self._routes: dict[Address, list[Transport]] = {}
        self._lock = threading.Lock()
        self._counts = {transport.name: _Count() for transport in self._transports}
        self._without_room = 0

    def publish(
        self,
        array: NDArray[Any],
        receiver: Address,
        dtype: str | None = None,
        shape: Sequence[int] | None = None,
    ) -> TensorRef:
        """Make an array available to one receiver, who takes or releases it.

        `dtype` names what the array's bits mean where numpy has no such dtype (`bfloat16` as uint16). The caller may
        write to the array again, unless the receiver is in its own process.
        """
        return self.publish_payload(ArrayPayload(array, dtype, shape), receiver)

    def hold(self, array: NDArray[Any], dtype: str | None = None) -> TensorRef:
        """Make an array available to any number of receivers, until `drop`; others on other hosts must ask for it."""
        return self._published(ArrayPayload(array, dtype), self.address, held=True)

    def take(self, ref: TensorRef) -> NDArray[Any]:
        """The array behind a reference, without a copy; once, unless it is held.

        Its memory is given back to the publisher when the array and all views of it are gone. A held one may not be
        written to, and must be gone before its publisher drops it. Raises `KeyError` when it is gone.
        """
        return self.take_payload(ref).array()

    def held_array(self, ref: TensorRef) -> NDArray[Any]:
        """The array behind a reference that this party holds itself."""
        assert ref.held
        return self.take_payload(ref).array()

    def inline(self, ref: TensorRef) -> TensorRef:
        """The same tensor with its bytes in the reference, for a receiver on another host. `ref` is held here."""
        assert ref.held
        return ref if ref.data is not None else self._inline.publish(self.take_payload(ref), None)

    def release(self, ref: TensorRef) -> None:
        """A reference that came here will not be taken; one that was taken, is held or is gone is fine."""
        transport = self._transport(ref)
        if transport:
            transport.release(ref)

    def drop(self, ref: TensorRef) -> None:
        """Free what this party holds; nobody reads it any more. Dropping twice is fine."""
        assert ref.held
        self._by_name[ref.transport or self._inline.name].drop(ref)

    def reachable(self, ref: TensorRef) -> bool:
        """Whether a reference can be taken here; otherwise it is held on another host and must be fetched."""
        transport = self._transport(ref)
        return transport is not None and transport.reachable(ref)

    def forget(self, address: Address) -> None:
        """A party is gone: free what was published to it."""
        self._routes.pop(address, None)
        for transport in self._transports:
            transport.forget(address)

    def samples(self) -> list[Sample]:
        """What was published, by transport, and what is in use."""
        samples = [sample for transport in self._transports for sample in transport.samples()]
        for name, count in self._counts.items():
            label = {"transport": name}
            samples.append(Sample("mstar_tensors_sent", "counter", "Tensors published.", label, count.tensors))
            samples.append(Sample("mstar_tensor_bytes_sent", "counter", "Bytes of those.", label, count.size))
        full = self._without_room
        return [*samples, Sample("mstar_transport_full", "counter", "Times a transport had no room.", {}, full)]

    def close(self) -> None:
        """Free everything that was published; what others have taken stays theirs."""
        for transport in self._transports:
            transport.close()

    def publish_payload(self, payload: Payload, receiver: Address) -> TensorRef:
        """`publish` for those who have something else than an array."""
        return self._published(payload, receiver, held=False)

    def take_payload(self, ref: TensorRef) -> Payload:
        """`take` for those who want something else than an array."""
        transport = self._transport(ref)
        if transport is None:
            raise KeyError(f"{self.address} has no transport {ref.transport!r}")
        return transport.take(ref)

    def _transport(self, ref: TensorRef) -> Transport | None:
        return self._inline if ref.data is not None else self._by_name.get(ref.transport)

    def _published(self, payload: Payload, receiver: Address, held: bool) -> TensorRef:
        for transport in self._route(receiver):
            if payload.nbytes >= transport.smallest:
                ref = transport.publish(payload, None if held else receiver)
                if ref is not None:
                    break
                with self._lock:
                    self._without_room += 1
        assert ref is not None
        count = self._counts[transport.name]
        with self._lock:
            count.tensors += 1
            count.size += payload.nbytes
        return ref

    def _route(self, receiver: Address) -> list[Transport]:
        """The transports to a receiver, in the order in which they are tried; the last one takes everything."""
        route = self._routes.get(receiver)
        if route is None:
            route = self._routes[receiver] = [each for each in self._transports if each.reaches(receiver)]
        return route


@dataclass(slots=True)
class _Count:
    """Tensors that one transport was given, and their bytes."""

    tensors: int = 0
    size: int = 0
