# SPDX-License-Identifier: Apache-2.0
"""What no library can beat on this GPU, by PyTorch: a tiny kernel in a stream and in a graph, and a copy within the GPU."""
import sys

try:
    import torch
except ImportError:
    torch = None
if torch is None or not torch.cuda.is_available():
    print("SKIP: no PyTorch that sees a GPU")
    sys.exit(77)


def microseconds(call, count):
    """The time of one of `count` calls, by events on the device."""
    call()
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
    begin.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / count


small = torch.zeros(64, device="cuda")
source = torch.empty(1 << 28, device="cuda")
target = torch.empty_like(source)
small.add_(1)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    for _ in range(20):
        small.add_(1)
kernel = microseconds(lambda: small.add_(1), 2000)
node = microseconds(graph.replay, 100) / 20
rate = 2 * source.nbytes / microseconds(lambda: target.copy_(source), 10) / 1e3
print(f"tiny kernel {kernel:.2f} us, in a graph {node:.2f} us; copy {rate:.0f} GB/s read and written")
