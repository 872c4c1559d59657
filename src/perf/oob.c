/* SPDX-License-Identifier: Apache-2.0 */
/* Exchange between processes over a star of sockets (oob.h). */
#include "oob.h"
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "perf.h"

static void __attribute__((noreturn)) lost(const perf_oob *o, int peer, int error) {
  perf_fail(PERF_INTERNAL, "process %d lost process %d of this run: %s", o->proc, peer,
            error ? strerror(error) : "it closed its connection; it ended early or was killed");
}

static void send_all(const perf_oob *o, int peer, int fd, const void *data, size_t bytes) {
  const char *p = data;
  while (bytes) {
    ssize_t n = send(fd, p, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) lost(o, peer, errno == EPIPE || errno == ECONNRESET ? 0 : errno);
    p += n, bytes -= (size_t)n;
  }
}

static void receive_all(const perf_oob *o, int peer, int fd, void *data, size_t bytes) {
  char *p = data;
  while (bytes) {
    ssize_t n = recv(fd, p, bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) lost(o, peer, n == 0 || errno == ECONNRESET ? 0 : errno);
    p += n, bytes -= (size_t)n;
  }
}

void perf_oob_allgather(perf_oob *o, const void *mine, size_t bytes, void *all) {
  size_t total = bytes * (size_t)o->nprocs;
  memmove((char *)all + bytes * (size_t)o->proc, mine, bytes);
  if (o->nprocs == 1) return;
  if (o->proc) {
    send_all(o, 0, o->fds[0], mine, bytes);
    receive_all(o, 0, o->fds[0], all, total);
    return;
  }
  for (int p = 1; p < o->nprocs; p++) receive_all(o, p, o->fds[p], (char *)all + bytes * (size_t)p, bytes);
  for (int p = 1; p < o->nprocs; p++) send_all(o, p, o->fds[p], all, total);
}
