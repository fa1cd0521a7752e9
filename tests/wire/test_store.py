import numpy as np
import pytest

from mstar_core.wire.store import LocalStore


def test_an_array_is_taken_once_and_as_it_is():
    store, array = LocalStore(), np.arange(6, dtype=np.int64).reshape(2, 3)
    ref = store.publish(array)
    assert (ref.dtype, ref.shape, len(store)) == ("int64", (2, 3), 1)
    assert store.take(ref) is array
    assert len(store) == 0
    with pytest.raises(KeyError):
        store.take(ref)


def test_equal_arrays_have_references_of_their_own():
    store, array = LocalStore(), np.zeros(1)
    first, second = store.publish(array), store.publish(array)
    assert store.take(first) is array
    assert store.take(second) is array


def test_a_dropped_array_is_gone_and_dropping_twice_is_fine():
    store = LocalStore()
    ref = store.publish(np.zeros(1))
    store.drop(ref)
    store.drop(ref)
    assert len(store) == 0
    with pytest.raises(KeyError):
        store.take(ref)
