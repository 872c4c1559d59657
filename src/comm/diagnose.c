/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the ranks' environments and GPUs (diagnose.h), and writes reports. */
#include "diagnose.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../base/param.h"
#include "../base/wait.h"
#include "../boot/bootstrap.h"
#include "../core/backend.h"
#include "../core/comm.h"
#include "../topo/xid.h"
#include "hosts.h"

enum {
  ENVIRONMENT = 4096, /* bytes of a rank's variables that are compared */
  NAMED = 16          /* ranks of a list */
};

typedef struct diagnose_fact {
  hk_backend_device device;
  uint32_t cut; /* there are more variables */
  int32_t xids; /* different errors of its host's GPUs in the kernel's log; -1: not read */
  hk_xid xid;   /* the newest one */
  char host[64];
  char text[ENVIRONMENT]; /* "NAME=value\n"..., sorted */
} diagnose_fact;

unsigned hk_diagnose_wanted(const hk_settings *s) {
  return (s->RUN_RAS_DIAGNOSTICS ? HK_DIAGNOSE_SETTINGS : 0) | (s->RUN_DIAGNOSTICS ? HK_DIAGNOSE_LINKS : 0);
}

/* ---- a report ---- */

hk_status hk_diagnosis_begin(hk_diagnosis *d, ncclComm_t c, const char *title) {
  *d = (hk_diagnosis){.begin_ns = hk_now_ns(), .comm = c};
  if (c->rank != 0) return HK_OK;
  d->f = open_memstream(&d->text, &d->bytes);
  if (!d->f) return HK_FAIL_ERRNO("no memory for a report");
  hk_diagnosis_say(d, HK_DIAGNOSIS_NONE, "=== %s ===", title);
  return HK_OK;
}

void hk_diagnosis_say(hk_diagnosis *d, hk_diagnosis_tag tag, const char *format, ...) {
  static const char *const tags[] = {"", "[OK]   ", "[INFO] "};
  char host[64] = "localhost";
  if (!d->f) return;
  (void)gethostname(host, sizeof host - 1);
  host[strcspn(host, ".")] = '\0';
  fprintf(d->f, "%s:%d NCCL DIAG %s", host, (int)getpid(), tags[tag]);
  va_list args;
  va_start(args, format);
  vfprintf(d->f, format, args);
  va_end(args);
  if (tag != HK_DIAGNOSIS_NONE)
    fprintf(d->f, " in comm 0x%llx", (unsigned long long)hk_bootstrap_comm_id(d->comm->bootstrap));
  fputc('\n', d->f);
}

void hk_diagnosis_end(hk_diagnosis *d, const char *name) {
  hk_diagnosis_say(d, HK_DIAGNOSIS_NONE, "%s completed in %.1f ms across %d ranks", name,
                   (double)(hk_now_ns() - d->begin_ns) * 1e-6, d->comm->nranks);
  if (!d->f) return;
  if (fclose(d->f) == 0) {
    fwrite(d->text, 1, d->bytes, stdout);
    fflush(stdout);
  }
  free(d->text);
  *d = (hk_diagnosis){0};
}

/* "{0,1,2,...} (N=20)": the ranks for which is[] is set. */
static const char *diagnose_ranks(const hk_diagnosis *d, const bool *is, char *text, size_t bytes) {
  int n = 0;
  size_t used = (size_t)snprintf(text, bytes, "{");
  for (int r = 0; r < d->comm->nranks; r++) {
    if (!is[r]) continue;
    if (n++ < NAMED && used < bytes) used += (size_t)snprintf(text + used, bytes - used, "%s%d", n > 1 ? "," : "", r);
  }
  if (used < bytes && n > NAMED)
    snprintf(text + used, bytes - used, ",...} (N=%d)", n);
  else if (used < bytes)
    snprintf(text + used, bytes - used, "}");
  return text;
}

/* ---- what a rank reports ---- */

