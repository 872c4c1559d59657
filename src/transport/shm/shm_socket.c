/* SPDX-License-Identifier: Apache-2.0 */
/* Datagrams and file descriptors between the processes of a host: see shm_socket.h. */
#include "shm_socket.h"
#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include "../../base/status.h"

enum { TYPE = SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK };

static hk_shm_address shm_socket_address_of(const char *name) {
  hk_shm_address a = {.un.sun_family = AF_UNIX}; /* sun_path begins with a zero byte: the abstract namespace */
  size_t n = strnlen(name, HK_SHM_NAME - 1);
  memcpy(a.un.sun_path + 1, name, n);
  a.bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
  return a;
}

/* With SO_PASSCRED the kernel adds the sender's user to each datagram that is read. */
static int shm_socket_open_socket(void) {
  int s = socket(AF_UNIX, TYPE, 0), on = 1;
  if (s >= 0) setsockopt(s, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
  return s;
}

static int shm_socket_fail(int s) {
  int e = errno;
  close(s);
  errno = e;
  return -1;
}

/* The kernel runs this for the sender, before a datagram is queued: without the secret it is dropped there. The sender
 * also closes a descriptor that it attached. So this process's thread need not close it, which may take long (a socket
 * with SO_LINGER), and strangers cannot fill the queue. */
_Static_assert(offsetof(hk_shm_message, secret) == 0, "the filter compares a message's first bytes");
static int shm_socket_admit_secret(int s, const uint8_t *secret) {
  enum { WORDS = 4 };
  struct sock_filter f[2 * WORDS + 2];
  struct sock_fprog program = {.len = HK_ARRAY_LENGTH(f), .filter = f};
  for (unsigned i = 0; i < WORDS; i++) {
    uint32_t word;
    memcpy(&word, secret + 4 * i, sizeof word);
    f[2 * i] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4 * i);
    f[2 * i + 1] =
        (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(word), 0, (uint8_t)(2 * (WORDS - i) - 1));
  }
  f[2 * WORDS] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, UINT32_MAX);
  f[2 * WORDS + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
  return setsockopt(s, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

int hk_shm_listen(char *name, const uint8_t *secret) {
  uint64_t random[2];
  if (getrandom(random, sizeof random, 0) != sizeof random) return -1;
  snprintf(name, HK_SHM_NAME, "hocket-%016llx%016llx", (unsigned long long)random[0], (unsigned long long)random[1]);
  int s = shm_socket_open_socket();
  if (s < 0) return -1;
  hk_shm_address a = shm_socket_address_of(name);
  /* without the kernel's filter hk_shm_receive still drops messages without the secret */
  (void)shm_socket_admit_secret(s, secret);
  return bind(s, (struct sockaddr *)&a.un, a.bytes) ? shm_socket_fail(s) : s;
}

int hk_shm_dial(const char *name) {
  int s = shm_socket_open_socket();
  if (s < 0) return -1;
  struct sockaddr_un own = {.sun_family = AF_UNIX};
  hk_shm_address a = shm_socket_address_of(name);
  /* Binding to an address with only a family makes the kernel choose a name, to which the answer is sent. */
  if (bind(s, (struct sockaddr *)&own, sizeof own.sun_family)) return shm_socket_fail(s);
  return connect(s, (struct sockaddr *)&a.un, a.bytes) ? shm_socket_fail(s) : s;
}

bool hk_shm_send(int socket, const hk_shm_address *to, const hk_shm_message *m, int fd) {
  union {
    struct cmsghdr header;
    char capacity[CMSG_SPACE(sizeof(int))];
  } control = {.capacity = {0}};
  struct iovec data = {(void *)m, sizeof *m};
  struct msghdr h = {.msg_iov = &data, .msg_iovlen = 1};
  if (to) {
    h.msg_name = (void *)&to->un;
    h.msg_namelen = to->bytes;
  }
  if (fd >= 0) {
    h.msg_control = control.capacity;
    h.msg_controllen = sizeof control.capacity;
    struct cmsghdr *c = CMSG_FIRSTHDR(&h);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  ssize_t n;
  do n = sendmsg(socket, &h, MSG_NOSIGNAL);
  while (n < 0 && errno == EINTR);
  return n == (ssize_t)sizeof *m;
}

/* Keeps the first received file descriptor, and closes the others, which no valid message has. */
static void shm_socket_read_rights(struct cmsghdr *c, int *fd) {
  size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  for (size_t i = 0; i < n; i++) {
    int it;
    memcpy(&it, CMSG_DATA(c) + i * sizeof it, sizeof it);
    if (*fd < 0)
      *fd = it;
    else
      close(it);
  }
}

static void shm_socket_read_control(struct msghdr *h, bool *own_user, int *fd) {
  for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
    if (c->cmsg_level != SOL_SOCKET) continue;
    if (c->cmsg_type == SCM_CREDENTIALS) {
      struct ucred who;
      memcpy(&who, CMSG_DATA(c), sizeof who);
      *own_user = who.uid == getuid(); /* the kernel reports the real user */
    } else if (c->cmsg_type == SCM_RIGHTS) {
      shm_socket_read_rights(c, fd);
    }
  }
}

static bool shm_socket_equal_secrets(const uint8_t *a, const uint8_t *b) {
  unsigned difference = 0; /* no early exit: the time must not depend on the content */
  for (int i = 0; i < 16; i++) difference |= a[i] ^ b[i];
  return difference == 0;
}

/* Reads a message, or with `flags` MSG_PEEK looks at it. `capacity` is for ancillary data. */
static ssize_t shm_socket_read_message(int socket, hk_shm_message *m, hk_shm_address *from, int flags, size_t capacity,
                                       bool *own_user, int *fd) {
  union {
    struct cmsghdr header;
    char capacity[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(sizeof(int))];
  } control;
  struct iovec data = {m, sizeof *m};
  struct msghdr h = {.msg_iov = &data,
                     .msg_iovlen = 1,
                     .msg_name = &from->un,
                     .msg_namelen = sizeof from->un,
                     .msg_control = capacity ? control.capacity : NULL,
                     .msg_controllen = capacity};
  ssize_t n;
  *own_user = false;
  *fd = -1;
  do n = recvmsg(socket, &h, MSG_CMSG_CLOEXEC | flags);
  while (n < 0 && errno == EINTR);
  if (n < 0) return n;
  shm_socket_read_control(&h, own_user, fd);
  from->bytes = h.msg_namelen;
  return h.msg_flags & MSG_TRUNC ? 0 : n;
}

/* A stranger's descriptor must not become one of this process, because its close may take any time, on a file system
 * that the stranger chooses. So the message is first peeked, with room only for the sender's credentials. */
bool hk_shm_receive(int socket, const uint8_t *secret, hk_shm_message *m, hk_shm_address *from, int *fd) {
  enum { NAME_ALONE = CMSG_SPACE(sizeof(struct ucred)), ALL = NAME_ALONE + CMSG_SPACE(sizeof(int)) };
  bool own_user, again;
  ssize_t n = shm_socket_read_message(socket, m, from, MSG_PEEK, NAME_ALONE, &own_user, fd);
  if (n < 0) return false;
  const bool member = n == (ssize_t)sizeof *m && shm_socket_equal_secrets(m->secret, secret);
  if (shm_socket_read_message(socket, m, from, 0, member && own_user ? ALL : 0, &again, fd) < 0) return false;
  if (member) m->reason[sizeof m->reason - 1] = 0;
  if (member && own_user) return true;
  if (member && m->verb != HK_SHM_REFUSE) m->verb = HK_SHM_OTHER_USER;
  errno = EPROTO;
  return member;
}

hk_status hk_shm_send_wait(int socket, const hk_wait_env *wait, const hk_shm_message *m, int fd) {
  while (!hk_shm_send(socket, NULL, m, fd)) {
    /* EAGAIN: many processes ask the same one at this moment, and its queue is full. */
    if (errno != EAGAIN)
      return HK_FAIL(HK_ERR_REMOTE, "cannot reach another process of this host (%s); it has probably ended",
                     strerror(errno));
    hk_status rc = hk_wait_fd(wait, socket, POLLOUT, "room in the queue of another process of this host");
    if (rc != HK_OK) return rc;
  }
  return HK_OK;
}

hk_status hk_shm_receive_wait(int socket, const hk_transport_env *env, int peer, void (*look)(void *), void *arg,
                              hk_shm_message *m, int *fd) {
  enum { LOOK_MS = 20 };
  hk_waiter w;
  hk_shm_address from, to = {.bytes = sizeof to.un};
  hk_shm_message ping = {.verb = HK_SHM_PING};
  memcpy(ping.secret, env->secret, sizeof ping.secret);
  if (getpeername(socket, (struct sockaddr *)&to.un, &to.bytes))
    return HK_FAIL_ERRNO("rank %d cannot wait for the shared memory of rank %d", env->rank, peer);
  hk_wait_begin(&w, env->wait);
  while (!hk_shm_receive(socket, env->secret, m, &from, fd)) {
    struct pollfd readable = {.fd = socket, .events = POLLIN};
    if (poll(&readable, 1, LOOK_MS) > 0) continue;
    if (look) look(arg);
    hk_status rc = hk_wait_slow(&w);
    if (rc != HK_OK) return rc;
    /* Sent to its name, because a send on a dead connection empties this socket's queue. */
    if (hk_shm_send(socket, &to, &ping, -1) || errno == EAGAIN) continue;
    /* Its last message, such as a refusal, may have arrived just before its end. */
    do {
      if (hk_shm_receive(socket, env->secret, m, &from, fd)) return HK_OK;
    } while (errno == EPROTO);
    return HK_FAIL(HK_ERR_REMOTE, "rank %d's process ended while rank %d waited for its shared memory", peer,
                   env->rank);
  }
  return HK_OK;
}
