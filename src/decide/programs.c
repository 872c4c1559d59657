/* SPDX-License-Identifier: Apache-2.0 */
/* Loads the programs of a folder (programs.h). */
#include "programs.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "../base/hash.h"
#include "../base/log.h"
#include "../program/program.h"

/* What the proof does not say: that this library can run them. */
static hk_status programs_check(const hk_program_set *m, const char *path) {
  const hk_coll coll = (hk_coll)m->programs[0]->coll;
  for (int r = 0; hk_coll_has_root(coll) && r < m->nranks; r++)
    if (m->programs[r]->traits.in_groups)
      return HK_FAIL(HK_ERR_ARGUMENT,
                     "%s: a program of %s must not have sums by the network: its groups hold for one root", path,
                     hk_coll_name(coll));
  return HK_OK;
}

/* Programs carry their algorithm's name, which must differ from all others'. */
static void programs_name(hk_user_programs *p, hk_program_set *m) {
  char name[sizeof m->programs[0]->algorithm] = ""; /* zeros to its end: programs are compared as bytes */
  const char *wanted = m->programs[0]->algorithm;
  snprintf(name, sizeof name, "%s", wanted);
  unsigned number = 2;
  for (int i = 0; p->all[i]; i++) {
    if (strcmp(p->all[i]->name, name)) continue;
    memset(name, 0, sizeof name);
    snprintf(name, sizeof name, "%.18s-%u", wanted, number++ % 100);
    i = -1;
  }
  for (int r = 0; r < m->nranks; r++) memcpy(m->programs[r]->algorithm, name, sizeof name);
}

/* The end of the list: the place of the next algorithm. */
static const hk_algorithm **programs_end(hk_user_programs *p) {
  const hk_algorithm **end = p->all;
  while (*end) end++;
  return end;
}

static void programs_add(hk_user_programs *p, hk_program_set *m, const char *file) {
  programs_name(p, m);
  const hk_program *first = m->programs[0];
  p->own[p->n].set = *m;
  p->own[p->n].hash = p->hash;
  p->own[p->n].loaded = (hk_loaded){.programs = m->programs,
                                    .nranks = m->nranks,
                                    .least = m->least,
                                    .most = m->most,
                                    .in_place = m->in_place,
                                    .out_of_place = m->out_of_place,
                                    .coll = (hk_coll)first->coll};
  snprintf(p->own[p->n].about, sizeof p->own[p->n].about, "the program of %.80s", file);
  p->own[p->n].algorithm =
      (hk_algorithm){.name = first->algorithm, .about = p->own[p->n].about, .loaded = &p->own[p->n].loaded};
  *programs_end(p) = &p->own[p->n++].algorithm;
  for (int r = 0; r < m->nranks; r++) p->hash = hk_hash(p->hash, m->programs[r], m->programs[r]->bytes);
  HK_INFO(HK_SUB_INIT | HK_SUB_TUNING, "%s: %s of %d ranks, proved, as algorithm %s", file,
          hk_coll_name((hk_coll)first->coll), m->nranks, first->algorithm);
}

hk_status hk_user_programs_add(hk_user_programs *p, const char *path, const char *text, unsigned slots, uint8_t *way) {
  hk_status rc = HK_OK;
  hk_program_file f = {.nsets = 0};
  const uint64_t before = p->hash;
  const char *slash = strrchr(path, '/');
  HK_TRY(hk_program_file_read_proved(&f, path, text, slots, *way), out);
  HK_TRY(hk_program_file_prove(&f, path, slots), out);
  for (int i = 0; i < f.nsets; i++) {
    HK_TRY(programs_check(&f.sets[i], path), out);
    if (p->all[HK_ALGORITHM_LIMIT - 1])
      HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "%s: there are %d algorithms already, and no more can be added", path,
                         HK_ALGORITHM_LIMIT),
                 out);
    programs_add(p, &f.sets[i], slash ? slash + 1 : path);
    f.sets[i] = (hk_program_set){.nranks = 0};
  }
  *way = f.way;
out:
  if (rc != HK_OK) hk_user_programs_drop(p, before);
  hk_program_file_free(&f);
  return rc;
}

static int programs_is_file(const struct dirent *e) {
  const char *dot = strrchr(e->d_name, '.');
  return dot && (!strcmp(dot, ".txt") || !strcmp(dot, ".xml") || !strcmp(dot, ".json"));
}

static int programs_by_name(const struct dirent **a, const struct dirent **b) {
  return strcmp((*a)->d_name, (*b)->d_name);
}

hk_status hk_user_programs_new(hk_user_programs **out) {
  hk_user_programs *p = *out = calloc(1, sizeof *p);
  if (!p) return HK_FAIL_ERRNO("no memory for programs");
  for (int i = 0; hk_algorithms[i]; i++) p->all[i] = hk_algorithms[i];
  p->hash = 1;
  return HK_OK;
}

void hk_user_programs_drop(hk_user_programs *p, uint64_t hash) {
  while (p->n && p->hash != hash) {
    *(programs_end(p) - 1) = NULL;
    p->hash = p->own[--p->n].hash;
    hk_program_set_free(&p->own[p->n].set);
  }
}

hk_status hk_program_folder_list(hk_program_folder *out, const char *path) {
  struct dirent **files = NULL;
  *out = (hk_program_folder){.path = path};
  const int n = scandir(path, &files, programs_is_file, programs_by_name);
  if (n < 0)
    return HK_FAIL(HK_ERR_ARGUMENT, "HOCKET_PROGRAMS: the folder %s cannot be read: %s", path, strerror(errno));
  out->names = calloc((size_t)n + 1, sizeof *out->names);
  for (int i = 0; i < n; i++) {
    if (out->names && (out->names[out->n] = strdup(files[i]->d_name))) out->n++;
    free(files[i]);
  }
  free(files);
  return out->n == n && out->names ? HK_OK : HK_FAIL_ERRNO("no memory for the names of %d programs", n);
}

void hk_program_folder_free(hk_program_folder *f) {
  for (int i = 0; i < f->n; i++) free(f->names[i]);
  free(f->names);
  *f = (hk_program_folder){.n = 0};
}

hk_status hk_user_programs_load(hk_user_programs **out, const hk_program_folder *f, unsigned slots, uint8_t *ways,
                                bool proved) {
  hk_status rc = HK_OK;
  hk_user_programs *p;
  *out = NULL;
  HK_OR_RETURN(hk_user_programs_new(&p));
  for (int i = 0; i < f->n; i++) {
    char path[4096];
    uint8_t way = ways ? ways[i] : 0;
    if (proved && !way) continue;
    snprintf(path, sizeof path, "%s/%s", f->path, f->names[i]);
    rc = hk_user_programs_add(p, path, NULL, slots, &way);
    if (rc == HK_ERR_ARGUMENT || rc == HK_ERR_SYSTEM) {
      HK_WARN("HOCKET_PROGRAMS: %s is not used: %s", f->names[i], hk_last_error());
      rc = HK_OK;
    }
    if (rc != HK_OK) goto out;
    if (ways) ways[i] = way;
  }
  *out = p;
  p = NULL;
out:
  hk_user_programs_free(p);
  return rc;
}

void hk_user_programs_free(hk_user_programs *p) {
  for (int i = 0; p && i < p->n; i++) hk_program_set_free(&p->own[i].set);
  free(p);
}
