/* SPDX-License-Identifier: Apache-2.0 */
/* Finds PyTorch, CuPy, JAX and vLLM in the Python environments of PATH: which NCCL each was built for, whether it would
 * use this library, and how to make it do so. */
#include <elf.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <nccl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../../base/sysfs.h"
#include "doctor.h"

enum { FOLDERS = 64, PYTHONS = 16 };

/* A Python environment. */
typedef struct python {
  char program[HK_SYSFS_PATH], prefix[HK_SYSFS_PATH];
  char folders[FOLDERS][HK_SYSFS_PATH]; /* of modules: its sys.path */
  int n;
  char wheel[HK_SYSFS_PATH + 64]; /* the library of NVIDIA's wheel; "": none */
} python;

/* How a framework finds its NCCL. */
typedef enum loader {
  BY_NAME, /* an already loaded library of this name is used */
  BY_FILE  /* only the wheel's file is used */
} loader;
typedef struct framework {
  const char *name, *package; /* the pattern of its package's folder */
  /* file: in the package or its parent folder; key: the text before NCCL's version in it; NULL: unknown */
  const char *file, *key;
  loader by;
  const char *variable; /* environment variable that can also name the library; NULL: none */
} framework;
static const framework frameworks[] = {
    {"PyTorch", "torch-*.dist-info", "METADATA", "nvidia-nccl-cu", BY_NAME, NULL},
    {"CuPy", "cupy*-*.dist-info", "../cupy/.data/_wheel.json", "\"nccl\": {\"version\"", BY_NAME, NULL},
    {"JAX's CUDA plugin", "jax_cuda*_plugin-*.dist-info", "METADATA", "nvidia-nccl-cu", BY_FILE, NULL},
    {"vLLM", "vllm-*.dist-info", NULL, NULL, BY_NAME, "VLLM_NCCL_SO_PATH"},
};

/* ---- is a library this one? ---- */

/* The names that a library exports are text in one of its sections. */
static bool frameworks_exports(const unsigned char *at, size_t bytes, const char *name) {
  const Elf64_Ehdr *e = (const void *)at;
  if (bytes < sizeof *e || memcmp(e->e_ident, ELFMAG, SELFMAG) != 0 || e->e_ident[EI_CLASS] != ELFCLASS64 ||
      e->e_shentsize != sizeof(Elf64_Shdr) || e->e_shoff > bytes || e->e_shoff % _Alignof(Elf64_Shdr) ||
      e->e_shnum > (bytes - e->e_shoff) / sizeof(Elf64_Shdr))
    return false;
  const Elf64_Shdr *sections = (const void *)(at + e->e_shoff);
  for (int i = 0; i < e->e_shnum; i++) {
    if (sections[i].sh_type != SHT_DYNSYM || sections[i].sh_link >= e->e_shnum) continue;
    const Elf64_Shdr *names = &sections[sections[i].sh_link];
    if (names->sh_offset > bytes || names->sh_size > bytes - names->sh_offset) continue;
    if (memmem(at + names->sh_offset, names->sh_size, name, strlen(name) + 1)) return true;
  }
  return false;
}

static bool frameworks_is_hocket(const char *path) {
  struct stat st;
  bool is = false;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  if (fstat(fd, &st) == 0 && st.st_size > 0) {
    void *at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at != MAP_FAILED) {
      is = frameworks_exports(at, (size_t)st.st_size, "hocketVersion");
      munmap(at, (size_t)st.st_size);
    }
  }
  close(fd);
  return is;
}

/* The libraries of LD_PRELOAD are separated by colons or blanks. */
static bool frameworks_preloaded(void) {
  const char *list = getenv("LD_PRELOAD");
  char *copy = strdup(list ? list : ""), *rest = NULL;
  bool found = false;
  for (char *name = copy ? strtok_r(copy, ": ", &rest) : NULL; name; name = strtok_r(NULL, ": ", &rest))
    found = found || frameworks_is_hocket(name);
  free(copy);
  return found;
}

