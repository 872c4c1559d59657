# SPDX-License-Identifier: Apache-2.0
"""The library through ctypes: where it is, the types of its calls, and its errors as exceptions."""
from __future__ import annotations

import ctypes
import operator
import os
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_int64, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, NoReturn

FOLDER = os.path.dirname(os.path.abspath(__file__))
LIBRARY = os.path.join(FOLDER, "lib", "libhocket.so")

SUCCESS, IN_PROGRESS = 0, 7
UNDEFINED = -(2**31)  # NCCL_CONFIG_UNDEF_INT
ID_BYTES = 128


class Error(RuntimeError):
    """A call of the library failed. The text is the library's: what failed, with whom, the cause and what to do."""

    code = 3  #: ncclResult_t of the call


class CudaError(Error):
    """A call of CUDA failed."""

    code = 1


class SystemFailure(Error):
    """A call of the operating system failed on this rank."""

    code = 2


class InternalError(Error):
    """A fault of the library itself."""

    code = 3


class InvalidArgument(Error, ValueError):
    """A wrong argument. Nothing was done, and the communicator stays usable."""

    code = 4


class InvalidUsage(Error):
    """A call at the wrong time or unlike other ranks' calls, or a feature that is not there."""

    code = 5


class RemoteError(Error):
    """Another rank or the network failed."""

    code = 6


_ERRORS: dict[int, type[Error]] = {
    c.code: c for c in (CudaError, SystemFailure, InternalError, InvalidArgument, InvalidUsage, RemoteError)}


class UniqueId(Structure):
    """ncclUniqueId."""

    _fields_ = [("internal", ctypes.c_byte * ID_BYTES)]


class Config(Structure):
    """ncclConfig_t; a field that is not set takes the library's default."""

    _fields_ = [
        ("size", c_size_t), ("magic", c_uint), ("version", c_uint), ("blocking", c_int), ("cgaClusterSize", c_int),
        ("minCTAs", c_int), ("maxCTAs", c_int), ("netName", c_char_p), ("splitShare", c_int), ("trafficClass", c_int),
        ("commName", c_char_p), ("collnetEnable", c_int), ("CTAPolicy", c_int), ("shrinkShare", c_int),
        ("nvlsCTAs", c_int), ("nChannelsPerNetPeer", c_int), ("nvlinkCentricSched", c_int), ("graphUsageMode", c_int),
        ("numRmaCtx", c_int), ("maxP2pPeers", c_int), ("graphStreamOrdering", c_int), ("launchOrderImplicit", c_int),
        ("numRmaSig", c_int), ("rmaEagerInit", c_int), ("hostCftMode", c_int), ("nvlsHostMode", c_int)]


