/* SPDX-License-Identifier: Apache-2.0 */
/* The unique id of a job whose ranks a launcher has started (meet.h). It comes from
 *   an address           the caller's, else MASTER_ADDR and MASTER_PORT (torchrun; any other launcher or user)
 *   Slurm's node list    rank 0 runs on the first node; the name of the job gives the port
 *   a small file         otherwise: rank 0 makes the id and writes it for this user alone (docs/bootstrap.md)
 * The folder of the file may be /tmp, in which any user writes. So its name ends in random letters, which no other user
 * can take before, and only a file of this user is read. */
#include "meet.h"
#include <dirent.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../base/hash.h"
#include "../base/log.h"
#include "../base/param.h"
#include "../base/sysfs.h"
#include "bootstrap.h"
#include "dial.h"
#include "job.h"
#include "listener.h"

enum { MEET_PATH = 1024, MEET_NAP_NS = 50 * 1000 * 1000 };
#define MEET_SECOND 1000000000ull

/* ---- a wait for rank 0 ---- */

typedef struct meet_wait {
  const hk_settings *settings;
  const hk_launched *place;
  hk_wait_env env;
  hk_waiter w;
  uint64_t begin_ns;
  bool reported;
} meet_wait;

static void meet_wait_begin(meet_wait *m, const hk_settings *settings, const hk_launched *p) {
  *m = (meet_wait){.settings = settings, .place = p, .begin_ns = hk_now_ns()};
  hk_wait_begin(&m->w, &m->env);
}

/* `report`: now, and not after some seconds. */
static hk_status meet_pause(meet_wait *m, bool report, const char *what, const char *cause) {
  uint64_t waited_ns = hk_now_ns() - m->begin_ns, limit = (uint64_t)m->settings->BOOTSTRAP_TIMEOUT;
  if (waited_ns >= limit * MEET_SECOND)
    return HK_FAIL(HK_ERR_REMOTE, "rank %d of %d did not find %s within %llu s (HOCKET_BOOTSTRAP_TIMEOUT): %s",
                   m->place->rank, m->place->nranks, what, (unsigned long long)limit, cause);
  if (!m->reported && (report || waited_ns >= hk_boot_report_ns(m->settings))) {
    HK_WARN("rank %d of %d looks for %s, so far without success: %s", m->place->rank, m->place->nranks, what, cause);
    m->reported = true;
  }
  return hk_wait_nap(&m->w, -1, MEET_NAP_NS);
}

/* ---- an address ---- */

/* A name may become known later: that of a pod is, when the pod runs. */
static hk_status meet_await_name(const hk_settings *settings, const hk_launched *p, const char *address) {
  meet_wait m;
  char host[NI_MAXHOST], what[NI_MAXHOST + 64];
  const char *begin = address + (*address == '['), *end = strrchr(address, ':');
  snprintf(host, sizeof host, "%.*s",
           (int)strcspn(begin, "]") < end - begin ? (int)strcspn(begin, "]") : (int)(end - begin), begin);
  snprintf(what, sizeof what, "the address of '%s', the host of rank 0", host);
  meet_wait_begin(&m, settings, p);
  for (struct addrinfo *found = NULL;;) {
    int error = getaddrinfo(host, NULL, NULL, &found);
    if (!error) {
      freeaddrinfo(found);
      return HK_OK;
    }
    HK_OR_RETURN(meet_pause(&m, true, what, gai_strerror(error)));
  }
}

static hk_status meet_at(const hk_settings *settings, ncclUniqueId *id, const hk_launched *p, const char *named,
                         const char *address) {
  const char *colon = strrchr(address, ':');
  char *end = NULL;
  long port = colon && colon > address ? strtol(colon + 1, &end, 10) : 0;
  if (!end || *end || port < 1 || port > 65535)
    return HK_FAIL(HK_ERR_ARGUMENT, "%s='%s' is no address: write host:port with a port that is free on rank 0's host",
                   named, address);
  HK_OR_RETURN(meet_await_name(settings, p, address));
  return hk_bootstrap_address_id(settings, id, p->rank, named, address, true);
}

/* ---- the environment ---- */

static const char *meet_value(const char *variable) {
  const char *text = getenv(variable);
  return text && *text ? text : NULL;
}

