# SPDX-License-Identifier: Apache-2.0
"""What hocket.buffer() finds in objects, one process."""
import array
import ctypes

import hocket
from hocket import DataType

try:
    import numpy as np
except ImportError:
    np = None


class Interface:
    """Only __array_interface__, or under CUDA's name."""

    def __init__(self, name, **what):
        setattr(self, name, {"shape": (6,), "typestr": "<f4", "data": (4096, False), "version": 3, **what})


def check(obj, count, dtype, given=None):
    b = hocket.buffer(obj, given)
    assert (b.count, b.dtype) == (count, dtype), (obj, b)
    return b


def refuse(kind, text, obj, **named):
    try:
        b = hocket.buffer(obj, **named)
    except kind as error:
        assert text in str(error), error
        return
    raise AssertionError(f"{obj!r} gives {b!r}")


one = array.array("d", [1, 2, 3])
assert check(one, 3, DataType.FLOAT64).address == one.buffer_info()[0]
assert not check(b"abc", 3, DataType.UINT8).writable
assert check(bytearray(5), 5, DataType.UINT8).writable
check(memoryview(one)[1:], 2, DataType.FLOAT64)
refuse(BufferError, "contiguous", memoryview(one)[::2])
check((ctypes.c_int64 * 4)(), 4, DataType.INT64)
check((ctypes.c_bool * 4)(), 4, DataType.UINT8)
assert check(array.array("h", [1]), 1, None).width == 2
check(one, 12, DataType.BFLOAT16, DataType.BFLOAT16)
refuse(BufferError, "no whole number of float32", bytearray(5), dtype=DataType.FLOAT32)
b = hocket.buffer(one)
assert hocket.buffer(b) is b and "3 float64" in repr(b)
refuse(TypeError, "has no memory", object())
for name in ("__array_interface__", "__cuda_array_interface__"):
    assert check(Interface(name), 6, DataType.FLOAT32).address == 4096
    check(Interface(name, typestr="<i8", shape=(2, 3), strides=(24, 8)), 6, DataType.INT64)
    check(Interface(name, typestr="|b1"), 6, DataType.UINT8)
    check(Interface(name, typestr=">f4"), 6, None)
    check(Interface(name, typestr="<c8"), 6, None)
    assert not check(Interface(name, data=(4096, True)), 6, DataType.FLOAT32).writable
    refuse(BufferError, "contiguous", Interface(name, shape=(2, 3), strides=(4, 8)))
    named = Interface(name, typestr="<V2")
    named.dtype = "bfloat16"
    check(named, 6, DataType.BFLOAT16)
hocket.view(hocket.empty(8)).cast("d")[0] = 1.5


class Tensor:
    """Only DLPack, as PyTorch's tensors have on a CPU."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self):
        return self.x.__dlpack__()


done = "buffer protocol, array interfaces"
if np:
    for letter, dtype in zip("bBiIqQefd?", (0, 1, 2, 3, 4, 5, 6, 7, 8, 1)):
        x = np.zeros((3, 4), letter)
        assert check(x, 12, DataType(dtype)).address == x.ctypes.data
        if letter != "?":
            assert check(Tensor(x), 12, DataType(dtype)).address == x.ctypes.data
    refuse(BufferError, "contiguous", np.zeros((3, 4)).T)
    refuse(BufferError, "contiguous", Tensor(np.zeros((3, 4)).T))
    check(np.zeros(3, ">f4"), 3, None)
    check(np.zeros(0), 0, DataType.FLOAT64)
    check(np.zeros((1, 4))[:, 1:3], 2, DataType.FLOAT64)
    done += ", NumPy, DLPack"
else:
    print("SKIP: NumPy's arrays and DLPack: there is no NumPy")
print(done)
