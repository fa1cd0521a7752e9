import io
import json
import struct

import numpy as np
import pytest
from safetensors.numpy import load, save

from mstar_core.media import UnreadableTensors
from mstar_core.media.tensors import array_of, by_name, read_tensor, save_tensors
from mstar_core.spec.content import Tensor, Text

POSE = np.arange(14, dtype=np.float32).reshape(2, 7)


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32", "float64"])
def test_safetensors_and_npy_give_the_array(dtype):
    array = POSE.astype(dtype)
    for data in (
        save({"pose": array}),
        npy(array),
        npy(np.asfortranarray(array)),
        npy(array.astype(f">{array.dtype.str[1:]}")),
    ):
        read = read_tensor(data, None, "pose")
        assert (read.dtype, read.tolist()) == (array.dtype, array.tolist())
        assert read.flags.writeable
        assert read.dtype.isnative


def test_tensor_is_the_key_else_the_name_else_the_only_one():
    one, two = save({"a": POSE}), save({"a": POSE, "b": POSE + 1})
    assert read_tensor(one, None, "x")[0, 0] == 0
    assert read_tensor(two, None, "b")[0, 0] == 1
    assert read_tensor(two, "b", "a")[0, 0] == 1
    with pytest.raises(UnreadableTensors, match="no tensor 'x'; there are: a, b"):
        read_tensor(two, None, "x")
    with pytest.raises(UnreadableTensors, match="no tensor 'bb'"):
        read_tensor(two, "bb", "a")


def test_bfloat16_becomes_float32_exactly():
    halves = (POSE.view(np.uint32) >> 16).astype("<u2").tobytes()
    header = json.dumps({"x": {"dtype": "BF16", "shape": [2, 7], "data_offsets": [0, len(halves)]}}).encode()
    data = struct.pack("<Q", len(header)) + header + halves
    assert np.array_equal(read_tensor(data, None, "x"), POSE)
    assert np.array_equal(array_of(halves, "bfloat16", (2, 7)), POSE)


@pytest.mark.parametrize(
    "data",
    [b"", b"text", b"\x93NUMPY", b"\x93NUMPY\x01\x00\xff\xff{", save({"a": POSE})[:-1], npy(POSE)[:-1], b"PK\x03\x04"],
)
def test_bytes_that_are_no_tensors_are_refused(data):
    with pytest.raises(UnreadableTensors):
        read_tensor(data, None, "a")


def test_objects_are_never_unpickled():
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("it was unpickled",))

    with pytest.raises(UnreadableTensors, match="object"):
        read_tensor(npy(np.array([Trap()], object)), None, "a")


def test_npy_that_claims_more_than_it_has_is_refused_before_memory_is_taken():
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(117) + b"\n"
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    with pytest.raises(UnreadableTensors, match="takes 4000000000000"):
        read_tensor(data, None, "a")


def test_steps_are_put_together_along_a_first_axis_also_a_single_one():
    contents = [
        Tensor("z", POSE, 0),
        Text("a"),
        Tensor("plan", POSE),
        Tensor("e", POSE[0], 0),
        Tensor("z", POSE + 1, 1),
    ]
    arrays = by_name(contents)
    assert {name: array.shape for name, array in arrays.items()} == {"z": (2, 2, 7), "plan": (2, 7), "e": (1, 7)}
    assert np.array_equal(arrays["z"][1], POSE + 1)


def test_steps_of_other_shapes_are_numbered():
    arrays = by_name([Tensor("z", POSE, 0), Tensor("z", POSE[:1], 1)])
    assert {name: array.shape for name, array in arrays.items()} == {"z.0": (2, 7), "z.1": (1, 7)}


def test_saved_tensors_are_read_again_with_strides_and_metadata():
    data = save_tensors({"x": POSE.T}, {"id": "a-1"})
    assert np.array_equal(load(data)["x"], POSE.T)
    assert b'"id":"a-1"' in data