/* HOCKET_ variables that are no parameters belong to the launcher or the user, and may differ. */
static bool diagnose_counts(const char *entry) {
  if (!strncmp(entry, "NCCL_", 5)) return true;
  for (int id = 0; id < HK_P_COUNT; id++) {
    hk_param_info p;
    hk_param_describe((hk_param_id)id, &p);
    const size_t n = strlen(p.name);
    if (!strncmp(entry, p.name, n) && entry[n] == '=') return true;
  }
  return false;
}

static int diagnose_by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static hk_status diagnose_read_environment(diagnose_fact *f) {
  size_t n = 0, used = 0, all = 0;
  while (environ && environ[all]) all++;
  char **list = malloc((all + 1) * sizeof *list);
  if (!list) return HK_FAIL_ERRNO("no memory for %zu variables", all);
  for (size_t i = 0; i < all; i++)
    if (diagnose_counts(environ[i])) list[n++] = environ[i];
  qsort(list, n, sizeof *list, diagnose_by_text);
  for (size_t i = 0; i < n && !f->cut; i++) {
    const size_t length = strlen(list[i]);
    f->cut = used + length + 2 > sizeof f->text;
    if (f->cut) break;
    for (size_t k = 0; k < length; k++) f->text[used++] = list[i][k] == '\n' ? ' ' : list[i][k];
    f->text[used++] = '\n';
  }
  free(list);
  return HK_OK;
}

/* ---- what differs ---- */

typedef const char *diagnose_value(const diagnose_fact *f, const void *arg, char *text, size_t bytes);

/* Lines with the ranks of each value; false: all ranks have the same one, which is then in `common`. */
static bool diagnose_groups(hk_diagnosis *d, const diagnose_fact *facts, const char *what, diagnose_value *value,
                            const void *arg, bool *is, char *common, size_t bytes) {
  const int n = d->comm->nranks;
  char own[ENVIRONMENT], other[ENVIRONMENT], ranks[160];
  bool differs = false;
  snprintf(common, bytes, "%s", value(&facts[0], arg, own, sizeof own));
  for (int r = 1; r < n && !differs; r++) differs = strcmp(value(&facts[r], arg, other, sizeof other), common) != 0;
  for (int r = 0; r < n && differs; r++) {
    bool earlier = false;
    snprintf(common, bytes, "%s", value(&facts[r], arg, own, sizeof own));
    for (int k = 0; k < n; k++) {
      is[k] = !strcmp(value(&facts[k], arg, other, sizeof other), common);
      earlier = earlier || (is[k] && k < r);
    }
    if (earlier) continue;
    hk_diagnosis_say(d, HK_DIAGNOSIS_INFO, "%s%s on rank(s) %s", what, common,
                     diagnose_ranks(d, is, ranks, sizeof ranks));
  }
  return differs;
}

static void diagnose_compare(hk_diagnosis *d, const diagnose_fact *facts, const char *what, diagnose_value *value,
                             bool *is) {
  char common[160], title[64];
  snprintf(title, sizeof title, "%s: ", what);
  if (!diagnose_groups(d, facts, title, value, NULL, is, common, sizeof common))
    hk_diagnosis_say(d, HK_DIAGNOSIS_OK, "%s: %s consistent across %d ranks", what, common, d->comm->nranks);
}

static const char *diagnose_inventory(const diagnose_fact *f, const void *arg, char *text, size_t bytes) {
  (void)arg;
  snprintf(text, bytes, "%dx %s per node", f->device.count, f->device.name);
  return text;
}
static const char *diagnose_cuda(const diagnose_fact *f, const void *arg, char *text, size_t bytes) {
  (void)arg;
  snprintf(text, bytes, "%d", f->device.cuda);
  return text;
}
static const char *diagnose_driver(const diagnose_fact *f, const void *arg, char *text, size_t bytes) {
  (void)arg, (void)text, (void)bytes;
  return f->device.driver[0] ? f->device.driver : "unavailable via NVML";
}
static const char *diagnose_nvlink(const diagnose_fact *f, const void *arg, char *text, size_t bytes) {
  (void)arg;
  snprintf(text, bytes, "%d link(s) per device, %d active", f->device.links, f->device.links_up);
  return text;
}

