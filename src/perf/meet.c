/* SPDX-License-Identifier: Apache-2.0 */
/* How processes that a launcher started find each other without MPI. Process 0 listens. The others learn its address
 * from
 *   MASTER_ADDR and MASTER_PORT             if both are set (torchrun; any other launcher or user)
 *   Slurm's node list and job number        process 0 runs on the first node; the number gives the port
 *   a small file named after the job        otherwise; process 0 writes it (docs/perf.md says into which folder)
 * A connection must begin with the right greeting, so other programs and stale files have no effect; a process of
 * another job learns that it is refused. */
#include "meet.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static uint64_t hash_text(uint64_t h, const char *text) {
  for (; text && *text; text++) h = (h ^ (unsigned char)*text) * 0x100000001b3u; /* FNV-1a */
  return h;
}

/* Parent and name of a process. */
static int parent_of(int pid, char name[32]) {
  char path[64], text[256];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE *f = fopen(path, "r");
  size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
  if (f) fclose(f);
  text[n] = 0;
  /* "12 (name) S 3": the name may hold anything, so its end is the last parenthesis. */
  char *open = strchr(text, '('), *close = strrchr(text, ')');
  int parent = 0;
  name[0] = 0;
  if (!open || !close || sscanf(close + 1, " %*c %d", &parent) != 1) return 0;
  snprintf(name, 32, "%.*s", (int)(close - open - 1), open + 1);
  return parent;
}

/* MPICH's launcher gives no name of the job, but its ranks on one host have a common ancestor, with or without scripts
 * in between. */
static int launcher_process(void) {
  char name[32];
  for (int pid = (int)getppid(); pid > 1;) {
    int parent = parent_of(pid, name);
    if (strstr(name, "pmi_proxy")) return pid;
    pid = parent;
  }
  return (int)getppid();
}

/* A number that all processes of this job agree on and that other jobs are unlikely to have. At a given address only
 * the port distinguishes jobs without a name, because launcher processes differ between hosts. */
static uint64_t job_hash(const perf_launch *l, bool address_given) {
  static const char *const names[] = {"HOCKET_JOB", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid",
                                      "OMPI_MCA_orte_hnp_uri", "PMI_JOBID"};
  char text[64];
  uint64_t h = hash_text(0xcbf29ce484222325u, l->kind);
  bool named = false;
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    const char *value = getenv(names[i]);
    named |= value != NULL;
    h = hash_text(h, value);
  }
  if (!strcmp(l->kind, "slurm")) {
    h = hash_text(hash_text(h, getenv("SLURM_JOB_ID")), getenv("SLURM_STEP_ID"));
  } else if (!named && !address_given && strcmp(l->kind, "torchrun")) {
    if (l->local_procs > 0 && l->local_procs < l->nprocs)
      perf_fail(
          PERF_USAGE,
          "%d processes are on several hosts (%d on this one), and the launcher (%s) gives them neither an address"
          " nor a name of the job: set MASTER_ADDR and MASTER_PORT on all of them to process 0's host and a free"
          " port there (MPICH: mpirun -genv MASTER_ADDR HOST -genv MASTER_PORT 29500), or HOCKET_JOB to a name if"
          " the hosts share the current folder",
          l->nprocs, l->local_procs, l->kind);
    snprintf(text, sizeof text, "launched by %d", launcher_process());
    h = hash_text(h, text);
  }
  return h;
}

/* "node[3-5,9],other" gives "node3". */
static void first_node(const char *list, char *out, size_t room) {
  size_t n = strcspn(list, ",[");
  snprintf(out, room, "%.*s", (int)n, list);
  if (list[n] != '[') return;
  const char *number = list + n + 1;
  size_t digits = strspn(number, "0123456789"), used = strlen(out);
  snprintf(out + used, room - used, "%.*s", (int)digits, number);
}

