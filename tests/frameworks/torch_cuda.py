# SPDX-License-Identifier: Apache-2.0
"""torch.cuda over the emulated driver: devices, copies, streams, events, operators that run on the CPU."""
import torch

assert torch.cuda.is_available() and torch.cuda.device_count() == 1
properties = torch.cuda.get_device_properties(0)
assert (properties.major, properties.minor) == (9, 0) and properties.total_memory == 4096 << 20
x = torch.arange(100000.0)
there = x.to("cuda")
assert torch.equal(there.cpu(), x) and torch.equal(there.clone().cpu(), x) and there[77].item() == 77
pinned, side, done = x.pin_memory(), torch.cuda.Stream(), torch.cuda.Event()
with torch.cuda.stream(side):
    there = pinned.to("cuda", non_blocking=True)
    done.record()
torch.cuda.current_stream().wait_event(done)
assert torch.equal(there.cpu(), x)
assert torch.equal((there[::2] + 1).cpu(), x[::2] + 1), "an operator on the CPU"
free, total = torch.cuda.mem_get_info()
assert free < total == 4096 << 20
print(f"{properties.name}, PyTorch {torch.__version__}: copies, pinned memory, streams, events")
