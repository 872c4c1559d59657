# SPDX-License-Identifier: Apache-2.0
"""rank.py FOLDER: a rank that runs collectives until FOLDER/end exists. Rank 1 pauses while FOLDER/pause exists. A rank
whose communicator fails keeps it until the end."""
import array
import os
import sys
import time

import hocket

folder = sys.argv[1]


def there(name: str) -> bool:
    return os.path.exists(os.path.join(folder, name))


comm = hocket.init()
data = array.array("f", [1.0] * 4)
try:
    for i in range(1000000):
        data[0] = float(comm.rank == 0 and there("end"))
        comm.broadcast(data)
        if data[0]:
            break
        comm.all_reduce(data)
        open(os.path.join(folder, "ready"), "w").close()
        while comm.rank == 1 and there("pause"):
            time.sleep(0.01)
        time.sleep(0.002)
except hocket.Error as error:
    print(f"rank {comm.rank}: {error}", flush=True)
    while not there("end"):
        time.sleep(0.01)