static void diagnose_inactive(hk_diagnosis *d, const diagnose_fact *facts, bool *is) {
  bool any = false;
  char ranks[160];
  for (int r = 0; r < d->comm->nranks; r++) {
    is[r] = facts[r].device.links_up < facts[r].device.links;
    any = any || is[r];
  }
  if (any)
    hk_diagnosis_say(d, HK_DIAGNOSIS_INFO, "NVLink: inactive link(s) on rank(s) %s",
                     diagnose_ranks(d, is, ranks, sizeof ranks));
}

static void diagnose_ecc(hk_diagnosis *d, const diagnose_fact *facts, bool *is) {
  const int n = d->comm->nranks;
  const int64_t threshold = d->comm->settings->DIAGNOSTICS_ECC_THRESHOLD;
  uint64_t worst[2] = {0, 0};
  int known = 0;
  char ranks[160];
  for (int r = 0; r < n; r++) {
    known += facts[r].device.ecc_known;
    if (facts[r].device.uncorrected > worst[0]) worst[0] = facts[r].device.uncorrected;
    if (facts[r].device.corrected > worst[1]) worst[1] = facts[r].device.corrected;
  }
  if (!known) {
    hk_diagnosis_say(d, HK_DIAGNOSIS_INFO, "ECC: unavailable via NVML across %d ranks", n);
    return;
  }
  for (int r = 0; r < n; r++) is[r] = facts[r].device.uncorrected != 0;
  if (worst[0])
    hk_diagnosis_say(d, HK_DIAGNOSIS_INFO, "ECC: uncorrected volatile errors on rank(s) %s (worst=%llu)",
                     diagnose_ranks(d, is, ranks, sizeof ranks), (unsigned long long)worst[0]);
  else
    hk_diagnosis_say(d, known == n ? HK_DIAGNOSIS_OK : HK_DIAGNOSIS_INFO,
                     "ECC: no uncorrected volatile errors across %d of %d ranks", known, n);
  for (int r = 0; r < n; r++) is[r] = threshold > 0 && facts[r].device.corrected >= (uint64_t)threshold;
  if (threshold > 0 && worst[1] >= (uint64_t)threshold)
    hk_diagnosis_say(d, HK_DIAGNOSIS_INFO,
                     "ECC: corrected volatile errors at or above threshold %lld on rank(s) %s (worst=%llu)",
                     (long long)threshold, diagnose_ranks(d, is, ranks, sizeof ranks), (unsigned long long)worst[1]);
}

/* Only the first rank of each host reads its log. */
static void diagnose_read_xids(ncclComm_t c, diagnose_fact *f) {
  hk_xid all[HK_XIDS];
  f->xids = -1;
  (void)gethostname(f->host, sizeof f->host - 1);
  if (hk_hosts_first(c, c->rank) != c->rank) return;
  f->xids = hk_xid_read("", all);
  for (int i = 0; i < f->xids; i++)
    if (i == 0 || all[i].age_s < f->xid.age_s) f->xid = all[i];
}

static void diagnose_xids(hk_diagnosis *d, const diagnose_fact *facts) {
  int hosts = 0, read = 0, bad = 0;
  for (int r = 0; r < d->comm->nranks; r++) {
    const hk_xid *x = &facts[r].xid;
    if (hk_hosts_first(d->comm, r) != r) continue;
    hosts++;
    read += facts[r].xids >= 0;
    if (facts[r].xids <= 0) continue;
    bad++;
    hk_diagnosis_say(
        d, HK_DIAGNOSIS_INFO,
        "%s %d of %s %.23s, %lld s ago, on host %.63s (%d different in its kernel's log; hocket doctor xid "
        "shows all): %.119s",
        x->nvswitch ? "SXid" : "Xid", x->number, x->nvswitch ? "NVSwitch" : "GPU", x->bus, (long long)x->age_s,
        facts[r].host, facts[r].xids, x->text);
  }
  if (read < hosts)
    hk_diagnosis_say(d, HK_DIAGNOSIS_INFO,
                     "Xid/SXid: the kernel's log cannot be read on %d of %d hosts (only root may)", hosts - read,
                     hosts);
  else if (!bad)
    hk_diagnosis_say(d, HK_DIAGNOSIS_OK, "Xid/SXid: no errors in the kernel's logs of %d hosts", hosts);
}