/* The path of the library that belongs to this command: installed, or in the build folder. */
static void frameworks_own_library(char out[HK_SYSFS_PATH]) {
  char self[HK_SYSFS_PATH - 64] = "", *slash;
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  if (n > 0 && (slash = strrchr(self, '/'))) *slash = 0;
  snprintf(out, HK_SYSFS_PATH, "%s/../lib/libnccl.so.2", self);
  char *real = realpath(out, NULL);
  snprintf(out, HK_SYSFS_PATH, "%s", real ? real : "/opt/hocket/lib/libnccl.so.2");
  free(real);
}

/* ---- one environment ---- */

static bool frameworks_line_of(FILE *f, char out[HK_SYSFS_PATH]) {
  if (!fgets(out, HK_SYSFS_PATH, f)) return false;
  out[strcspn(out, "\n")] = 0;
  return true;
}

/* Asks Python for its prefix and the folders of its modules. */
static bool frameworks_ask(python *p) {
  static const char script[] = "import sys; print(sys.prefix); print(\"\\n\".join(sys.path))";
  char command[HK_SYSFS_PATH + sizeof script + 64], path[HK_SYSFS_PATH];
  p->n = 0;
  if (access(p->program, X_OK) != 0 || strchr(p->program, '\'')) return false;
  snprintf(command, sizeof command, "timeout 10 '%s' -c '%s' 2>/dev/null", p->program, script);
  FILE *f = popen(command, "r");
  if (!f) return false;
  bool answers = frameworks_line_of(f, p->prefix);
  while (frameworks_line_of(f, path))
    if (p->n < FOLDERS && *path == '/' && hk_sysfs_has("", "%s/.", path)) memcpy(p->folders[p->n++], path, sizeof path);
  pclose(f);
  return answers;
}

/* The package's folder, and the version in its name, which follows the first dash. */
static bool frameworks_find(const python *p, const char *pattern, char folder[2 * HK_SYSFS_PATH], char version[64]) {
  bool found = false;
  for (int k = 0; k < p->n && !found; k++) {
    char **names = hk_sysfs_list("", "%s", p->folders[k]);
    for (int i = 0; names && names[i] && !found; i++) {
      const char *dash = strchr(names[i], '-');
      if (!dash || fnmatch(pattern, names[i], 0) != 0) continue;
      found = true;
      snprintf(folder, 2 * HK_SYSFS_PATH, "%s/%s", p->folders[k], names[i]);
      snprintf(version, 64, "%.*s", (int)(strstr(dash, ".dist-info") - dash) - 1, dash + 1);
    }
    free(names);
  }
  return found;
}

/* The version in a line of the file, after `key` and optional digits (as in "cu13"). */
static bool frameworks_nccl_of(const char *folder, const framework *f, char version[32]) {
  static const char digits[] = "0123456789";
  char path[3 * HK_SYSFS_PATH], *line = NULL;
  size_t capacity = 0;
  bool found = false;
  snprintf(path, sizeof path, "%s/%s", folder, f->file ? f->file : "");
  FILE *file = f->file ? fopen(path, "r") : NULL;
  while (file && !found && getline(&line, &capacity, file) > 0) {
    const char *at = strstr(line, f->key);
    if (!at) continue;
    at += strlen(f->key);
    at += strspn(at, digits);
    at += strcspn(at, digits);
    snprintf(version, 32, "%.*s", (int)strspn(at, "0123456789."), at);
    found = *version != 0;
  }
  free(line);
  if (file) fclose(file);
  return found;
}

static bool frameworks_newer_than_this(const char *nccl) {
  int major = 0, minor = 0, patch = 0;
  return sscanf(nccl, "%d.%d.%d", &major, &minor, &patch) >= 2 && NCCL_VERSION(major, minor, patch) > NCCL_VERSION_CODE;
}