/* Parent and name of a process. */
static int meet_parent_of(int pid, char name[32]) {
  char text[512] = "";
  hk_sysfs_text("", text, sizeof text, "/proc/%d/stat", pid);
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
static int meet_launcher_process(void) {
  char name[32];
  for (int pid = (int)getppid(); pid > 1;) {
    int parent = meet_parent_of(pid, name);
    if (strstr(name, "pmi_proxy")) return pid;
    pid = parent;
  }
  return (int)getppid();
}

/* "node[3-5,9],other" gives "node3". */
static void meet_first_node(const char *list, char *out, size_t capacity) {
  size_t n = strcspn(list, ",["), digits = list[n] == '[' ? strspn(list + n + 1, "0123456789") : 0;
  snprintf(out, capacity, "%.*s%.*s", (int)n, list, (int)digits, digits ? list + n + 1 : "");
}

/* Sets `address` to where the environment says that rank 0 is, or to "". */
static hk_status meet_address(const hk_launched *p, const hk_boot_job *job, char *address, size_t capacity) {
  const char *host = meet_value("MASTER_ADDR"), *port = meet_value("MASTER_PORT");
  char node[256], *end;
  address[0] = 0;
  if (host && port) {
    long number = strtol(port, &end, 10);
    if (*end || number < 1 || number > 65534)
      return HK_FAIL(HK_ERR_USAGE, "MASTER_PORT=%s is not a port: give one from 1 to 65534, free on rank 0's host",
                     port);
    const char *store = meet_value("TORCHELASTIC_USE_AGENT_STORE"); /* torchrun's, which listens on the port itself */
    bool bare = strchr(host, ':') && host[0] != '[';
    snprintf(address, capacity, "%s%s%s:%ld", bare ? "[" : "", host, bare ? "]" : "",
             number + (store && !strcmp(store, "True")));
  } else if (!strcmp(p->launcher, "slurm")) {
    const char *nodes = meet_value("SLURM_STEP_NODELIST");
    if (!nodes) nodes = meet_value("SLURM_JOB_NODELIST");
    meet_first_node(nodes ? nodes : "127.0.0.1", node, sizeof node);
    snprintf(address, capacity, "%s:%d", node, 20000 + (int)(job->token % 10000));
  } else if (!strcmp(p->launcher, "torchrun") ||
             (!job->named && (!strcmp(p->launcher, "none") || (p->local > 0 && p->local < p->nranks)))) {
    return HK_FAIL(HK_ERR_USAGE,
                   "%d ranks (launcher %s, %d on this host), and nothing says where rank 0 is: set MASTER_ADDR and "
                   "MASTER_PORT on all of them to rank 0's host and a free port there (MPICH: mpirun -genv MASTER_ADDR "
                   "HOST -genv MASTER_PORT 29500), or, without torchrun, HOCKET_JOB to a name if the hosts share the "
                   "current folder",
                   p->nranks, p->launcher, p->local);
  }
  return HK_OK;
}

/* ---- a file ---- */

typedef struct meet_file {
  const hk_settings *settings;
  char folder[512], name[64]; /* of this job's file: its name begins like this */
  char path[MEET_PATH];
  ncclUniqueId id;
  int64_t stranger; /* the owner, another user, of a file with the right name; -1: there is no such file */
} meet_file;

static void meet_file_name(meet_file *m, const hk_launched *p, const hk_boot_job *job) {
  const char *folder = m->settings->JOB_DIR;
  const char *pmi = meet_value("PMI_JOBID");
  uint64_t token = job->token;
  if (!job->named) token ^= pmi ? hk_hash(0, pmi, strlen(pmi)) : (uint64_t)meet_launcher_process();
  if (!folder || !*folder) folder = p->local == p->nranks ? "/tmp" : ".";
  snprintf(m->folder, sizeof m->folder, "%s", folder);
  snprintf(m->name, sizeof m->name, ".hocket-%u-%016llx-", (unsigned)geteuid(), (unsigned long long)token);
}

/* The next file in the folder whose name begins with m->name. */
static bool meet_next_file(meet_file *m, DIR *d) {
  const struct dirent *e;
  while (d && (e = readdir(d)))
    if (!strncmp(e->d_name, m->name, strlen(m->name))) {
      snprintf(m->path, sizeof m->path, "%s/%s", m->folder, e->d_name);
      return true;
    }
  return false;
}

/* Files that rank 0 of an earlier run has left are removed first. */
static hk_status meet_write(meet_file *m) {
  hk_boot_id id;
  struct stat st;
  DIR *d = opendir(m->folder);
  while (meet_next_file(m, d))
    if (!lstat(m->path, &st) && st.st_uid == geteuid()) unlink(m->path);
  if (d) closedir(d);
  HK_OR_RETURN(hk_bootstrap_new_id(&m->id));
  HK_OR_RETURN(hk_boot_id_decode(&id, &m->id));
  snprintf(m->path, sizeof m->path, "%s/%sXXXXXX", m->folder, m->name);
  int fd = mkostemp(m->path, O_CLOEXEC); /* for this user alone, and new */
  if (fd < 0) return HK_FAIL_ERRNO("cannot make the file %s (HOCKET_JOB_DIR names another folder)", m->path);
  hk_status rc = hk_root_own_file(&id, m->path);
  if (rc == HK_OK && write(fd, &m->id, sizeof m->id) != sizeof m->id)
    rc = HK_FAIL_ERRNO("cannot write the file %s (HOCKET_JOB_DIR names another folder)", m->path);
  close(fd);
  explicit_bzero(&id, sizeof id);
  return rc;
}

/* True unless the root's process has ended, so that the file is an earlier run's. */
static bool meet_listens(const hk_settings *settings, const ncclUniqueId *from) {
  hk_boot_id id;
  hk_ack ack;
  static const uint8_t none[sizeof from->internal];
  if (!memcmp(from->internal, none, sizeof none) || hk_boot_id_decode(&id, from) != HK_OK) return false;
  hk_wait_env env = {.deadline_ns = hk_now_ns() + 2 * MEET_SECOND};
  hk_hello hello = {.kind = HK_HELLO_ASK, .from = 1, .key = hk_boot_id_key(&id)}; /* of no communicator */
  hk_dialing d = {.settings = settings, .hello = &hello, .secret = id.secret, .wait = &env, .n = id.n};
  memcpy(d.at, id.at, sizeof id.at);
  hk_probe answer = hk_boot_probe(&d, &ack, NULL, 0);
  explicit_bzero(&id, sizeof id);
  return answer != HK_PROBE_REFUSED && answer != HK_PROBE_UNREACHABLE;
}

static bool meet_read(meet_file *m) {
  bool found = false;
  DIR *d = opendir(m->folder);
  m->stranger = -1;
  while (!found && meet_next_file(m, d)) {
    struct stat st;
    int fd = open(m->path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool there = fd >= 0 ? !fstat(fd, &st) : !lstat(m->path, &st);
    bool ours = there && st.st_uid == geteuid();
    if (there && !ours) m->stranger = st.st_uid;
    found = fd >= 0 && ours && read(fd, &m->id, sizeof m->id) == sizeof m->id && meet_listens(m->settings, &m->id);
    if (fd >= 0) close(fd);
  }
  if (d) closedir(d);
  return found;
}

static hk_status meet_await_file(meet_file *m, const hk_launched *p) {
  meet_wait wait;
  char what[MEET_PATH], cause[200];
  snprintf(what, sizeof what, "the file %s/%s* of rank 0", m->folder, m->name);
  meet_wait_begin(&wait, m->settings, p);
  while (!meet_read(m)) {
    if (m->stranger >= 0)
      snprintf(cause, sizeof cause, "one there is of user id %lld, and is not used", (long long)m->stranger);
    else
      snprintf(cause, sizeof cause, "there is none%s",
               p->local == p->nranks ? ""
                                     : " (if the hosts do not share this folder, set MASTER_ADDR and MASTER_PORT to "
                                       "rank 0's host and a free port there)");
    HK_OR_RETURN(meet_pause(&wait, m->stranger >= 0, what, cause));
  }
  return HK_OK;
}

hk_status hk_meet(const hk_settings *settings, ncclUniqueId *id, const hk_launched *p, const char *address) {
  hk_boot_job job;
  char at[600];
  hk_boot_job_here(settings, &job);
  if (p->nranks == 1) return hk_bootstrap_new_id(id);
  if (address) return meet_at(settings, id, p, "address", address);
  HK_OR_RETURN(meet_address(p, &job, at, sizeof at));
  if (at[0])
    return meet_at(
        settings, id, p,
        meet_value("MASTER_ADDR") && meet_value("MASTER_PORT") ? "MASTER_ADDR:MASTER_PORT" : "Slurm's first node", at);
  meet_file *m = calloc(1, sizeof *m);
  if (!m) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for the search for rank 0");
  m->settings = settings;
  meet_file_name(m, p, &job);
  hk_status rc = p->rank == 0 ? meet_write(m) : meet_await_file(m, p);
  *id = m->id;
  explicit_bzero(&m->id, sizeof m->id);
  free(m);
  return rc;
}