/* The line of the variable `arg`, a "NAME=", or "(unset)". */
static const char *diagnose_variable(const diagnose_fact *f, const void *arg, char *text, size_t bytes) {
  const size_t n = strlen(arg);
  for (const char *at = f->text; *at; at += strcspn(at, "\n") + 1) {
    if (strncmp(at, arg, n)) continue;
    snprintf(text, bytes, "%.*s", (int)(strcspn(at, "\n") - n), at + n);
    return text;
  }
  return "(unset)";
}

static void diagnose_environment(hk_diagnosis *d, const diagnose_fact *facts, bool *is) {
  const int n = d->comm->nranks;
  int differ = 0, cut = 0;
  bool same = true;
  char name[128], title[160], common[256];
  for (int r = 0; r < n; r++) {
    cut += facts[r].cut != 0;
    same = same && !strcmp(facts[r].text, facts[0].text);
  }
  for (int r = 0; r < n && !same; r++)
    for (const char *at = facts[r].text; *at; at += strcspn(at, "\n") + 1) {
      bool earlier = false;
      snprintf(name, sizeof name, "%.*s=", (int)strcspn(at, "="), at);
      for (int k = 0; k < r && !earlier; k++)
        earlier = strcmp(diagnose_variable(&facts[k], name, common, sizeof common), "(unset)") != 0;
      if (earlier) continue; /* it is compared already */
      snprintf(title, sizeof title, "NCCL environment: %s", name);
      differ += diagnose_groups(d, facts, title, diagnose_variable, name, is, common, sizeof common);
    }
  if (cut)
    hk_diagnosis_say(d, HK_DIAGNOSIS_INFO,
                     "NCCL environment: %d rank(s) had >%d bytes of variables; the comparison is partial", cut,
                     ENVIRONMENT);
  if (differ)
    hk_diagnosis_say(d, HK_DIAGNOSIS_INFO, "NCCL environment: %d NCCL_* or HOCKET_* variable(s) differ across %d ranks",
                     differ, n);
  else
    hk_diagnosis_say(d, HK_DIAGNOSIS_OK, "NCCL environment: NCCL_* and HOCKET_* variables consistent across %d ranks",
                     n);
}

hk_status hk_diagnose_settings(ncclComm_t c) {
  hk_status rc = HK_OK;
  hk_diagnosis d = {0};
  diagnose_fact *facts = calloc((size_t)c->nranks, sizeof *facts);
  bool *is = calloc((size_t)c->nranks, sizeof *is);
  if (!facts || !is) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for the diagnostics of %d ranks", c->nranks), out);
  HK_TRY(hk_diagnosis_begin(&d, c, "RAS Diagnostics"), out);
  HK_TRY(diagnose_read_environment(&facts[c->rank]), out);
  if (c->backend->diagnosis) c->backend->diagnosis->inspect(c, &facts[c->rank].device);
  if (c->backend->diagnosis) diagnose_read_xids(c, &facts[c->rank]);
  HK_TRY(hk_bootstrap_allgather(c->bootstrap, facts, sizeof *facts), out);
  for (int r = 0; r < c->nranks; r++) facts[r].text[ENVIRONMENT - 1] = '\0';
  if (c->rank == 0 && c->backend->diagnosis) {
    bool links = false;
    for (int r = 0; r < c->nranks; r++) links = links || facts[r].device.links;
    diagnose_compare(&d, facts, "GPU inventory", diagnose_inventory, is);
    diagnose_compare(&d, facts, "CUDA driver version", diagnose_cuda, is);
    diagnose_compare(&d, facts, "NVIDIA graphics driver version", diagnose_driver, is);
    diagnose_ecc(&d, facts, is);
    if (links) diagnose_compare(&d, facts, "NVLink", diagnose_nvlink, is);
    diagnose_inactive(&d, facts, is);
    diagnose_xids(&d, facts);
  }
  if (c->rank == 0) diagnose_environment(&d, facts, is);
out:
  hk_diagnosis_end(&d, "RAS diagnostics");
  free(is);
  free(facts);
  return rc;
}