def integer(what: str, value: Any) -> int:
    """An int of C. Python's may be longer, and ctypes would cut it without a word."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an int, not {value!r}") from None
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{what} is {number}, and an int of C has 32 bits")
    return number


def config(options: dict[str, Any]) -> Config:
    """An ncclConfig_t with these fields, by their names in nccl.h."""
    made = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 23203)
    for name, kind in Config._fields_[3:]:  # type: ignore[misc]
        if kind is c_int:
            setattr(made, name, UNDEFINED)
    for name, value in options.items():
        if name not in _OPTIONS:
            raise TypeError(f"there is no option {name!r}; the options are {', '.join(_OPTIONS)}")
        setattr(made, name, value.encode() if isinstance(value, str) else integer(name, value))
    return made


# Calls here are blocking: a thread is Python's way to wait for something else.
_OPTIONS = [field[0] for field in Config._fields_[4:]]

_BUF, _OUT, _N, _T, _STREAM, _COMM = c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p
_SIZES = POINTER(c_size_t)
_CALLS: dict[str, list[Any]] = {
    "ncclGetVersion": [POINTER(c_int)],
    "ncclGetUniqueId": [POINTER(UniqueId)],
    "ncclCommInitRankConfig": [POINTER(c_void_p), c_int, UniqueId, c_int, POINTER(Config)],
    "ncclCommSplit": [_COMM, c_int, c_int, POINTER(c_void_p), POINTER(Config)],
    "ncclCommShrink": [_COMM, POINTER(c_int), c_int, POINTER(c_void_p), POINTER(Config), c_int],
    "ncclCommFinalize": [_COMM],
    "ncclCommDestroy": [_COMM],
    "ncclCommAbort": [_COMM],
    "ncclCommRevoke": [_COMM, c_int],
    "ncclCommGetAsyncError": [_COMM, POINTER(c_int)],
    "ncclCommCount": [_COMM, POINTER(c_int)],
    "ncclCommUserRank": [_COMM, POINTER(c_int)],
    "ncclCommCuDevice": [_COMM, POINTER(c_int)],
    "ncclCommRegister": [_COMM, c_void_p, c_size_t, POINTER(c_void_p)],
    "ncclCommDeregister": [_COMM, c_void_p],
    "ncclMemAlloc": [POINTER(c_void_p), c_size_t],
    "ncclMemFree": [c_void_p],
    "ncclRedOpCreatePreMulSum": [POINTER(c_int), c_void_p, c_int, c_int, _COMM],
    "ncclRedOpDestroy": [c_int, _COMM],
    "ncclReduce": [_BUF, _OUT, _N, _T, c_int, c_int, _COMM, _STREAM],
    "ncclBroadcast": [_BUF, _OUT, _N, _T, c_int, _COMM, _STREAM],
    "ncclAllReduce": [_BUF, _OUT, _N, _T, c_int, _COMM, _STREAM],
    "ncclReduceScatter": [_BUF, _OUT, _N, _T, c_int, _COMM, _STREAM],
    "ncclAllGather": [_BUF, _OUT, _N, _T, _COMM, _STREAM],
    "ncclAlltoAll": [_BUF, _OUT, _N, _T, _COMM, _STREAM],
    "ncclGather": [_BUF, _OUT, _N, _T, c_int, _COMM, _STREAM],
    "ncclScatter": [_BUF, _OUT, _N, _T, c_int, _COMM, _STREAM],
    "ncclSend": [_BUF, _N, _T, c_int, _COMM, _STREAM],
    "ncclRecv": [_OUT, _N, _T, c_int, _COMM, _STREAM],
    "ncclCommWindowRegister": [_COMM, c_void_p, c_size_t, POINTER(c_void_p), c_int],
    "ncclCommWindowDeregister": [_COMM, c_void_p],
    "ncclPutSignal": [_BUF, _N, _T, c_int, c_void_p, c_size_t, c_int, c_int, c_uint, _COMM, _STREAM],
    "ncclSignal": [c_int, c_int, c_int, c_uint, _COMM, _STREAM],
    "ncclWaitSignal": [c_int, POINTER(c_int), _COMM, _STREAM],
    "ncclGroupStart": [],
    "ncclGroupEnd": [],
    "hocketAlltoAllv": [_BUF, _SIZES, _SIZES, _OUT, _SIZES, _SIZES, _T, _COMM, _STREAM],
    "hocketAllGatherv": [_BUF, _OUT, _SIZES, _SIZES, _T, _COMM, _STREAM],
    "hocketReduceScatterv": [_BUF, _OUT, _SIZES, _SIZES, _T, c_int, _COMM, _STREAM],
    "hocketCommFromEnvironment": [POINTER(c_void_p), c_char_p, c_int, c_int, POINTER(Config)],
    "hocketRankFromEnvironment": [POINTER(c_int), POINTER(c_int), POINTER(c_int), POINTER(c_char_p)],
    "hocketCommSetBatchInvariant": [_COMM, c_int],
    "hocketFlightDump": [_COMM, c_char_p],
    "hocketCommProbe": [_COMM, c_int, POINTER(c_int)],
    "hocketStreamCreate": [POINTER(c_void_p)],
    "hocketStreamSynchronize": [c_void_p],
    "hocketStreamQuery": [c_void_p],
    "hocketStreamPosition": [c_void_p, POINTER(c_uint64)],
    "hocketStreamWait": [c_void_p, c_uint64, c_int64],
    "hocketStreamLaunch": [c_void_p, c_void_p, c_void_p],
    "hocketStreamDestroy": [c_void_p],
    "hocketDeviceCount": [],
    "hocketVersion": [],
}


def _load(kind: type[ctypes.CDLL], handle: int | None = None) -> Any:
    if not os.path.exists(LIBRARY):
        raise ImportError(f"{LIBRARY} is not there: install the wheel (`make wheel`), or in a source tree run `make "
                          "python` and set PYTHONPATH=build/gcc/python")
    # A file name of its own, and not NCCL's: the library of NCCL that PyTorch loads stays what PyTorch uses.
    library = kind(LIBRARY, handle=handle)
    for name, arguments in _CALLS.items():
        getattr(library, name).argtypes = arguments
    library.ncclGetLastError.argtypes = [_COMM]
    library.ncclGetLastError.restype = c_char_p
    return library


lib = _load(ctypes.CDLL)
quick = _load(ctypes.PyDLL, lib._handle)  # for what never waits: other threads of Python get no turn meanwhile


def fail(code: int, comm: int | None = None) -> NoReturn:
    """Raises the exception of an ncclResult_t, with the library's text of the newest error."""
    text = (lib.ncclGetLastError(comm) or b"").decode(errors="replace")
    kind = _ERRORS.get(code, Error)
    error = kind(text or f"a call returned ncclResult_t {code}")
    error.code = code
    raise error


def check(code: int, comm: int | None = None) -> None:
    """Raises if `code` is not ncclSuccess."""
    if code:
        fail(code, comm)


def unique_id() -> bytes:
    """The 128 bytes that all ranks of a new communicator must have (ncclGetUniqueId). This process must run until all
    ranks have joined."""
    made = UniqueId()
    check(lib.ncclGetUniqueId(byref(made)))
    return bytes(made)


def nccl_version() -> str:
    """The version of NCCL's API that the library has, as "2.32.3"."""
    value = c_int()
    check(lib.ncclGetVersion(byref(value)))
    return f"{value.value // 10000}.{value.value // 100 % 100}.{value.value % 100}"


def version() -> str:
    """The library's own version, as "0.1.0"."""
    value = lib.hocketVersion()
    return f"{value // 10000}.{value // 100 % 100}.{value % 100}"


def device_count() -> int:
    """GPUs that communicators can work on; 0: they work on host memory."""
    return int(lib.hocketDeviceCount())
