/* SPDX-License-Identifier: Apache-2.0 */
/* The file of measured constants: `name = value` lines. */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../collectives/algorithm.h"
#include "machine.h"
#include "rules.h"

static const struct {
  const char *name, *about;
  size_t at;
  double least, most; /* valid range */
  bool rate;          /* written as a rate, in bytes a microsecond (MB/s) */
} rows[] = {
    {"memory_alpha_us", "a message between ranks through shared memory", offsetof(hk_constants, memory_alpha_us), 1e-6,
     1e4, false},
    {"tcp_alpha_us", "a message through a socket", offsetof(hk_constants, tcp_alpha_us), 1e-6, 1e6, false},
    {"memory_message_us", "the work of each end for it", offsetof(hk_constants, memory_message_us), 1e-6, 1e4, false},
    {"tcp_message_us", "the work of each end for it", offsetof(hk_constants, tcp_message_us), 1e-6, 1e6, false},
    {"tcp_link_us", "work for each socket that is used", offsetof(hk_constants, tcp_link_us), 1e-6, 1e5, false},
    {"tcp_mb_s", "bytes through a socket", offsetof(hk_constants, tcp_us_per_b), 1, 1e7, true},
    {"net_alpha_us", "a message between hosts (hocket tune --between)", offsetof(hk_constants, net_alpha_us), 1e-6, 1e6,
     false},
    {"net_message_us", "the work of each end for it", offsetof(hk_constants, net_message_us), 1e-6, 1e6, false},
    {"net_mb_s", "bytes between hosts", offsetof(hk_constants, net_us_per_b), 1, 1e7, true},
    {"copy_mb_s", "bytes that a core copies", offsetof(hk_constants, copy_us_per_b), 1, 1e7, true},
    {"reduce_mb_s", "bytes that a core adds, beside the writing of the sum", offsetof(hk_constants, gamma_us_per_b), 1,
     1e7, true},
    {"switch_us", "handing a core to another rank", offsetof(hk_constants, switch_us), 1e-6, 1e5, false},
};

static double *constants_field(hk_constants *k, size_t i) { return (double *)(void *)((char *)k + rows[i].at); }

/* choice = VIA RANKS COLLECTIVE FROM TO ALGORITHM, for ranks that all share a host */
static void constants_write_choices(const hk_rules *choices, FILE *to) {
  static const char *const vias[] = {[HK_VIA_ANY] = "any", [HK_VIA_MEMORY] = "memory", [HK_VIA_SOCKETS] = "sockets"};
  if (choices && choices->n) fputs("# Where the model errs: via, ranks, collective, bytes from, to, algorithm.\n", to);
  for (int i = 0; choices && i < choices->n; i++) {
    const hk_rule *r = &choices->at[i];
    fprintf(to, "choice = %s %d %s %zu %zu %s\n", vias[r->via], r->nranks, hk_coll_name((hk_coll)r->coll), r->from,
            r->to, hk_algorithms[r->algorithm]->name);
  }
}

hk_status hk_constants_write(const hk_constants *k, const hk_rules *choices, FILE *to) {
  hk_constants copy = *k;
  fputs("# Measured by `hocket tune`.  Without this file Hocket uses built-in values.\n", to);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    double v = *constants_field(&copy, i);
    fprintf(to, "%s = %.6g # %s\n", rows[i].name, rows[i].rate ? 1 / v : v, rows[i].about);
  }
  constants_write_choices(choices, to);
  return ferror(to) ? HK_FAIL_ERRNO("the constants cannot be written") : HK_OK;
}

static hk_status constants_read_choice(hk_rules **choices, const char *path, int number, const char *text) {
  hk_rule r = {.coll = -1, .nhosts = 1, .algorithm = -1, .protocol = -1, .line = number};
  char via[16], coll[24], algorithm[24];
  int n = sscanf(text, "%15s %d %23s %zu %zu %23s", via, &r.nranks, coll, &r.from, &r.to, algorithm);
  for (int c = 0; n == 6 && c < HK_COLL_COUNT; c++)
    if (!strcmp(coll, hk_coll_name((hk_coll)c))) r.coll = c;
  for (int i = 0; n == 6 && hk_algorithms[i]; i++)
    if (!strcmp(algorithm, hk_algorithms[i]->name)) r.algorithm = i;
  if (n == 6) r.via = !strcmp(via, "memory") ? HK_VIA_MEMORY : !strcmp(via, "sockets") ? HK_VIA_SOCKETS : HK_VIA_ANY;
  if (n != 6 || r.coll < 0 || r.algorithm < 0 || r.via == HK_VIA_ANY || r.nranks < 2)
    return HK_FAIL(HK_ERR_ARGUMENT,
                   "%s:%d: a choice is memory or sockets, ranks, collective, bytes from, bytes to, algorithm: run "
                   "`hocket tune` again",
                   path, number);
  return choices ? hk_rules_add(choices, &r) : HK_OK;
}

static hk_status constants_read_line(hk_constants *k, hk_rules **choices, const char *path, int number, char *line) {
  char *hash = strchr(line, '#'), *end;
  if (hash) *hash = 0;
  char *name = line + strspn(line, " \t\r\n");
  if (!*name) return HK_OK;
  char *equals = strchr(name, '=');
  size_t n = strcspn(name, " \t=");
  if (!equals || name + n > equals)
    return HK_FAIL(HK_ERR_ARGUMENT, "%s:%d: \"%.60s\" is no line `name = value`", path, number, name);
  if (n == strlen("choice") && !strncmp(name, "choice", n))
    return constants_read_choice(choices, path, number, equals + 1);
  double v = strtod(equals + 1, &end);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    if (strlen(rows[i].name) != n || strncmp(rows[i].name, name, n)) continue;
    if (end == equals + 1 || end[strspn(end, " \t\r\n")] || !isfinite(v) || v < rows[i].least || v > rows[i].most)
      return HK_FAIL(HK_ERR_ARGUMENT, "%s:%d: %s must be a number from %g to %g: run `hocket tune` again", path, number,
                     rows[i].name, rows[i].least, rows[i].most);
    *constants_field(k, i) = rows[i].rate ? 1 / v : v;
    return HK_OK;
  }
  return HK_FAIL(HK_ERR_ARGUMENT, "%s:%d: there is no constant \"%.*s\"", path, number, (int)n, name);
}

hk_status hk_constants_read(hk_constants *k, hk_rules **choices, const char *path) {
  hk_status rc = HK_OK;
  char line[256];
  FILE *f = fopen(path, "re");
  *k = hk_constants_default;
  if (choices) *choices = NULL;
  if (!f) return HK_FAIL(HK_ERR_ARGUMENT, "the measured constants in %s cannot be read: %s", path, strerror(errno));
  for (int number = 1; fgets(line, sizeof line, f); number++)
    HK_TRY(constants_read_line(k, choices, path, number, line), out);
out:
  fclose(f);
  if (rc != HK_OK && choices) {
    hk_rules_free(*choices);
    *choices = NULL;
  }
  return rc;
}

bool hk_constants_path(char *path, size_t bytes) {
  const char *config = secure_getenv("XDG_CONFIG_HOME"), *home = secure_getenv("HOME");
  int n = -1;
  if (config && *config == '/')
    n = snprintf(path, bytes, "%s/hocket/tune.conf", config);
  else if (home && *home == '/')
    n = snprintf(path, bytes, "%s/.config/hocket/tune.conf", home);
  return n > 0 && (size_t)n < bytes;
}
