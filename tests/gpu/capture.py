# SPDX-License-Identifier: Apache-2.0
"""capture.py: what the CUDA driver at hand allows while a stream captures.  One line a sequence of calls: the code of each call and, after
it, whether the capture is active (1) or ended by an error (2).  The calls are those that the library makes in a capture
(src/device/cuda_stream.c), alone and together.  It is no test: it shows which call ends a capture."""
import ctypes

cu = ctypes.CDLL("libcuda.so.1")
pointer, size = ctypes.c_void_p, ctypes.c_size_t
NON_BLOCKING, NO_TIMING, EXTERNAL, THREAD_LOCAL, GLOBAL = 1, 2, 1, 1, 0


def made(function, *arguments):
    """The handle that the function writes to its first argument."""
    handle = pointer()
    code = function(ctypes.byref(handle), *arguments)
    if code:
        raise SystemExit(f"SKIP: {function.__name__} fails with {code}")
    return handle


def stream():
    return made(cu.cuStreamCreateWithPriority, NON_BLOCKING, 0)


def event(recorded_on=None, flags=NO_TIMING):
    e = made(cu.cuEventCreate, flags)
    if recorded_on:
        cu.cuEventRecord(e, recorded_on)
    return e


def capture_info(s):
    """The status, the graph, and the nodes that the next one will follow."""
    status, number, graph, nodes, count = ctypes.c_int(), ctypes.c_uint64(), pointer(), ctypes.POINTER(pointer)(), size()
    code = cu.cuStreamGetCaptureInfo_v2(s, *map(ctypes.byref, (status, number, graph, nodes, count)))
    return code, status.value, graph, nodes, count


def wait(e, flags=EXTERNAL):
    return lambda s: cu.cuStreamWaitEvent(s, e, ctypes.c_uint(flags))


def record_node(e):
    def call(s):
        _, _, graph, nodes, count = capture_info(s)
        return cu.cuGraphAddEventRecordNode(ctypes.byref(pointer()), graph, nodes, count, e)

    return call


def wait_node(e):
    def call(s):
        _, _, graph, nodes, count = capture_info(s)
        node = pointer()
        code = cu.cuGraphAddEventWaitNode(ctypes.byref(node), graph, nodes, count, e)
        return code or cu.cuStreamUpdateCaptureDependencies(s, (pointer * 1)(node), size(1), ctypes.c_uint(1))

    return call


def clear(s):
    return cu.cuMemsetD8Async(memory, ctypes.c_ubyte(1), size(1024), s)


def show(name, *calls, on=None, mode=THREAD_LOCAL):
    s, said, graph = on or stream(), [], pointer()
    said.append(f"begin {cu.cuStreamBeginCapture_v2(s, mode)}")
    for call in calls:
        try:
            said.append(f"{call(s)}/{capture_info(s)[1]}")
        except AttributeError as missing:  # an older driver, or an emulated one
            said.append(str(missing).rsplit(":", 1)[-1].strip())
    said.append(f"end {cu.cuStreamEndCapture(s, ctypes.byref(graph))}")
    if graph:
        run = made(cu.cuGraphInstantiateWithFlags, graph, ctypes.c_ulonglong(0))
        said.append(f"replays {cu.cuGraphLaunch(run, s)} {cu.cuGraphLaunch(run, s)} {cu.cuStreamSynchronize(s)}")
    print(f"{name}: {', '.join(said)}", flush=True)


if cu.cuInit(0):
    raise SystemExit("SKIP: no GPU")
device = ctypes.c_int()
cu.cuDeviceGet(ctypes.byref(device), 0)
cu.cuCtxSetCurrent(made(cu.cuDevicePrimaryCtxRetain, device))
memory = ctypes.c_uint64()
cu.cuMemAlloc_v2(ctypes.byref(memory), size(1024))
other, own = stream(), stream()
moved = event(own)
show("info", lambda s: capture_info(s)[0], clear)
show("id", lambda s: cu.cuStreamGetId(s, ctypes.byref(ctypes.c_uint64())), clear)
show("current context", lambda s: cu.cuCtxGetCurrent(ctypes.byref(pointer())), clear)
show("new event", lambda s: cu.cuEventCreate(ctypes.byref(pointer()), NO_TIMING), clear)
show("external wait", wait(event(other)), clear)
show("external wait, after work", clear, wait(event(other)), clear)
show("external wait, event of the same stream", wait(event(own)), clear, on=own)
show("external wait, event never recorded", wait(event()), clear)
show("external wait, event moved to a stream of its own in the capture", lambda s: cu.cuStreamWaitEvent(other, moved, ctypes.c_uint(0)),
     lambda s: cu.cuEventRecord(moved, other), wait(moved), clear, on=own)
show("external wait, event with timing", wait(event(other, 0)), clear)
show("external wait, global mode", wait(event(other)), clear, mode=GLOBAL)
show("wait node", wait_node(event(other)), clear)
both = event(other)
show("external wait, work, record node", wait(both), clear, record_node(both))
both = event(other)
show("wait node, work, record node", wait_node(both), clear, record_node(both))
