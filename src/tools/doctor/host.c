/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of the operating system for this process: memory, files, reading other processes' memory. */
#include "../../device/host.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/uio.h> /* process_vm_readv */
#include <sys/wait.h>
#include <unistd.h>
#include "../../base/sysfs.h"
#include "doctor.h"

enum { MANY_FILES = 4096, FEW_FILES = 256 };
#define UNLIMITED (-1LL)

/* The soft and hard limit after a name in /proc/self/limits; false if the name is missing. */
static bool host_limit(const hk_doctor *d, const char *name, long long *soft, long long *hard) {
  char text[4096], words[2][32];
  hk_sysfs_text(d->root, text, sizeof text, "/proc/self/limits");
  const char *line = strstr(text, name);
  if (!line || sscanf(line + strlen(name), "%31s %31s", words[0], words[1]) != 2) return false;
  *soft = strcmp(words[0], "unlimited") ? atoll(words[0]) : UNLIMITED;
  *hard = strcmp(words[1], "unlimited") ? atoll(words[1]) : UNLIMITED;
  return true;
}

void hk_doctor_memlock(hk_doctor *d) {
  long long soft, hard;
  char size[32];
  char **rdma = hk_sysfs_list(d->root, "/sys/class/infiniband");
  bool pins = rdma && rdma[0];
  free(rdma);
  if (!host_limit(d, "Max locked memory", &soft, &hard)) return;
  if (soft == UNLIMITED)
    hk_doctor_say(d, HK_DOC_OK, NULL, "memory may be locked without limit");
  else if (!pins)
    hk_doctor_say(d, HK_DOC_OK, NULL, "%s may be locked; nothing here needs more (no RDMA device)",
                  hk_tool_bytes(size, (size_t)soft));
  else
    hk_doctor_say(d, HK_DOC_PROBLEM,
                  hard == UNLIMITED ? "ulimit -l unlimited"
                                    : "put '* - memlock unlimited' into /etc/security/limits.conf; in a container: "
                                      "--ulimit memlock=-1; under Slurm: PropagateResourceLimitsExcept=MEMLOCK",
                  "only %s of memory may be locked, and RDMA locks every buffer that it uses",
                  hk_tool_bytes(size, (size_t)soft));
}

void hk_doctor_files(hk_doctor *d) {
  long long soft, hard;
  char fix[256];
  if (!host_limit(d, "Max open files", &soft, &hard)) return;
  if (soft == UNLIMITED || soft >= MANY_FILES) {
    hk_doctor_say(d, HK_DOC_OK, NULL, "%lld files may be open", soft);
    return;
  }
  if (hard == UNLIMITED || hard >= MANY_FILES)
    hk_doctor_fix(fix, "ulimit -n %lld", hard == UNLIMITED || hard > 65536 ? 65536 : hard);
  else
    hk_doctor_fix(fix, "put '* - nofile 65536' into /etc/security/limits.conf; in a container: --ulimit nofile=65536");
  hk_doctor_say(d, soft < FEW_FILES ? HK_DOC_PROBLEM : HK_DOC_NOTE, fix,
                "only %lld files may be open; connections to other hosts take one to four each", soft);
}

void hk_doctor_shm(hk_doctor *d) {
  struct statvfs fs;
  char path[HK_SYSFS_PATH], size[32];
  if (d->live) {
    int fd = hk_host_memfd("hocket-doctor", 1 << 20);
    if (fd >= 0) {
      close(fd);
      hk_doctor_say(d, HK_DOC_OK, NULL, "shared memory can be made (memfd_create); /dev/shm is not needed");
    } else {
      hk_doctor_say(d, HK_DOC_PROBLEM, "allow memfd_create in the container's seccomp profile",
                    "no shared memory can be made: memfd_create gives %s; processes of this host will talk over TCP",
                    strerror(errno));
    }
  }
  snprintf(path, sizeof path, "%.4000s/dev/shm", d->root);
  if (statvfs(path, &fs) != 0) return;
  unsigned long long bytes = (unsigned long long)fs.f_blocks * fs.f_frsize;
  if (bytes < 1ULL << 30)
    hk_doctor_say(d, HK_DOC_NOTE, "docker run --shm-size=1g, or --ipc=host",
                  "/dev/shm has only %s: Hocket does not use it, but NCCL, MPI and PyTorch's loaders do",
                  hk_tool_bytes(size, (size_t)bytes));
}

