"""The `local` transport: tensors handed from one party to another within a process, by reference.

One `LocalStore` is shared by all parties of a process; each has a `Local` transport upon it. What a party publishes so
is not copied: its publisher no longer writes to it. Torch-free.
"""

from __future__ import annotations

import itertools
import secrets
import threading

from mstar_core.wire.messages import Address, Sample, TensorRef
from mstar_core.wire.transport import Payload, Transport

INPROC = "inproc://"
"""Parties whose near endpoint begins so are in one process."""


class LocalStore:
    """Tensors published within this process, by key. Safe from any thread."""

    def __init__(self) -> None:
        self.place = secrets.token_hex(8)
        self._keys = itertools.count(1)
        self._payloads: dict[int, tuple[Payload, Address | None]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._payloads)

    def put(self, payload: Payload, receiver: Address | None) -> int:
        """Keep a tensor for a receiver, or for all (None); its key."""
        key = next(self._keys)
        with self._lock:
            self._payloads[key] = (payload, receiver)
        return key

    def get(self, key: int) -> Payload:
        """A tensor, which stays. Raises `KeyError` when it is gone."""
        return self._payloads[key][0]

    def pop(self, key: int) -> Payload:
        """A tensor, which is no longer kept. Raises `KeyError` when it is gone."""
        with self._lock:
            return self._payloads.pop(key)[0]

    def discard(self, key: int) -> None:
        """No longer keep a tensor; one that is gone is fine."""
        with self._lock:
            self._payloads.pop(key, None)

    def forget(self, receiver: Address) -> None:
        """No longer keep what was for a receiver that is gone."""
        with self._lock:
            self._payloads = {key: entry for key, entry in self._payloads.items() if entry[1] != receiver}


class Local(Transport):
    """One party's way into the store of its process."""

    name = "local"

    def __init__(self, address: Address, store: LocalStore) -> None:
        self._host = address.host
        self._store = store

    def reaches(self, receiver: Address) -> bool:
        """Parties of this process."""
        return receiver.host == self._host and receiver.near.startswith(INPROC)

    def publish(self, payload: Payload, receiver: Address | None) -> TensorRef:
        """Keep the tensor itself."""
        key = self._store.put(payload, receiver)
        place, held = self._store.place, receiver is None
        return TensorRef(payload.dtype, payload.shape, None, self.name, place, key, held)

    def reachable(self, ref: TensorRef) -> bool:
        """Whether it is in this process's store."""
        return ref.place == self._store.place

    def take(self, ref: TensorRef) -> Payload:
        """The tensor itself."""
        if not self.reachable(ref):
            raise KeyError(ref)
        return self._store.get(ref.key) if ref.held else self._store.pop(ref.key)

    def release(self, ref: TensorRef) -> None:
        """No longer keep it."""
        if self.reachable(ref) and not ref.held:
            self._store.discard(ref.key)

    def drop(self, ref: TensorRef) -> None:
        """No longer keep it."""
        self._store.discard(ref.key)

    def forget(self, receiver: Address) -> None:
        """No longer keep what was for that party."""
        self._store.forget(receiver)

    def samples(self) -> list[Sample]:
        """How many tensors wait in the process's store."""
        return [Sample("mstar_local_tensors", "gauge", "Tensors waiting within a process.", {}, len(self._store))]

    def close(self) -> None:
        """The store is the process's."""
