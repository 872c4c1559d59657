/* SPDX-License-Identifier: Apache-2.0 */
/* How processes that a launcher started find each other without MPI. Process 0 listens. The others learn its address
 * from
 *   MASTER_ADDR and MASTER_PORT             if both are set (torchrun; any other launcher or user)
 *   Slurm's node list and job number        process 0 runs on the first node; the number gives the port
 *   a small file named after the job        otherwise; process 0 writes it (docs/perf.md says into which folder)
 * A connection must begin with the right greeting, so other programs and stale files have no effect; a process of
 * another job learns that it is refused. */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "launch.h"

enum { WAIT_SECONDS = 300, REPORT_SECONDS = 5, GREETING_SECONDS = 2, MAX_ADDRESSES = 16, ADDRESS_ROOM = 256 };

typedef struct meeting {
  char path[1024]; /* not empty: the file is used */
  char hosts[MAX_ADDRESSES][ADDRESS_ROOM];
  int nhosts, port; /* port 0: any, if the file is used */
  uint64_t token;
} meeting;

typedef struct greeting {
  char magic[8];
  uint64_t token;
  int32_t nprocs, proc;
} greeting;
static const char magic[8] = "hkperf1";
static const char welcome = 'w', refused = 'r'; /* process 0's answer, one byte */

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

/* A number that all processes of this job agree on and that other jobs are unlikely to have. At a given address the
 * port alone tells jobs without a name apart: launcher processes differ between hosts. */
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
  snprintf(text, sizeof text, " %d %d", l->nprocs, (int)getuid());
  return hash_text(h, text);
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

static void choose_meeting(const perf_launch *l, meeting *m) {
  memset(m, 0, sizeof *m);
  const char *address = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
  bool address_given = address && *address && port && *port;
  m->token = job_hash(l, address_given);
  const char *nodes = getenv("SLURM_STEP_NODELIST");
  if (!nodes) nodes = getenv("SLURM_JOB_NODELIST");
  if (address_given) {
    snprintf(m->hosts[0], ADDRESS_ROOM, "%s", address);
    m->nhosts = 1, m->port = atoi(port);
    if (m->port < 1 || m->port > 65534) perf_fail(PERF_USAGE, "MASTER_PORT=%s is not a port", port);
    /* torchrun's own store listens on the port itself. */
    const char *store = getenv("TORCHELASTIC_USE_AGENT_STORE");
    if (store && !strcmp(store, "True")) m->port++;
  } else if (!strcmp(l->kind, "slurm")) {
    first_node(nodes && *nodes ? nodes : "127.0.0.1", m->hosts[0], ADDRESS_ROOM);
    m->nhosts = 1, m->port = 20000 + (int)(m->token % 10000);
  } else if (!strcmp(l->kind, "torchrun")) {
    perf_fail(PERF_USAGE, "RANK and WORLD_SIZE are set, but not MASTER_ADDR and MASTER_PORT, the address of process 0"
                          " (--launcher none: ignore them)");
  } else {
    const char *folder = getenv("HOCKET_PERF_DIR");
    if (!folder || !*folder) folder = l->local_procs == l->nprocs ? "/tmp" : ".";
    snprintf(m->path, sizeof m->path, "%s/.hocket-perf-%016llx", folder, (unsigned long long)m->token);
  }
}

static void describe(const perf_launch *l, const meeting *m, char *text, size_t room) {
  if (!m->path[0])
    snprintf(text, room, "at %s port %d", m->hosts[0], m->port);
  else if (l->local_procs == l->nprocs)
    snprintf(text, room, "through the file %s", m->path);
  else
    snprintf(
        text, room,
        "through the file %s (if the hosts do not share this folder, set MASTER_ADDR and MASTER_PORT to process 0's"
        " host and a free port there)",
        m->path);
}

static bool is_loopback(const char *host) { return !strncmp(host, "127.", 4) || !strcmp(host, "localhost"); }

/* ------------------------------------------------------------ process 0 -- */