/* 0 if a child can read the memory of its sibling, as ranks do; else errno. */
static int host_read_sibling(void) {
  static volatile int word = 0x686f636b;
  int gate[2], result = ECHILD, status;
  if (pipe(gate) != 0) return errno;
  pid_t asleep = fork();
  if (asleep == 0) { /* lives until the pipe's other end is closed */
    char c;
    close(gate[1]);
    _exit(read(gate[0], &c, 1) == 0 ? 0 : 1);
  }
  pid_t reader = asleep < 0 ? -1 : fork();
  if (reader == 0) {
    int seen = 0;
    struct iovec here = {&seen, sizeof seen}, there = {(void *)&word, sizeof word};
    ssize_t n = process_vm_readv(asleep, &here, 1, &there, 1, 0);
    _exit(n == (ssize_t)sizeof seen && seen == word ? 0 : n < 0 ? errno & 0xff : EFAULT);
  }
  if (reader > 0 && waitpid(reader, &status, 0) == reader && WIFEXITED(status)) result = WEXITSTATUS(status);
  close(gate[0]);
  close(gate[1]);
  if (asleep > 0) waitpid(asleep, &status, 0);
  return result;
}

void hk_doctor_cma(hk_doctor *d) {
  long long scope = 0;
  hk_sysfs_number(d->root, &scope, "/proc/sys/kernel/yama/ptrace_scope");
  int code = d->live ? host_read_sibling() : scope > 0 ? EPERM : 0;
  if (code == 0)
    hk_doctor_say(d, HK_DOC_OK, NULL, "processes may read each other's memory: one copy instead of two");
  else if (scope > 0)
    hk_doctor_say(d, HK_DOC_NOTE,
                  scope == 1 ? "HOCKET_PTRACER=1, or sysctl -w kernel.yama.ptrace_scope=0"
                             : "sysctl -w kernel.yama.ptrace_scope=0",
                  "processes may not read each other's memory (ptrace_scope is %lld): large messages between processes "
                  "are copied twice, unless buffers come from ncclMemAlloc%s",
                  scope,
                  scope == 1
                      ? "; with HOCKET_PTRACER=1 they are copied once, and any process of the user can then trace the "
                        "program"
                      : "");
  else
    hk_doctor_say(d, HK_DOC_NOTE, "docker run --cap-add=SYS_PTRACE, or a seccomp profile with process_vm_readv",
                  "processes may not read each other's memory (%s): large messages between processes are copied twice, "
                  "unless buffers come from ncclMemAlloc",
                  strerror(code));
}

/* The word in brackets: "always [madvise] never". */
static bool host_chosen_word(const hk_doctor *d, const char *path, char *word, size_t bytes) {
  char text[128];
  hk_sysfs_text(d->root, text, sizeof text, "%s", path);
  const char *open = strchr(text, '['), *end = open ? strchr(open, ']') : NULL;
  if (!end) return false;
  snprintf(word, bytes, "%.*s", (int)(end - open - 1), open + 1);
  return true;
}

void hk_doctor_thp(hk_doctor *d) {
  char private[32], shared[32];
  const char *folder = "/sys/kernel/mm/transparent_hugepage";
  char path[128];
  snprintf(path, sizeof path, "%s/enabled", folder);
  if (!host_chosen_word(d, path, private, sizeof private)) return;
  if (strcmp(private, "never") == 0)
    hk_doctor_say(d, HK_DOC_NOTE, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
                  "huge pages are switched off: large buffers cost more page faults and address look-ups");
  else
    hk_doctor_say(d, HK_DOC_OK, NULL, "huge pages are there for ordinary memory (%s)", private);
  snprintf(path, sizeof path, "%s/shmem_enabled", folder);
  if (!host_chosen_word(d, path, shared, sizeof shared)) return;
  if (strcmp(shared, "never") == 0 || strcmp(shared, "deny") == 0)
    hk_doctor_say(d, HK_DOC_NOTE, "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
                  "ncclMemAlloc's memory gets no huge pages (shmem_enabled is %s)", shared);
  else
    hk_doctor_say(d, HK_DOC_OK, NULL, "huge pages are there for ncclMemAlloc's memory (%s)", shared);
}
