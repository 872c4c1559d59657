# SPDX-License-Identifier: Apache-2.0
"""What memory an object has: by the buffer protocol, __array_interface__, __cuda_array_interface__ or DLPack."""
from __future__ import annotations

import ctypes
import enum
import sys
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_ssize_t, c_uint8, c_uint16, c_uint64
from ctypes import c_void_p
from typing import Any


class DataType(enum.IntEnum):
    """Element types that reductions know (ncclDataType_t)."""

    INT8 = 0
    UINT8 = 1
    INT32 = 2
    UINT32 = 3
    INT64 = 4
    UINT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT8_E4M3 = 10
    FLOAT8_E5M2 = 11


WIDTH = {t: w for t, w in zip(DataType, (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1))}  #: bytes of an element

_KINDS = {(ord("i"), 1): DataType.INT8, (ord("u"), 1): DataType.UINT8, (ord("i"), 4): DataType.INT32,
          (ord("u"), 4): DataType.UINT32, (ord("i"), 8): DataType.INT64, (ord("u"), 8): DataType.UINT64,
          (ord("f"), 2): DataType.FLOAT16, (ord("f"), 4): DataType.FLOAT32, (ord("f"), 8): DataType.FLOAT64}
_FORMATS = {letter: kind for letters, kind in (("bhilqn", "i"), ("BHILQN?c", "u"), ("efd", "f")) for letter in letters}
_NAMED = {"bfloat16": DataType.BFLOAT16, "float8_e4m3fn": DataType.FLOAT8_E4M3, "float8_e5m2": DataType.FLOAT8_E5M2}
_NATIVE = "@=|" + ("<" if sys.byteorder == "little" else ">")


class Buffer:
    """A part of memory with elements of one type. All operations take one; made once, it saves a microsecond a call.

    `dtype` is None for elements that no reduction knows (16-bit integers, complex numbers, structures): these can be
    moved. `owner` keeps the memory alive.
    """

    __slots__ = ("address", "count", "dtype", "width", "writable", "owner")

    def __init__(self, address: int, count: int, dtype: DataType | None, width: int = 0, writable: bool = True,
                 owner: object = None) -> None:
        self.address, self.count, self.dtype = address, count, dtype
        self.width = width or (WIDTH[dtype] if dtype is not None else 1)
        self.writable, self.owner = writable, owner

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return self.count * self.width

    @property
    def kind(self) -> str:
        """The type of the elements, for messages; '>f4' also says that the bytes are in the other order."""
        named = getattr(self.owner, "dtype", None)
        return f"type {named}" if named is not None else f"{self.width} bytes of this kind"

    def __repr__(self) -> str:
        kind = self.dtype.name.lower() if self.dtype is not None else f"elements of {self.width} bytes"
        return f"<hocket.Buffer of {self.count} {kind} at {self.address:#x}>"


class _PyBuffer(Structure):
    _fields_ = [("buf", c_void_p), ("obj", c_void_p), ("len", c_ssize_t), ("itemsize", c_ssize_t), ("readonly", c_int),
                ("ndim", c_int), ("format", c_char_p), ("shape", c_void_p), ("strides", c_void_p),
                ("suboffsets", c_void_p), ("internal", c_void_p)]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, POINTER(_PyBuffer), c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [POINTER(_PyBuffer)]
_has_buffer = ctypes.pythonapi.PyObject_CheckBuffer
_has_buffer.argtypes = [ctypes.py_object]
_CONTIGUOUS, _WITH_FORMAT = 0x20 | 0x18, 0x4  # PyBUF_C_CONTIGUOUS, PyBUF_FORMAT


def _type_of_format(text: str, width: int) -> DataType | None:
    if text[:1] in "@=<>!|":
        if width > 1 and text[0] not in _NATIVE:
            return None
        text = text[1:]
    return _KINDS.get((ord(_FORMATS.get(text, "V")), width))


