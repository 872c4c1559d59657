# SPDX-License-Identifier: Apache-2.0
"""A process ends with 0 while its threads ask the store for messages that no rank receives.

python -m hocket.run -n 2 tests/python/torch_exit.py
"""
import time

import torch
import torch.distributed as dist

import hocket.torch

hocket.torch.register()
dist.init_process_group("hocket")
messages = [dist.isend(torch.ones(1), 1, tag=tag) for tag in range(20)] if dist.get_rank() == 0 else []
time.sleep(0.3)  # the threads run when the process ends; the end itself is the test
if dist.get_rank() == 0:
    print(f"ends with {len(messages)} messages that are not received")
