/* SPDX-License-Identifier: Apache-2.0 */
/* Loads libraries that may be missing, with dlopen (dl.h). */
#include "dl.h"
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "fork.h"
#include "log.h"

/* One lock is enough: loading is rare, and the loader itself has one lock. No call of ours is inside the loader while
 * the process forks: the child would find its lists half changed. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
HK_FORK_GUARD(lock);

static void *dl_open_first(hk_dl *lib, const char *chosen) {
  if (chosen && *chosen) {
    void *handle = dlopen(chosen, RTLD_NOW | RTLD_LOCAL);
    const char *text = handle ? NULL : dlerror();
    if (text) snprintf(lib->why, sizeof lib->why, "%s", text);
    return handle;
  }
  for (size_t i = 0; i < sizeof lib->files / sizeof lib->files[0] && lib->files[i]; i++) {
    void *handle = dlopen(lib->files[i], RTLD_NOW | RTLD_LOCAL);
    if (handle) return handle;
    const char *text = dlerror();
    /* The first name is the one that users know. */
    if (i == 0) snprintf(lib->why, sizeof lib->why, "%s", text ? text : lib->files[0]);
  }
  return NULL;
}

static bool dl_find_symbols(hk_dl *lib, void *handle) {
  for (size_t i = 0; i < lib->nsymbols; i++) {
    const hk_dl_symbol *s = &lib->symbols[i];
    void *found = NULL;
    for (size_t k = 0; k < sizeof s->names / sizeof s->names[0] && s->names[k] && !found; k++)
      found = dlsym(handle, s->names[k]);
    if (!found && !s->optional) {
      snprintf(lib->why, sizeof lib->why, "%s has no %s: it is too old", lib->files[0], s->names[0]);
      return false;
    }
    memcpy((char *)lib->table + s->offset, &found, sizeof found);
  }
  return true;
}

static void dl_forget_symbols(hk_dl *lib) {
  void *none = NULL;
  for (size_t i = 0; i < lib->nsymbols; i++) memcpy((char *)lib->table + lib->symbols[i].offset, &none, sizeof none);
}

bool hk_dl_load(hk_dl *lib) { return hk_dl_load_chosen(lib, NULL); }

bool hk_dl_load_chosen(hk_dl *lib, const char *chosen) {
  bool missing = false;
  pthread_mutex_lock(&lock);
  if (lib->state == 0) {
    void *handle = dl_open_first(lib, chosen);
    lib->state = handle && dl_find_symbols(lib, handle) ? 1 : -1;
    lib->handle = handle;
    missing = lib->state < 0;
    if (missing) dl_forget_symbols(lib);
    if (missing && handle) {
      dlclose(handle);
      lib->handle = NULL;
    }
  }
  bool there = lib->state > 0;
  pthread_mutex_unlock(&lock);
  /* Outside the lock, because a log line may read parameters and files. */
  if (missing) HK_INFO(lib->subs, "%s: %s", lib->why, lib->loss);
  return there;
}

static int dl_count_loads(struct dl_phdr_info *info, size_t bytes, void *loads) {
  (void)bytes;
  *(unsigned long long *)loads = info->dlpi_adds;
  return 1; /* the same for each library */
}

void *hk_dl_look(hk_dl_seen *s) {
  unsigned long long loads = 0;
  pthread_mutex_lock(&lock);
  (void)dl_iterate_phdr(dl_count_loads, &loads); /* returns the callback's result */
  if (!s->found && loads != s->loads) {
    void *handle = dlopen(s->file, RTLD_NOW | RTLD_NOLOAD);
    if (handle) s->found = dlsym(handle, s->symbol);
    if (handle && !s->found) dlclose(handle);
    s->loads = loads;
  }
  void *found = s->found;
  pthread_mutex_unlock(&lock);
  return found;
}