def _from_protocol(obj: object) -> Buffer:
    view = _PyBuffer()
    _get_buffer(obj, view, _CONTIGUOUS | _WITH_FORMAT)
    try:
        width = view.itemsize or 1
        dtype = _type_of_format(view.format.decode() if view.format else "B", width)
        return Buffer(view.buf or 0, view.len // width, dtype, width, not view.readonly, obj)
    finally:
        # The memory stays where it is as long as `owner` lives and is not resized (bytearray, array.array).
        _release_buffer(view)


def _from_interface(obj: object, what: dict[str, Any]) -> Buffer:
    """__array_interface__ and __cuda_array_interface__ are dictionaries of one form."""
    text, shape, strides = what["typestr"], what["shape"], what.get("strides")
    width = int(text[2:].partition("[")[0])  # "<M8[D]": days
    count, expected = 1, width
    for extent in shape:
        count *= extent
    if strides is not None and count > 0:
        for extent, stride in zip(reversed(shape), reversed(strides)):
            if extent != 1 and stride != expected:
                raise BufferError("the array is not contiguous: pass a contiguous copy")
            expected *= extent
    dtype = _KINDS.get((ord("u" if text[1] == "b" else text[1]), width))
    if text[0] not in _NATIVE and width > 1:
        dtype = None
    if dtype is None:  # bfloat16 and the like of ml_dtypes have no letter
        dtype = _NAMED.get(str(getattr(obj, "dtype", "")).rpartition(".")[2])
    address, readonly = what["data"]
    return Buffer(address or 0, count, dtype, width, not readonly, obj)


class _DlTensor(Structure):
    _fields_ = [("data", c_void_p), ("device", c_int32), ("device_id", c_int32), ("ndim", c_int32), ("code", c_uint8),
                ("bits", c_uint8), ("lanes", c_uint16), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("byte_offset", c_uint64)]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes = [ctypes.py_object, c_char_p]
_capsule_pointer.restype = c_void_p
_DL_KINDS = {0: "i", 1: "u", 2: "f", 6: "u"}
_DL_NAMED = {4: DataType.BFLOAT16, 10: DataType.FLOAT8_E4M3, 12: DataType.FLOAT8_E5M2}


def _from_dlpack(obj: Any) -> Buffer:
    capsule = obj.__dlpack__()
    at = _capsule_pointer(capsule, b"dltensor")
    if at is None:
        raise BufferError("the capsule of __dlpack__ has no tensor")
    t = _DlTensor.from_address(at)
    count, expected = 1, 1
    for k in reversed(range(t.ndim)):
        if t.strides and t.shape[k] != 1 and t.strides[k] != expected:
            raise BufferError("the tensor is not contiguous: pass tensor.contiguous()")
        expected *= t.shape[k]
    count, width = expected, t.bits * t.lanes // 8
    dtype = _DL_NAMED.get(t.code) or _KINDS.get((ord(_DL_KINDS.get(t.code, "V")), width))
    # The capsule keeps the tensor: it is not consumed, so that it ends with this object.
    return Buffer((t.data or 0) + t.byte_offset, count, dtype, width, True, (obj, capsule))


def buffer(obj: Any, dtype: DataType | None = None) -> Buffer:
    """The memory of an object: a NumPy array, bytearray, memoryview, array.array, ctypes array, a tensor of PyTorch,
    CuPy, JAX, or anything else that has one of the protocols.

    With `dtype` the bytes are taken as elements of that type: bfloat16 numbers in an array of uint16, for example.
    TypeError: the object has none of the protocols. BufferError: its elements are not contiguous in memory.
    """
    if isinstance(obj, Buffer):
        made = obj
    elif _has_buffer(obj):
        try:
            made = _from_protocol(obj)
        except ValueError:  # NumPy cannot describe bfloat16 by a letter
            made = _from_interface(obj, obj.__array_interface__)
    else:
        made = _by_attribute(obj)
    if dtype is None:
        return made
    if made.nbytes % WIDTH[dtype]:
        raise BufferError(f"{made.nbytes} bytes are no whole number of {dtype.name.lower()}")
    return Buffer(made.address, made.nbytes // WIDTH[dtype], dtype, 0, made.writable, made.owner or obj)


def _by_attribute(obj: Any) -> Buffer:
    for name in ("__cuda_array_interface__", "__array_interface__"):
        what = getattr(obj, name, None)
        if what is not None:
            return _from_interface(obj, what)
    if hasattr(obj, "__dlpack__"):
        return _from_dlpack(obj)
    raise TypeError(f"a {type(obj).__name__} has no memory that can be sent: pass an array, a tensor, a bytearray or "
                    "anything else with the buffer protocol, an array interface or DLPack")
