# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a job find each other: by MPI, a launcher's environment, or an address."""
from __future__ import annotations

import hashlib
import os
import re
import selectors
import socket
import struct
import sys
import time
from typing import Any, NamedTuple

from . import _generated
from ._comm import Communicator
from ._lib import ID_BYTES, InvalidUsage, RemoteError, unique_id

_MAGIC = b"hkpyid2\n"
_HELLO = struct.Struct("=8sQii")  # magic, job, size, rank
_REPORT_SECONDS = 10.0
_GUEST_SECONDS = 5.0  # for all that a connection to rank 0 has to say
_CLIENTS = 1024  # connections at a time; the oldest goes first
_NAMES = 8  # of rank 0's socket on this host: another user may have taken one


class Place(NamedTuple):
    """What a launcher says about this process."""

    launcher: str  #: "ompi", "pmi", "torchrun", "slurm", or "none"
    rank: int
    size: int
    local_size: int  #: ranks on this host; 0: not known


def place() -> Place:
    """Rank and size of this process by the variables of Open MPI, MPICH, torchrun or Slurm; else 0 of 1."""
    for launcher, rank, size, other_size, local_size in _generated.LAUNCHERS:
        r, n = _number(rank), _number(size)
        if n is None:
            n = _number(other_size)
        if r is None or n is None:
            # Slurm's size alone is that of an allocation, in which a program may run by itself.
            if r is not None or (n is not None and launcher != "slurm"):
                there, absent = (rank, size) if n is None else (size, rank)
                print(f"hocket: {there}={os.environ.get(there, n)} is set but {absent} is not: without another "
                      "launcher's variables this process is a job of one rank", file=sys.stderr, flush=True)
            continue
        if r >= n:
            raise InvalidUsage(f"{rank}={r} is not below {size}={n}")
        return Place(launcher, r, n, _number(local_size) or 0)
    return Place("none", 0, 1, 1)


def _number(variable: str) -> int | None:
    text = os.environ.get(variable) if variable else None
    if not text:
        return None
    if not text.isdigit():
        raise InvalidUsage(f"the environment's {variable}={text} is no number")
    return int(text)


def _job() -> str:
    """The name of this job, equal on all ranks, as the library itself names jobs (docs/bootstrap.md)."""
    given = os.environ.get("HOCKET_JOB")
    if given:
        return f"HOCKET_JOB={given}"
    for variable, second, not_with in _generated.JOBS:
        value = os.environ.get(variable)
        if value:
            more = os.environ.get(second, "") if second and not os.environ.get(not_with) else ""
            return f"{variable}={value} {more} {os.getuid()}"
    return f"user {os.getuid()}"


def _token() -> int:
    return int.from_bytes(hashlib.sha256(_job().encode()).digest()[:8], "little")


def init(address: str | None = None, rank: int | None = None, size: int | None = None, *, mpi: Any = None,
         **options: int | str) -> Communicator:
    """The communicator of all processes of this job.

    Without arguments the launcher's environment says who they are: mpirun (for several hosts mpi4py is needed), srun,
    torchrun or `python -m hocket.run`. A program that no launcher started is the only rank.

    mpi: a communicator of mpi4py, whose ranks become the ranks. address: "host:port" on rank 0's host, with rank and
    size unless a launcher gives them. Options are fields of ncclConfig_t.

    RemoteError: ranks are missing after HOCKET_BOOTSTRAP_TIMEOUT seconds (300); the text says which.
    """
    if mpi is not None:
        return from_mpi(mpi, **options)
    here = place()
    rank, size = here.rank if rank is None else rank, here.size if size is None else size
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} of {size}: give both, with 0 <= rank < size")
    if size == 1 or os.environ.get("NCCL_COMM_ID"):  # with NCCL_COMM_ID every rank makes the same id
        return Communicator.from_id(unique_id(), rank, size, **options)
    if address is None and here.launcher in ("ompi", "pmi") and "MASTER_ADDR" not in os.environ:
        world = _mpi_world(here)
        if world is not None:
            return from_mpi(world, **options)
    meeting = _parse(address) if address is not None else _address_of(here, size)
    return Communicator.from_id(_exchange(meeting, rank, size), rank, size, **options)


def from_mpi(mpi: Any, **options: int | str) -> Communicator:
    """A communicator with the ranks of a communicator of mpi4py. All of its ranks call it."""
    rank, size = mpi.Get_rank(), mpi.Get_size()
    made = mpi.bcast(unique_id() if rank == 0 else None, root=0)
    return Communicator.from_id(made, rank, size, **options)


