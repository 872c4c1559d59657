/* SPDX-License-Identifier: Apache-2.0 */
/**
 * All bytes of the TCP connections between ranks pass through these functions. If the process has an encryption key
 * (tls.h), they pass through TLS. The descriptor stays the handle, as with the kernel's own TLS: its holder need not
 * know whether TLS is used. All calls return what send(2) and recv(2) do and never block; EBADMSG means that TLS found
 * the data forged or damaged.
 *
 * With TLS there are two rules more. After a send that took less than it was given, the next send on that connection
 * begins with the bytes that were left. And a descriptor that is not readable may have bytes left that TLS has already
 * read: read until EAGAIN or a short count before you wait, or ask hk_tcp_unread.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/uio.h>

extern _Atomic(bool) hk_tls_used; /* true from the process's first key on */
ssize_t hk_tls_sendv(int fd, const struct iovec *v, int n);
ssize_t hk_tls_readv(int fd, const struct iovec *v, int n);

static inline bool hk_tcp_is_plain(void) {
  /* relaxed: it is set before the first connection with TLS state exists, and the thread has got its descriptor after
   * that */
  return __builtin_expect(!atomic_load_explicit(&hk_tls_used, memory_order_relaxed), 1);
}

static inline ssize_t hk_tcp_sendv(int fd, const struct iovec *v, int n) {
  struct msghdr m = {.msg_iov = (struct iovec *)v, .msg_iovlen = (size_t)n};
  return hk_tcp_is_plain() ? sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) : hk_tls_sendv(fd, v, n);
}
static inline ssize_t hk_tcp_send(int fd, const void *data, size_t bytes) {
  if (hk_tcp_is_plain()) return send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  return hk_tls_sendv(fd, &(struct iovec){(char *)data, bytes}, 1);
}
static inline ssize_t hk_tcp_readv(int fd, const struct iovec *v, int n) {
  return hk_tcp_is_plain() ? readv(fd, v, n) : hk_tls_readv(fd, v, n);
}
static inline ssize_t hk_tcp_recv(int fd, void *data, size_t bytes) {
  if (hk_tcp_is_plain()) return recv(fd, data, bytes, MSG_DONTWAIT);
  return hk_tls_readv(fd, &(struct iovec){data, bytes}, 1);
}

/* TLS has bytes of this connection that poll(2) does not see. */
bool hk_tcp_unread(int fd);
/* Call it with the descriptor of a new connection: drops the state of an older connection with the same number, in a
 * forked child. */
void hk_tcp_new(int fd);
void hk_tcp_close(int fd); /* in place of close(2) */
