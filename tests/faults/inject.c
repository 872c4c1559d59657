/* SPDX-License-Identifier: Apache-2.0 */
/* What happens: by a thread of the victim while ranks are in the operation (ASYNC), or in the victim's call (CALL). */
#include <dlfcn.h>
#include <net/if.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "rank.h"

enum { STOPPED_MS = 5000, DOWN_MS = 1000, FORK_MS = 1000 };
static int to_warden = -1;

/* A stopped process cannot continue itself: a child, made while there is one thread, does it when it is asked to. */
void inject_before(run *w) {
  int ends[2];
  if (!is_victim(w) || w->fault != FAULT_stop) return;
  if (pipe(ends)) exit(2);
  pid_t parent = getpid();
  if (fork() == 0) {
    char c;
    close(ends[1]);
    while (read(ends[0], &c, 1) == 1) {
      pause_ms(STOPPED_MS);
      kill(parent, SIGCONT);
    }
    _exit(0);
  }
  close(ends[0]);
  to_warden = ends[1];
}

static void *sleeper(void *arg) {
  for (;;) pause_ms(100);
  return arg;
}

/* The first cancelled thread of a process makes the C library load a library: before anything is counted. */
void inject_warm(void) {
  pthread_t t;
  if (pthread_create(&t, NULL, sleeper, NULL)) exit(2);
  pthread_cancel(t);
  pthread_join(t, NULL);
}

static bool is_connection(int fd) {
  struct sockaddr_storage a;
  socklen_t length = sizeof a;
  int type = 0;
  if (getpeername(fd, (struct sockaddr *)&a, &length) || (a.ss_family != AF_INET && a.ss_family != AF_INET6))
    return false;
  length = sizeof type;
  return !getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) && type == SOCK_STREAM;
}

void inject_sockets(run *w, int stage) {
  unsigned char *to = stage ? w->sockets_control : w->sockets_before;
  for (int fd = 0; fd < (int)sizeof w->sockets_control; fd++) to[fd] = is_connection(fd);
}

/* Sends a reset and forgets the connection; the descriptor stays.  All at once: nothing is to be passed on in
 * between. */
static int reset_connections(run *w, bool control) {
  int fds[64], n = 0, done = 0;
  struct sockaddr none = {.sa_family = AF_UNSPEC};
  for (int fd = 0; fd < (int)sizeof w->sockets_control && n < 64; fd++) {
    bool was = w->sockets_before[fd], early = w->op == OP_init || w->sockets_control[fd];
    if (!was && early == control && is_connection(fd)) fds[n++] = fd;
  }
  for (int i = 0; i < n; i++) done += !connect(fds[i], &none, sizeof none);
  return done;
}

static int link_up(bool up) {
  struct ifreq r = {.ifr_name = "eth0"};
  int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), bad = ioctl(s, SIOCGIFFLAGS, &r);
  r.ifr_flags = (short)(up ? r.ifr_flags | IFF_UP : r.ifr_flags & ~IFF_UP);
  bad |= ioctl(s, SIOCSIFFLAGS, &r);
  close(s);
  return bad;
}

/* In the child a call is wrong usage, and the end of the communicator is no business of the parent's. */
static void use_in_child(run *w) {
  float x = 1;
  pid_t pid = fork();
  if (pid == 0) {
    int bad = w->comm && ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, w->comm, NULL) != ncclInvalidUsage;
    pause_ms(FORK_MS);
    _exit(bad);
  }
  int status = -1;
  if (waitpid(pid, &status, 0) != pid || status)
    printf("rank %d: the forked child's status is 0x%x\n", w->rank, status);
  w->wrong += status != 0;
}

void *inject_thread(void *arg) {
  run *w = arg;
  board *b = w->board;
  pause_ms(200);
  atomic_store(&b->hold, 1);
  pause_ms(200);
  atomic_store(&b->struck, now_ns());
  switch (w->fault) {
    case FAULT_kill:
    case FAULT_kill_root: kill(getpid(), SIGKILL); break;
    case FAULT_stop:
      if (write(to_warden, "", 1) == 1) kill(getpid(), SIGSTOP);
      pause_ms(100);
      break;
    case FAULT_flap:
      w->hits += !link_up(false);
      pause_ms(DOWN_MS);
      link_up(true);
      break;
    case FAULT_cut: w->hits += !link_up(false); break;
    case FAULT_reset: w->hits += reset_connections(w, false); break;
    case FAULT_control: w->hits += reset_connections(w, true); break;
    case FAULT_cancel: pthread_cancel(w->caller); break;
    case FAULT_fork: use_in_child(w); break;
    default: break; /* FAULT_logs is there from the start */
  }
  atomic_store(&b->over, 1);
  return NULL;
}

static void *memory_of(int rights) {
  void *p = mmap(NULL, LARGE * 4 + 4096, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

/* A function of libfail.so. */
static int ask(const char *name) {
  int (*fn)(void) = NULL;
  *(void **)&fn = dlsym(RTLD_DEFAULT, name);
  return fn ? fn() : 0;
}

void inject_spoil(run *w, call *k) {
  switch (w->fault) {
    case FAULT_enomem: ask("fail_memory"); break;
    case FAULT_emfile: ask("fail_descriptors"); break;
    case FAULT_unmapped: k->in = w->bad = memory_of(PROT_NONE); break;
    case FAULT_readonly: k->out = w->bad = memory_of(PROT_READ); break;
    case FAULT_count: k->count--; break;
    case FAULT_type: k->type = ncclFloat32; break;
    case FAULT_operator: k->operator= ncclMax; break;
    case FAULT_root: k->root = w->rank; break;
    case FAULT_peer: k->peer = (w->rank + 2) % w->n; break;
    case FAULT_order: k->swapped = true; break;
    case FAULT_list: k->exclude = 2; break;
    default: break;
  }
}

void inject_undo(run *w) {
  if (!is_victim(w)) return;
  if (w->fault == FAULT_cut && !link_up(true)) pause_ms(2000); /* neighbours must find each other again */
  if (w->fault == FAULT_emfile || w->fault == FAULT_enomem) w->hits += ask("fail_nothing");
}
