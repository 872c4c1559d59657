# SPDX-License-Identifier: Apache-2.0
"""looked_at.py FOLDER: a rank that adds up until FOLDER/end exists. Rank 1 comes a millisecond late while FOLDER/slow
exists, and makes another call once FOLDER/differ exists. A rank whose communicator fails keeps it until the end."""
import array
import os
import sys
import time

import hocket

folder = sys.argv[1]


def there(name: str) -> bool:
    return os.path.exists(os.path.join(folder, name))


comm = hocket.init()
data, more = array.array("f", [0.0] * 4), array.array("f", [0.0] * 8)
try:
    while not data[0]:
        if comm.rank == 1 and there("slow"):
            time.sleep(0.001)
        data[0] = float(comm.rank == 0 and there("end"))
        comm.all_reduce(more if comm.rank == 1 and there("differ") else data)
        open(os.path.join(folder, f"ready{comm.rank}"), "w").close()
except hocket.Error as error:
    print(f"rank {comm.rank}: {error}", flush=True)
    while not there("end"):
        time.sleep(0.01)