static int listen_on(meeting *m, bool local) {
  struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)m->port)};
  struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)m->port)};
  any4.sin_addr.s_addr = htonl(local ? INADDR_LOOPBACK : INADDR_ANY);
  int one = 1, zero = 0, fd = -1;
  if (!local && (fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0) {
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&any6, sizeof any6)) close(fd), fd = -1;
  }
  if (fd < 0) {
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
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
static void own_addresses(meeting *m, bool local) {
  struct ifaddrs *list = NULL;
  m->nhosts = 0;
  if (local) {
    strcpy(m->hosts[m->nhosts++], "127.0.0.1");
    return;
  }
  if (getifaddrs(&list)) perf_fail(PERF_INTERNAL, "cannot list network interfaces: %s", strerror(errno));
  for (struct ifaddrs *i = list; i && m->nhosts < MAX_ADDRESSES; i = i->ifa_next) {
    if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP) || i->ifa_flags & IFF_LOOPBACK)
      continue;
    const struct sockaddr_in *a = (const struct sockaddr_in *)i->ifa_addr;
    inet_ntop(AF_INET, &a->sin_addr, m->hosts[m->nhosts++], ADDRESS_ROOM);
  }
  freeifaddrs(list);
  if (!m->nhosts) strcpy(m->hosts[m->nhosts++], "127.0.0.1");
}

static void write_file(meeting *m) {
  if (getrandom(&m->token, sizeof m->token, 0) != sizeof m->token) m->token = (uint64_t)time(NULL) ^ (uint64_t)getpid();
  char temporary[sizeof m->path + 32];
  snprintf(temporary, sizeof temporary, "%s.%d", m->path, (int)getpid());
  FILE *f = fopen(temporary, "w");
  if (!f)
    perf_fail(PERF_INTERNAL, "cannot write %s: %s (HOCKET_PERF_DIR names another folder)", temporary, strerror(errno));
  fprintf(f, "%016llx %d", (unsigned long long)m->token, m->port);
  for (int i = 0; i < m->nhosts; i++) fprintf(f, " %s", m->hosts[i]);
  fputc('\n', f);
  /* The file is complete before it gets its name. */
  if (fclose(f) || rename(temporary, m->path))
    perf_fail(PERF_INTERNAL, "cannot write %s: %s", m->path, strerror(errno));
}

static void set_timeout(int fd, int seconds) {
  struct timeval t = {.tv_sec = seconds};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
}

/* Says to both sides, here once, that a process is not of this job. */
static void refuse(const perf_launch *l, const meeting *m, int fd, const greeting *g, bool *reported) {
  send(fd, &refused, 1, MSG_NOSIGNAL);
  if (*reported || m->path[0]) return;
  *reported = true;
  fprintf(stderr,
          "# process 0 of %d refuses at port %d a process of another job, number %d of %d: another launcher, user, name"
          " of the job or number of processes; give each job a MASTER_PORT of its own\n",
          l->nprocs, m->port, g->proc, g->nprocs);
}

/* The rank of a new connection, or -1. */
static int greet(const perf_launch *l, const meeting *m, int fd, bool *reported) {
  greeting g;
  int one = 1;
  set_timeout(fd, GREETING_SECONDS);
  if (recv(fd, &g, sizeof g, MSG_WAITALL) != sizeof g || memcmp(g.magic, magic, sizeof magic)) return -1;
  if (g.token != m->token || g.nprocs != l->nprocs || g.proc < 1 || g.proc >= l->nprocs) {
    refuse(l, m, fd, &g, reported);
    return -1;
  }
  if (l->oob.fds[g.proc] >= 0) {
    fprintf(stderr, "# two processes have the number %d of %d\n", g.proc, l->nprocs);
    return -1;
  }
  if (send(fd, &welcome, 1, MSG_NOSIGNAL) != 1) return -1;
  set_timeout(fd, 0);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return g.proc;
}

static void meet_all(perf_launch *l, meeting *m) {
  bool local = m->path[0] ? l->local_procs == l->nprocs : is_loopback(m->hosts[0]);
  int listener = listen_on(m, local), missing = l->nprocs - 1;
  if (m->path[0]) own_addresses(m, local), write_file(m);
  for (int p = 0; p < l->nprocs; p++) l->oob.fds[p] = -1;
  double start = perf_now();
  bool reported = false, refusal_reported = false;
  while (missing) {
    char where[1200];
    describe(l, m, where, sizeof where);
    set_timeout(listener, 1);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC), proc = fd >= 0 ? greet(l, m, fd, &refusal_reported) : -1;
    if (proc >= 0)
      l->oob.fds[proc] = fd, missing--;
    else if (fd >= 0)
      close(fd);
    if (missing && !reported && perf_now() - start > REPORT_SECONDS) {
      fprintf(stderr, "# process 0 waits %s for %d of %d processes\n", where, missing, l->nprocs);
      reported = true;
    }
    if (missing && perf_now() - start > WAIT_SECONDS) {
      if (m->path[0]) unlink(m->path);
      perf_fail(PERF_INTERNAL, "%d of %d processes did not come %s within %d s", missing, l->nprocs, where,
                WAIT_SECONDS);
    }
  }
  close(listener);
  if (m->path[0]) unlink(m->path);
}