static void choose_meeting(const perf_launch *l, perf_meeting *m) {
  memset(m, 0, sizeof *m);
  const char *address = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
  bool address_given = address && *address && port && *port;
  m->token = job_hash(l, address_given);
  const char *nodes = getenv("SLURM_STEP_NODELIST");
  if (!nodes) nodes = getenv("SLURM_JOB_NODELIST");
  if (address_given) {
    snprintf(m->hosts[0], PERF_MEET_ADDRESS_BYTES, "%s", address);
    m->nhosts = 1, m->port = atoi(port);
    if (m->port < 1 || m->port > 65534) perf_fail(PERF_USAGE, "MASTER_PORT=%s is not a port", port);
    /* torchrun's own store listens on the port itself. */
    const char *store = getenv("TORCHELASTIC_USE_AGENT_STORE");
    if (store && !strcmp(store, "True")) m->port++;
  } else if (!strcmp(l->kind, "slurm")) {
    first_node(nodes && *nodes ? nodes : "127.0.0.1", m->hosts[0], PERF_MEET_ADDRESS_BYTES);
    m->nhosts = 1, m->port = 20000 + (int)(m->token % 10000);
  } else if (!strcmp(l->kind, "torchrun")) {
    perf_fail(PERF_USAGE, "RANK and WORLD_SIZE are set, but not MASTER_ADDR and MASTER_PORT, the address of process 0"
                          " (--launcher none: ignore them)");
  } else {
    const char *folder = getenv("HOCKET_PERF_DIR");
    if (!folder || !*folder) folder = l->local_procs == l->nprocs ? "/tmp" : ".";
    snprintf(m->folder, sizeof m->folder, "%s", folder);
    snprintf(m->name, sizeof m->name, ".hocket-perf-%u-%016llx-", geteuid(), (unsigned long long)m->token);
  }
}

void perf_meet_where(const perf_launch *l, const perf_meeting *m, char *text, size_t room) {
  if (!m->name[0])
    snprintf(text, room, "at %s port %d", m->hosts[0], m->port);
  else if (l->local_procs == l->nprocs)
    snprintf(text, room, "through a file %s/%s*", m->folder, m->name);
  else
    snprintf(
        text, room,
        "through a file %s/%s* (if the hosts do not share this folder, set MASTER_ADDR and MASTER_PORT to process 0's"
        " host and a free port there)",
        m->folder, m->name);
}

void perf_meet_greeting(const perf_launch *l, const perf_meeting *m, perf_greeting *g) {
  *g = (perf_greeting){.magic = "hkperf2", .token = m->token, .nprocs = l->nprocs, .proc = l->proc, .user = getuid()};
}

bool perf_meet_differs(const perf_greeting *mine, const perf_greeting *other, char *text, size_t room) {
  if (other->nprocs != mine->nprocs)
    snprintf(text, room, "it was started with %d processes, this one with %d", other->nprocs, mine->nprocs);
  else if (other->user != mine->user)
    snprintf(text, room, "it is of user id %u, this one of %u", other->user, mine->user);
  else if (other->token != mine->token)
    snprintf(text, room, "it has another launcher or another name of the job");
  else
    return false;
  return true;
}

/* ------------------------------------------------------------ the others -- */

typedef struct search {
  const perf_launch *l;
  perf_meeting *m;
  bool reported;   /* reported why nothing can be found, or which job is at the address */
  char cause[160]; /* of the last try */
} search;