static void frameworks_report(hk_doctor *d, const python *p, const framework *f, const char *folder,
                              const char *version) {
  char own[HK_SYSFS_PATH], fix[256], nccl[32], built[64] = "with the NCCL of its PyTorch";
  const char *named = f->variable ? getenv(f->variable) : NULL;
  if (f->key) snprintf(built, sizeof built, "for an NCCL that it does not name");
  if (frameworks_nccl_of(folder, f, nccl))
    snprintf(built, sizeof built, "for NCCL %s", nccl);
  else
    *nccl = 0;
  frameworks_own_library(own);
  const char *how = named && frameworks_is_hocket(named)          ? f->variable
                    : f->by == BY_NAME && frameworks_preloaded()  ? "LD_PRELOAD"
                    : *p->wheel && frameworks_is_hocket(p->wheel) ? "it is in place of the wheel's file"
                                                                  : NULL;
  if (*nccl && frameworks_newer_than_this(nccl))
    hk_doctor_say(d, HK_DOC_NOTE, "install a version that was built for an older NCCL, or look for a newer Hocket",
                  "%s %s of %s is built %s, newer than %d.%d.%d, as which Hocket counts: names may be missing", f->name,
                  version, p->prefix, built, NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
  if (how) {
    hk_doctor_say(d, HK_DOC_OK, NULL, "%s %s of %s is built %s and would use Hocket: %s", f->name, version, p->prefix,
                  built, how);
    return;
  }
  if (f->by == BY_FILE && *p->wheel)
    (void)hk_doctor_fix(fix, "cp -b %s %s", own, p->wheel);
  else
    (void)hk_doctor_fix(fix, "export LD_PRELOAD=%s", own);
  hk_doctor_say(d, HK_DOC_NOTE, fix, "%s %s of %s is built %s and would use %s, not Hocket", f->name, version,
                p->prefix, built, *p->wheel ? p->wheel : "the system's libnccl.so.2");
}

/* ---- all environments ---- */

/* The number of frameworks in the program's environment; 0 if that is in `seen`. */
static int frameworks_look(hk_doctor *d, python *p, char seen[PYTHONS][HK_SYSFS_PATH], int *nseen) {
  int found = 0;
  if (*nseen == PYTHONS || !frameworks_ask(p)) return 0;
  for (int i = 0; i < *nseen; i++)
    if (!strcmp(seen[i], p->prefix)) return 0;
  memcpy(seen[(*nseen)++], p->prefix, HK_SYSFS_PATH);
  *p->wheel = 0;
  for (int i = 0; i < p->n && !*p->wheel; i++)
    if (hk_sysfs_has("", "%s/nvidia/nccl/lib/libnccl.so.2", p->folders[i]))
      snprintf(p->wheel, sizeof p->wheel, "%s/nvidia/nccl/lib/libnccl.so.2", p->folders[i]);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(frameworks); i++) {
    char folder[2 * HK_SYSFS_PATH], version[64];
    if (!frameworks_find(p, frameworks[i].package, folder, version)) continue;
    frameworks_report(d, p, &frameworks[i], folder, version);
    found++;
  }
  return found;
}

void hk_doctor_frameworks(hk_doctor *d) {
  const char *path = getenv("PATH");
  char(*seen)[HK_SYSFS_PATH] = calloc(PYTHONS, HK_SYSFS_PATH);
  char *copy = strdup(path ? path : ""), *rest = NULL;
  python *p = calloc(1, sizeof *p);
  int nseen = 0, found = 0;
  if (d->live && seen && copy && p)
    for (char *folder = strtok_r(copy, ":", &rest); folder; folder = strtok_r(NULL, ":", &rest))
      for (int k = 0; k < 2; k++) {
        snprintf(p->program, sizeof p->program, "%s/%s", folder, k ? "python" : "python3");
        found += frameworks_look(d, p, seen, &nseen);
      }
  if (d->live && !found)
    hk_doctor_say(d, HK_DOC_OK, NULL, "no PyTorch, CuPy, JAX for CUDA or vLLM in %d Python environment%s of PATH",
                  nseen, nseen == 1 ? "" : "s");
  free(p);
  free(copy);
  free(seen);
}