/* ------------------------------------------------------------ the others -- */

static bool read_file(meeting *m) {
  FILE *f = fopen(m->path, "r");
  if (!f) return false;
  unsigned long long token;
  m->nhosts = 0;
  bool good = fscanf(f, "%llx %d", &token, &m->port) == 2;
  m->token = token;
  while (good && m->nhosts < MAX_ADDRESSES && fscanf(f, " %255s", m->hosts[m->nhosts]) == 1) m->nhosts++;
  fclose(f);
  return good && m->nhosts;
}

/* What process 0 answers on a new connection; 0: nothing. */
static char ask(int fd, const greeting *g) {
  char answer = 0;
  if (send(fd, g, sizeof *g, MSG_NOSIGNAL) != sizeof *g || recv(fd, &answer, 1, 0) != 1) return 0;
  return answer;
}

static int try_host(const perf_launch *l, const meeting *m, const char *host, bool *reported) {
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
  char port[16];
  snprintf(port, sizeof port, "%d", m->port);
  int error = getaddrinfo(host, port, &hints, &list);
  if (error) { /* the name may become known later; the user learns of the error now */
    if (!*reported)
      fprintf(stderr, "# process %d cannot resolve '%s', the host of process 0, yet: %s\n", l->proc, host,
              gai_strerror(error));
    *reported = true;
    return -1;
  }
  greeting g = {.token = m->token, .nprocs = l->nprocs, .proc = l->proc};
  memcpy(g.magic, magic, sizeof magic);
  int found = -1, one = 1;
  for (struct addrinfo *a = list; a && found < 0; a = a->ai_next) {
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    struct timeval limit = {.tv_sec = 10};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit); /* connect uses this limit too */
    set_timeout(fd, 10);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    char answer = connect(fd, a->ai_addr, a->ai_addrlen) ? 0 : ask(fd, &g);
    if (answer == welcome) {
      limit.tv_sec = 0;
      setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
      set_timeout(fd, 0);
      found = fd;
    } else {
      close(fd);
      if (answer == refused && !*reported && !m->path[0]) {
        fprintf(
            stderr,
            "# process %d of %d: what listens at %s port %d is process 0 of another job: give each job a MASTER_PORT"
            " of its own, and all its processes the same launcher, user and number\n",
            l->proc, l->nprocs, host, m->port);
        *reported = true;
      }
    }
  }
  freeaddrinfo(list);
  return found;
}

static void meet_first(perf_launch *l, meeting *m) {
  double start = perf_now();
  long pause_ms = 10;
  bool reported = false;
  for (;;) {
    int fd = -1;
    if (!m->path[0] || read_file(m))
      for (int i = 0; i < m->nhosts && fd < 0; i++) fd = try_host(l, m, m->hosts[i], &reported);
    if (fd >= 0) {
      l->oob.fds[0] = fd;
      return;
    }
    if (perf_now() - start > WAIT_SECONDS) {
      char where[1200];
      describe(l, m, where, sizeof where);
      perf_fail(PERF_INTERNAL, "process %d of %d did not find process 0 %s within %d s", l->proc, l->nprocs, where,
                WAIT_SECONDS);
    }
    struct timespec pause = {.tv_nsec = pause_ms * 1000000};
    nanosleep(&pause, NULL);
    if (pause_ms < 200) pause_ms *= 2;
  }
}

void perf_meet(perf_launch *l) {
  meeting *m = malloc(sizeof *m);
  l->oob.fds = malloc(sizeof(int) * (size_t)l->nprocs);
  if (!m || !l->oob.fds) perf_fail(PERF_INTERNAL, "out of memory");
  choose_meeting(l, m);
  if (l->proc)
    meet_first(l, m);
  else
    meet_all(l, m);
  free(m);
}
