/* SPDX-License-Identifier: Apache-2.0 */
/* Process 0 of a meeting. Any process that reaches its port can connect. Connections are served together: each has some
 * seconds for all that it sends, and a process counts when it has confirmed the answer. */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "meet.h"

enum { CLIENTS = 512 }; /* the oldest goes first */

typedef struct client {
  double until;
  size_t have;
  perf_greeting said;
  bool accepted;
} client;

typedef struct server {
  perf_launch *l;
  perf_meeting *m;
  int listener, missing, nclients;
  bool refused;                   /* a line about a process of another job is written */
  struct pollfd fds[CLIENTS + 1]; /* of the clients, then the listener's */
  client clients[CLIENTS];        /* oldest first */
} server;

static bool is_loopback(const char *host) { return !strncmp(host, "127.", 4) || !strcmp(host, "localhost"); }

static int listen_on(perf_meeting *m, bool local) {
  struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)m->port)};
  struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)m->port)};
  any4.sin_addr.s_addr = htonl(local ? INADDR_LOOPBACK : INADDR_ANY);
  int one = 1, zero = 0, fd = -1, type = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  if (!local && (fd = socket(AF_INET6, type, 0)) >= 0) {
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&any6, sizeof any6)) close(fd), fd = -1;
  }
  if (fd < 0) {
    fd = socket(AF_INET, type, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, (struct sockaddr *)&any4, sizeof any4))
      perf_fail(PERF_INTERNAL, "process 0 cannot listen on port %d: %s", m->port, strerror(errno));
  }
  if (listen(fd, 1024)) perf_fail(PERF_INTERNAL, "process 0 cannot listen: %s", strerror(errno));
  struct sockaddr_storage name;
  socklen_t length = sizeof name;
  getsockname(fd, (struct sockaddr *)&name, &length);
  m->port = ntohs(name.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&name)->sin6_port
                                             : ((struct sockaddr_in *)&name)->sin_port);
  return fd;
}

/* This host's addresses for the file; the loopback one only if all processes are on this host. */
static void own_addresses(perf_meeting *m, bool local) {
  struct ifaddrs *list = NULL;
  m->nhosts = 0;
  if (local) {
    strcpy(m->hosts[m->nhosts++], "127.0.0.1");
    return;
  }
  if (getifaddrs(&list)) perf_fail(PERF_INTERNAL, "cannot list network interfaces: %s", strerror(errno));
  for (struct ifaddrs *i = list; i && m->nhosts < PERF_MEET_ADDRESSES; i = i->ifa_next) {
    if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP) || i->ifa_flags & IFF_LOOPBACK)
      continue;
    const struct sockaddr_in *a = (const struct sockaddr_in *)i->ifa_addr;
    inet_ntop(AF_INET, &a->sin_addr, m->hosts[m->nhosts++], PERF_MEET_ADDRESS_BYTES);
  }
  freeifaddrs(list);
  if (!m->nhosts) strcpy(m->hosts[m->nhosts++], "127.0.0.1");
}

static void drop_client(server *s, int i, bool closes) {
  if (closes) close(s->fds[i].fd);
  s->nclients--;
  memmove(&s->fds[i], &s->fds[i + 1], sizeof s->fds[0] * (size_t)(s->nclients - i));
  memmove(&s->clients[i], &s->clients[i + 1], sizeof s->clients[0] * (size_t)(s->nclients - i));
}

/* False: the process is refused. Both sides report the reason, this side only once. */
static bool answer(server *s, int i) {
  const perf_greeting *said = &s->clients[i].said;
  perf_greeting mine;
  char why[256];
  perf_meet_greeting(s->l, s->m, &mine);
  if (memcmp(said->magic, mine.magic, sizeof mine.magic) != 0) return false;
  bool differs = perf_meet_differs(&mine, said, why, sizeof why);
  if (differs && !s->refused && (!s->m->name[0] || said->token == mine.token)) {
    s->refused = true;
    fprintf(stderr, "# process 0 of %d refuses at port %d process %d of %d of another job: %s\n", s->l->nprocs,
            s->m->port, said->proc, said->nprocs, why);
  }
  if (!differs && (said->proc < 1 || said->proc >= s->l->nprocs || s->l->oob.fds[said->proc] >= 0)) {
    if (said->proc > 0 && said->proc < s->l->nprocs)
      fprintf(stderr, "# two processes have the number %d of %d\n", said->proc, said->nprocs);
    return false;
  }
  mine.accepted = !differs;
  if (said->token != mine.token) mine.token = 0; /* it does not learn the token */
  bool sent = send(s->fds[i].fd, &mine, sizeof mine, MSG_NOSIGNAL) == sizeof mine;
  s->clients[i].accepted = true;
  s->clients[i].until = perf_now() + PERF_MEET_ANSWER_SECONDS;
  return sent && !differs;
}