/* Connects, and asks whether this is process 0 of this job. */
static bool ask(search *s, int fd, const struct addrinfo *a, const char *host) {
  perf_greeting mine, answer;
  char why[256];
  perf_meet_greeting(s->l, s->m, &mine);
  if (connect(fd, a->ai_addr, a->ai_addrlen)) { /* its time is SO_SNDTIMEO's */
    snprintf(s->cause, sizeof s->cause, "%s", errno == EINPROGRESS ? "no answer" : strerror(errno));
    return false;
  }
  snprintf(s->cause, sizeof s->cause, "what listens there does not answer as process 0");
  if (send(fd, &mine, sizeof mine, MSG_NOSIGNAL) != sizeof mine ||
      recv(fd, &answer, sizeof answer, MSG_WAITALL) != sizeof answer ||
      memcmp(answer.magic, mine.magic, sizeof mine.magic) != 0)
    return false;
  if (answer.accepted) return send(fd, "", 1, MSG_NOSIGNAL) == 1; /* process 0 counts this one from here on */
  if (!perf_meet_differs(&mine, &answer, why, sizeof why)) return false;
  if (!s->reported && (!s->m->name[0] || answer.token))
    fprintf(
        stderr,
        "# process %d of %d: what listens at %s port %d is process 0 of another job: %s; give each job a MASTER_PORT"
        " of its own, and all its processes the same launcher, user and number\n",
        s->l->proc, s->l->nprocs, host, s->m->port, why);
  s->reported = true;
  return false;
}

static int try_host(search *s, const char *host) {
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
  struct timeval limit = {.tv_sec = PERF_MEET_ANSWER_SECONDS}, none = {.tv_sec = 0};
  char port[16];
  snprintf(port, sizeof port, "%d", s->m->port);
  int error = getaddrinfo(host, port, &hints, &list), found = -1, one = 1;
  if (error) { /* the name may become known later, but the user sees the error now */
    if (!s->reported)
      fprintf(stderr, "# process %d cannot resolve '%s', the host of process 0, yet: %s\n", s->l->proc, host,
              gai_strerror(error));
    s->reported = true;
    return -1;
  }
  for (struct addrinfo *a = list; a && found < 0; a = a->ai_next) {
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (!ask(s, fd, a, host)) {
      close(fd);
      continue;
    }
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof none);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
    found = fd;
  }
  freeaddrinfo(list);
  return found;
}

static int try_hosts(search *s) {
  int fd = -1;
  for (int i = 0; i < s->m->nhosts && fd < 0; i++) fd = try_host(s, s->m->hosts[i]);
  return fd;
}

static int try_files(search *s) {
  int fd = -1, turn = 0;
  snprintf(s->cause, sizeof s->cause, "there is none yet");
  while (fd < 0 && perf_meet_read(s->m, &turn)) fd = try_hosts(s);
  if (fd < 0 && s->m->stranger >= 0)
    snprintf(s->cause, sizeof s->cause, "one there is of user id %lld, and is not used", (long long)s->m->stranger);
  return fd;
}

static void meet_first(perf_launch *l, perf_meeting *m) {
  double start = perf_now();
  long pause_ms = 10;
  bool said = false;
  search s = {.l = l, .m = m};
  for (;;) {
    char where[1200];
    int fd = m->name[0] ? try_files(&s) : try_hosts(&s);
    if (fd >= 0) {
      l->oob.fds[0] = fd;
      return;
    }
    perf_meet_where(l, m, where, sizeof where);
    if (perf_now() - start > PERF_MEET_SECONDS)
      perf_fail(PERF_INTERNAL, "process %d of %d did not find process 0 %s within %d s: %s", l->proc, l->nprocs, where,
                PERF_MEET_SECONDS, s.cause);
    if (!said && !s.reported && perf_now() - start > PERF_MEET_REPORT_SECONDS) {
      fprintf(stderr, "# process %d of %d looks for process 0 %s: %s\n", l->proc, l->nprocs, where, s.cause);
      said = true;
    }
    struct timespec pause = {.tv_nsec = pause_ms * 1000000};
    nanosleep(&pause, NULL);
    if (pause_ms < 200) pause_ms *= 2;
  }
}

void perf_meet(perf_launch *l) {
  perf_meeting *m = malloc(sizeof *m);
  l->oob.fds = malloc(sizeof(int) * (size_t)l->nprocs);
  if (!m || !l->oob.fds) perf_fail(PERF_INTERNAL, "out of memory");
  choose_meeting(l, m);
  if (l->proc)
    meet_first(l, m);
  else
    perf_meet_serve(l, m);
  free(m);
}
