/* SPDX-License-Identifier: Apache-2.0 */
/* Reads MSCCL's XML. */
#include <stdlib.h>
#include <string.h>
#include "../program/verify.h"
#include "formats.h"
#include "msccl_file.h"

enum { MSCCL_WAYS = 4 };

static hk_status msccl_make(hk_program_set *s, hk_msccl_file *f, unsigned how, unsigned slots,
                            hk_verify_report *report) {
  f->report.errors = 0;
  const hk_status rc = hk_msccl_run(f, how, s);
  if (rc == HK_ERR_ARGUMENT && how & HK_MSCCL_MERGE) return HK_ERR_INTERNAL; /* without it, this may be no error */
  return rc == HK_OK ? hk_program_set_try(s, slots, report) : rc;
}

/* Reads the algorithm as one of this collective. HK_ERR_ARGUMENT: `why` is the error, which is not logged. */
static hk_status msccl_read_as(hk_program_file *out, const char *name, hk_xml_tree *tree, hk_coll coll, unsigned slots,
                               char why[HK_ERROR_TEXT]) {
  static const unsigned ways[MSCCL_WAYS] = {
      /* the best first */
      HK_MSCCL_MERGE | HK_TRACE_DIRECT, HK_TRACE_DIRECT, HK_TRACE_DIRECT | HK_TRACE_COPIES, HK_TRACE_COPIES};
  hk_status rc = HK_OK;
  hk_verify_report report;
  hk_program_set *set = NULL;
  hk_msccl_file *f = calloc(1, sizeof *f);
  if (!f) return HK_FAIL_ERRNO("no memory to read %s", name);
  f->report.file = name;
  f->coll = coll;
  HK_TRY(hk_msccl_file_read(f, tree), out);
  set = hk_program_file_add(out, f->nranks);
  if (!set) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for the programs of %s", name), out);
  set->in_place = f->in_place;
  set->out_of_place = f->out_of_place;
  set->least = f->least;
  set->most = f->most;
  if (out->way) HK_GIVE_UP(hk_msccl_run(f, ways[out->way % MSCCL_WAYS], set), out);
  rc = HK_ERR_INTERNAL;
  for (uint8_t i = 0; i < MSCCL_WAYS && rc == HK_ERR_INTERNAL; i++) {
    rc = msccl_make(set, f, ways[i], slots, &report);
    if (rc == HK_OK) out->way = (uint8_t)(MSCCL_WAYS * (1 + coll) + i);
  }
  set->proved = rc == HK_OK;
out:
  if (rc == HK_ERR_ARGUMENT) snprintf(why, HK_ERROR_TEXT, "%s", f->report.first);
  if (rc == HK_ERR_INTERNAL) {
    snprintf(why, HK_ERROR_TEXT, "%s: %s", name, report.message);
    rc = HK_ERR_ARGUMENT;
  }
  if (rc != HK_OK && set) hk_program_set_free(&out->sets[--out->nsets]);
  free(f->blocks);
  free(f->steps);
  free(f);
  return rc;
}

/* Old files do not name the collective. What the steps leave in the outputs tells it. */
static hk_status msccl_read_old(hk_program_file *out, const char *name, hk_xml_tree *tree, unsigned slots) {
  /* Each is tried before those that do a part of it. */
  static const hk_coll colls[] = {HK_ALLREDUCE, HK_ALLGATHER, HK_REDUCE_SCATTER, HK_ALLTOALL,
                                  HK_BROADCAST, HK_REDUCE,    HK_GATHER,         HK_SCATTER};
  char first[HK_ERROR_TEXT], why[HK_ERROR_TEXT];
  if (out->way) {
    const hk_status rc = msccl_read_as(out, name, tree, (hk_coll)(out->way / MSCCL_WAYS - 1), slots, why);
    return rc == HK_ERR_ARGUMENT ? HK_FAIL(rc, "%s", why) : rc;
  }
  for (size_t i = 0; i < HK_ARRAY_LENGTH(colls); i++) {
    const hk_status rc = msccl_read_as(out, name, tree, colls[i], slots, i ? why : first);
    if (rc != HK_ERR_ARGUMENT) return rc;
  }
  return HK_FAIL(HK_ERR_ARGUMENT, "%s: coll= of <algo> is missing, and the steps do no collective. As %s: %s", name,
                 hk_coll_name(colls[0]), first);
}

hk_status hk_msccl_read(hk_program_file *out, const char *name, const char *text, unsigned slots) {
  hk_xml_tree *tree;
  hk_xml_report report = {.file = name};
  char why[HK_ERROR_TEXT];
  hk_status rc;
  HK_OR_RETURN(hk_xml_parse(&tree, text, strlen(text), &report));
  if (!strcmp(tree->root->name, "algo") && !hk_xml_get(tree->root, "coll")) {
    rc = msccl_read_old(out, name, tree, slots);
  } else {
    rc = msccl_read_as(out, name, tree, HK_COLL_COUNT, slots, why);
    if (rc == HK_ERR_ARGUMENT) (void)HK_FAIL(rc, "%s", why);
  }
  hk_xml_free(tree);
  return rc;
}