/* An accepted process has its answer, and belongs to the job. */
static void take(server *s, int i) {
  int fd = s->fds[i].fd, proc = s->clients[i].said.proc, one = 1, off = 0;
  bool twice = s->l->oob.fds[proc] >= 0; /* two connections were accepted: the process had given up one of them */
  drop_client(s, i, twice);
  if (twice) return;
  ioctl(fd, FIONBIO, &off);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  s->l->oob.fds[proc] = fd;
  s->missing--;
}

static void read_client(server *s, int i) {
  client *g = &s->clients[i];
  char *to = (char *)&g->said + g->have, byte;
  ssize_t n = g->accepted ? recv(s->fds[i].fd, &byte, 1, 0) : recv(s->fds[i].fd, to, sizeof g->said - g->have, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    drop_client(s, i, true);
  } else if (g->accepted) {
    take(s, i);
  } else if ((g->have += (size_t)n) == sizeof g->said && !answer(s, i)) {
    drop_client(s, i, true);
  }
}

static void accept_client(server *s) {
  int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  bool full = fd < 0 ? errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM
                     : s->nclients == CLIENTS;
  if (fd < 0 && full && !s->nclients) perf_fail(PERF_INTERNAL, "process 0 cannot accept: %s", strerror(errno));
  if (full) drop_client(s, 0, true);
  if (fd < 0) return; /* the client has gone, or there is room at the next call */
  s->fds[s->nclients] = (struct pollfd){.fd = fd, .events = POLLIN};
  s->clients[s->nclients++] = (client){.until = perf_now() + PERF_MEET_ANSWER_SECONDS};
}

/* Clients are served first, so that a client that sends its greeting at once is not dropped for later connections. */
static void serve_once(server *s) {
  s->fds[s->nclients] = (struct pollfd){.fd = s->listener, .events = POLLIN};
  int n = poll(s->fds, (nfds_t)s->nclients + 1, 500);
  bool comes = n > 0 && s->fds[s->nclients].revents;
  double now = perf_now();
  for (int i = s->nclients - 1; i >= 0; i--) {
    if (n > 0 && s->fds[i].revents)
      read_client(s, i);
    else if (now > s->clients[i].until)
      drop_client(s, i, true);
  }
  if (comes) accept_client(s);
}

void perf_meet_serve(perf_launch *l, perf_meeting *m) {
  bool local = m->name[0] ? l->local_procs == l->nprocs : is_loopback(m->hosts[0]), reported = false;
  server *s = calloc(1, sizeof *s);
  if (!s) perf_fail(PERF_INTERNAL, "out of memory");
  *s = (server){.l = l, .m = m, .listener = listen_on(m, local), .missing = l->nprocs - 1};
  if (m->name[0]) own_addresses(m, local), perf_meet_write(m);
  for (int p = 0; p < l->nprocs; p++) l->oob.fds[p] = -1;
  double start = perf_now();
  while (s->missing) {
    char where[1200];
    perf_meet_where(l, m, where, sizeof where);
    serve_once(s);
    if (s->missing && !reported && perf_now() - start > PERF_MEET_REPORT_SECONDS) {
      fprintf(stderr, "# process 0 waits %s for %d of %d processes\n", where, s->missing, l->nprocs);
      reported = true;
    }
    if (s->missing && perf_now() - start > PERF_MEET_SECONDS) {
      if (m->name[0]) unlink(m->path);
      perf_fail(PERF_INTERNAL, "%d of %d processes did not come %s within %d s", s->missing, l->nprocs, where,
                PERF_MEET_SECONDS);
    }
  }
  while (s->nclients) drop_client(s, 0, true);
  close(s->listener);
  if (m->name[0]) unlink(m->path);
  free(s);
}