def _mpi_world(here: Place) -> Any:
    """mpi4py's communicator of all ranks, if it is needed: MPI is not started only because it is installed."""
    if "mpi4py.MPI" not in sys.modules and here.local_size == here.size:
        return None
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # RuntimeError: there is no MPI library
        return None
    # Under the mpirun of another MPI every process is the only one of its world.
    return MPI.COMM_WORLD if MPI.COMM_WORLD.Get_size() == here.size else None


# An address is (host, port); a host that begins with a zero byte is the name of a local socket.
_Address = tuple[str, int]


def _parse(text: str) -> _Address:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is no address: write host:port with a port that is free on rank 0's host")
    return host.strip("[]"), int(port)


def _address_of(here: Place, size: int) -> _Address:
    host, port = os.environ.get("MASTER_ADDR"), _number("MASTER_PORT")
    if host and port:
        if not 0 < port < 65536:
            raise InvalidUsage(f"MASTER_PORT={port} is not a port: give one from 1 to 65535, free on rank 0's host")
        # torchrun's own store listens on the port itself.
        return host, port + (os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True")
    if here.launcher == "slurm":
        nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST") or "127.0.0.1"
        return _first_node(nodes), 20000 + _token() % 10000
    if here.launcher in ("ompi", "pmi") and here.local_size == size:
        named = any(os.environ.get(v) for v in ("HOCKET_JOB", *(row[0] for row in _generated.JOBS)))
        name = _job() if named else f"{_launcher_process()} {os.getuid()}"
        return f"\0hocket-{hashlib.sha256(name.encode()).hexdigest()[:32]}", 0
    raise InvalidUsage(
        f"{size} ranks, and nothing says where rank 0 is: install mpi4py, or set MASTER_ADDR and MASTER_PORT on all "
        "ranks, or call hocket.init(address='host:port')")


def _launcher_process() -> int:
    """The process that started this host's ranks: MPICH's proxy, with or without scripts in between."""
    pid = os.getppid()
    while pid > 1:
        try:
            with open(f"/proc/{pid}/stat") as file:
                name, _, rest = file.read().rpartition(")")  # "12 (name) S 3", and the name may hold anything
        except OSError:
            break
        if "pmi_proxy" in name:
            return pid
        pid = int(rest.split()[1])
    return os.getppid()


def _first_node(nodes: str) -> str:
    """ "node[07-09,12],other" begins with node07."""
    found = re.match(r"([^,\[]*)(?:\[(\d+))?", nodes)
    return (found.group(1) + (found.group(2) or "")) if found else nodes


def _limit() -> float:
    return float(_number("HOCKET_BOOTSTRAP_TIMEOUT") or 300)


def _where(at: _Address) -> str:
    return "on this host" if at[0][0] == "\0" else f"at {at[0]}:{at[1]}"


def _exchange(at: _Address, rank: int, size: int) -> bytes:
    """Rank 0 makes an id, and gives it to all others. The id has a secret: who knows the address can get it."""
    if rank == 0:
        made = unique_id()
        with _listen(at) as listener:
            _serve(listener, at, size, made)
        return made
    return _ask(at, rank, size)


def _listen(at: _Address) -> socket.socket:
    host, port = at
    try:
        if host[0] == "\0":
            return _listen_here(host)
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if not re.match(r"127\.|::1$|localhost$", host):
            # The host's own name may be a loopback address there: listen at all of its addresses.
            where = ("::" if family == socket.AF_INET6 else "0.0.0.0", port)
        return socket.create_server(where[:2], family=family, backlog=4096)
    except OSError as error:
        raise InvalidUsage(f"rank 0 cannot listen {_where(at)}: {error.strerror or error}: the address must be of rank "
                           "0's host, and its port be free") from error


def _listen_here(name: str) -> socket.socket:
    local = socket.socket(socket.AF_UNIX)
    for k in range(_NAMES):
        try:
            local.bind(f"{name}{k}")
            local.listen(4096)
            return local
        except OSError:
            if k + 1 == _NAMES:
                local.close()
                raise
    raise AssertionError("there are names")


def _own_user(peer: socket.socket) -> bool:
    """Does a process of this user have the other end, which is on this host?"""
    _, uid, _ = struct.unpack("=iii", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(uid == os.getuid())


class _Client:
    """A connection to rank 0, which may be anybody's: it never waits for one."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer, self.until = peer, time.monotonic() + _GUEST_SECONDS
        self.said, self.rank, self.over = b"", -1, False
        peer.setblocking(False)

    def hear(self, size: int, made: bytes) -> int:
        """Reads what has come, and answers; returns a rank that has its id, else -1."""
        try:
            more = self.peer.recv(_HELLO.size)
        except BlockingIOError:
            return -1
        except OSError:
            more = b""
        if not more or self.rank >= 0:  # the byte by which a rank says that it has the id
            self.over = True
            return self.rank if more else -1
        self.said += more
        if len(self.said) >= _HELLO.size:
            try:
                self.peer.sendall(self._answer(size, made))
            except OSError:  # it tries again
                self.rank = -1
            self.over = self.rank < 0
        return -1

    def _answer(self, size: int, made: bytes) -> bytes:
        magic, job, its_size, rank = _HELLO.unpack(self.said[:_HELLO.size])
        if magic != _MAGIC or (self.peer.family == socket.AF_UNIX and not _own_user(self.peer)):
            return b""
        if job != _token():
            return b"J" + f"the job there is {_job()}".encode()
        if its_size != size or not 0 < rank < size:
            return b"E" + f"rank 0 was started with {size} ranks, rank {rank} with {its_size}".encode()
        self.rank = rank
        return b"I" + made


def _serve(listener: socket.socket, at: _Address, size: int, made: bytes) -> None:
    begin, missing, reported = time.monotonic(), set(range(1, size)), False
    clients: list[_Client] = []
    listener.setblocking(False)
    with selectors.DefaultSelector() as waiting:
        waiting.register(listener, selectors.EVENT_READ)
        while missing:
            passed = time.monotonic() - begin
            if passed > _limit():
                raise RemoteError(f"ranks {_list(missing)} of {size} have not come {_where(at)} after {passed:.0f} s: "
                                  "they must be started with the same address and reach this host")
            if passed > _REPORT_SECONDS and not reported:
                print(f"hocket: rank 0 waits {_where(at)} for ranks {_list(missing)} of {size}", file=sys.stderr,
                      flush=True)
                reported = True
            for key, _ in waiting.select(timeout=0.5):
                if key.data is None:
                    _accept(listener, waiting, clients)
                else:
                    missing.discard(key.data.hear(size, made))
            _drop(waiting, clients)
        _drop(waiting, clients, all_of_them=True)


def _accept(listener: socket.socket, waiting: selectors.BaseSelector, clients: list[_Client]) -> None:
    try:
        peer, _ = listener.accept()
    except OSError:  # it has gone, or this process has no descriptor left
        return
    client = _Client(peer)
    clients.append(client)
    waiting.register(peer, selectors.EVENT_READ, client)
    if len(clients) > _CLIENTS:
        clients[0].over = True


def _drop(waiting: selectors.BaseSelector, clients: list[_Client], all_of_them: bool = False) -> None:
    now = time.monotonic()
    for client in clients[:]:
        if client.over or all_of_them or now > client.until:
            clients.remove(client)
            waiting.unregister(client.peer)
            client.peer.close()


def _read(peer: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n:
        more = peer.recv(n - len(data))
        if not more:
            break
        data += more
    return data


def _connect(at: _Address, turn: int) -> socket.socket:
    if at[0][0] != "\0":
        return socket.create_connection(at, timeout=10)
    peer = socket.socket(socket.AF_UNIX)
    try:
        peer.settimeout(10)
        peer.connect(f"{at[0]}{turn % _NAMES}")
        if not _own_user(peer):
            raise OSError("a process of another user listens there")
    except OSError:
        peer.close()
        raise
    return peer


def _ask(at: _Address, rank: int, size: int) -> bytes:
    begin, pause, last, error_text, turn = time.monotonic(), 0.005, "", "no answer", 0
    while time.monotonic() - begin < _limit():
        try:
            with _connect(at, turn) as peer:
                peer.sendall(_HELLO.pack(_MAGIC, _token(), size, rank))
                kind = _read(peer, 1)
                answer = _read(peer, ID_BYTES if kind == b"I" else 4096)
                if kind == b"I" and len(answer) == ID_BYTES:
                    peer.sendall(b"K")  # rank 0 counts a rank that has the id
                    return answer
            last = answer.decode(errors="replace") or last
            if kind == b"E":
                raise InvalidUsage(f"rank {rank}: {last}: all must give the same number")
            if kind == b"J":
                last += f", this one is {_job()}: give jobs on one host different ports"
        except OSError as error:
            error_text = str(error)
        turn += 1
        if at[0][0] != "\0" or turn % _NAMES == 0:
            time.sleep(pause)  # rank 0 may not have started yet
            pause = min(2 * pause, 0.2)
    raise RemoteError(f"rank {rank} of {size} did not get the id from rank 0 {_where(at)} within {_limit():.0f} s: "
                      f"{last or error_text}")


def _list(ranks: set[int]) -> str:
    listed = sorted(ranks)
    return ", ".join(map(str, listed[:20])) + (f" and {len(listed) - 20} more" if len(listed) > 20 else "")
