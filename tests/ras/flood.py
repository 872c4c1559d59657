# SPDX-License-Identifier: Apache-2.0
"""flood.py ADDRESS [UID]: some 2,000 connections a second to 127.0.0.1:ADDRESS, or to the abstract socket "@ADDRESS", until
it is killed. They send nothing, half a command, a command or garbage; they close, reset, shut down one side, or stay."""
from __future__ import annotations

import os
import socket
import struct
import sys
import time

SAY = [b"", b"SET FORM", b"STATUS\n", b"\0" * 300, b"MONITOR\n", b"CLIENT PROTOCOL 2\r\nTIMEOUT", os.urandom(5000)]
HELD, EACH = 200, 20

if len(sys.argv) > 2:
    os.setuid(int(sys.argv[2]))
local = sys.argv[1].startswith("@")
address = "\0" + sys.argv[1][1:] if local else ("127.0.0.1", int(sys.argv[1]))
held: list[socket.socket] = []
begin = time.monotonic()
for i in range(10 ** 9):
    s = socket.socket(socket.AF_UNIX if local else socket.AF_INET)
    s.setblocking(False)
    try:
        s.connect_ex(address)
        s.send(SAY[i % len(SAY)])
        if i % 4 == 0:
            s.shutdown(socket.SHUT_WR)
        if i % 4 == 1:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass
    if i % 4 == 2:
        held.append(s)
        if len(held) > HELD:
            held.pop(0).close()
    else:
        s.close()
    if i % EACH == 0:
        time.sleep(max(0.0, begin + i / 2000 - time.monotonic()))
