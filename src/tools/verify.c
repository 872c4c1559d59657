/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket verify`: proves algorithms for any number of ranks. */
#include "../program/verify.h"
#include <stdlib.h>
#include <string.h>
#include "../base/json.h"
#include "../collectives/algorithm.h"
#include "../decide/select.h"
#include "../program/builder.h"
#include "../program/layout.h"
#include "proof.h"
#include "tools.h"

enum { MOST_RANKS = 4096 };

typedef struct options {
  hk_proof_options proof;
  const char *algorithm, *coll, *ranks;
  int root, hosts;
  bool all;
} options;

/* ---- what to prove ---- */

/* Ranks for which every algorithm can run that can do so many at all. */
static hk_team verify_any_team(int nranks, int nhosts) {
  return (hk_team){.nranks = nranks,
                   .nhosts = nhosts,
                   .ranks_per_host = (nranks + nhosts - 1) / nhosts,
                   .least_per_host = nranks / nhosts,
                   .multicast = nhosts == 1,
                   .in_switch = true,
                   .in_network = nhosts > 1};
}

typedef struct tally {
  hk_table *table;
  hk_json *w;
  int proved, failed;
} tally;

/* One algorithm in one collective, for all numbers of ranks: one row. */
static hk_status verify_prove_one(const hk_algorithm *a, hk_coll coll, const options *o, tally *t) {
  hk_status rc = HK_OK;
  hk_verify_report report = {.rank = -1};
  int cases = 0, first = 0, last = 0;
  hk_order order = HK_ORDER_FIXED;
  hk_proof_options proof = o->proof;
  proof.fixed_order = hk_coll_reduces(coll) &&
                      /* algorithms marked as fixed_order must be proved so */
                      (proof.fixed_order || hk_select_invariant(a, coll));
  uint64_t instructions = 0;
  hk_program *sample = NULL;
  for (int n = 1; n <= MOST_RANKS && rc == HK_OK; n++) {
    if (!hk_tool_in_list(o->ranks, n) || n < o->hosts) continue;
    const hk_team team = verify_any_team(n, o->hosts);
    int root = hk_coll_has_root(coll) ? o->root : 0;
    if (root >= n || !hk_algorithm_supports(a, &team, coll)) continue;
    hk_program **p = NULL;
    hk_layout *layout;
    HK_OR_RETURN(hk_layout_even(&layout, n, o->hosts));
    rc = hk_proof_build(a, &(hk_build){.coll = coll, .nranks = n, .root = root, .layout = layout}, &p);
    if (rc == HK_OK) rc = hk_prove((const hk_program *const *)p, n, layout ? layout->host : NULL, &proof, &report);
    hk_layout_free(layout);
    if (!p) return rc;
    if (report.order < order) order = report.order;
    if (!cases++) first = n;
    last = n;
    for (int r = 0; r < n; r++) instructions += p[r]->ninstrs;
    hk_program_free(sample);
    sample = p[0];
    p[0] = NULL;
    hk_proof_free(p, n);
  }
  if (!cases) return HK_OK;
  char ranks[32];
  snprintf(ranks, sizeof ranks, first == last ? "%d" : "%d-%d", first, last);
  if (report.message[0]) snprintf(ranks, sizeof ranks, "%d", last);
  report.order = order;
  if (t->w)
    hk_proof_json(t->w, sample, ranks, &report, NULL, 0);
  else
    hk_table_row(t->table, report.message[0] ? HK_STYLE_RED : HK_STYLE_PLAIN, "%s\t%s\t%s\t%llu\t%s\t%s",
                 hk_coll_name(coll), a->name, ranks, (unsigned long long)instructions, hk_proof_order(sample, &report),
                 report.message[0] ? report.message : "proved");
  *(report.message[0] ? &t->failed : &t->proved) += 1;
  hk_program_free(sample);
  return HK_OK;
}

static int verify_prove_registry(const options *o, hk_json *w) {
  hk_coll only = HK_COLL_COUNT;
  const hk_algorithm *algorithm = o->algorithm ? hk_algorithm_by_name(o->algorithm) : NULL;
  if (o->coll && !hk_tool_coll(o->coll, &only)) return HK_EXIT_TROUBLE;
  if (o->algorithm && !algorithm) return hk_tool_wrong_word("--algorithm", o->algorithm, hk_tool_algorithm_word);
  tally t = {.w = w, .table = w ? NULL : hk_table_new("llrrlw")};
  if (!w) hk_table_row(t.table, HK_STYLE_BOLD, "COLLECTIVE\tALGORITHM\tRANKS\tINSTRUCTIONS\tORDER\tRESULT");
  hk_status rc = HK_OK;
  for (int c = 0; c < HK_COLL_COUNT && rc == HK_OK; c++)
    for (const hk_algorithm *const *a = hk_algorithms; *a && rc == HK_OK; a++)
      if ((!o->coll || only == (hk_coll)c) && (!algorithm || algorithm == *a))
        rc = verify_prove_one(*a, (hk_coll)c, o, &t);
  if (t.table) hk_table_print(t.table, 0, stdout);
  if (rc != HK_OK) return hk_tool_failed(rc);
  if (!t.proved && !t.failed)
    return hk_tool_wrong("no algorithm of that name does that collective with this number of ranks and that root");
  if (!w) printf("\n%d proved, %d rejected\n", t.proved, t.failed);
  return t.failed ? HK_EXIT_FINDING : HK_EXIT_OK;
}

static int verify_run(void *into, int nargs, char **args) {
  options *o = into;
  (void)nargs, (void)args; /* none */
  if (o->proof.slots <= 0) o->proof.slots = (int)hk_tool_slots();
  if (!o->all && !o->algorithm && !o->coll)
    return hk_tool_wrong("what should be verified? Give --algorithm, --collective or --all; hocket program check FILE "
                         "verifies the programs of a file");
  if (!hk_tool_check_list("--ranks", o->ranks, 1, MOST_RANKS)) return HK_EXIT_TROUBLE;
  hk_json w = {.f = stdout}, *json = o->proof.json ? &w : NULL;
  if (json) hk_proofs_json_begin(json);
  const int code = verify_prove_registry(o, json);
  if (json) hk_proofs_json_end(json, code);
  return code;
}

static const hk_tool_option rows[] = {
    HK_ROW_TEXT(algorithm, "algorithm", "NAME", "this algorithm, in every collective that it does", .letter = 'a',
                .words = hk_tool_algorithm_word),
    HK_ROW_TEXT(coll, "collective", "NAME", "this collective, by every algorithm that does it", .letter = 'c',
                .words = hk_tool_coll_word),
    HK_ROW_FLAG(all, "all", "every algorithm in every collective"),
    HK_ROW_TEXT(ranks, "ranks", "LIST", "numbers of ranks, as 8 or 2-16 or 2,4,8", .letter = 'n', .def = "8"),
    HK_ROW_INT(hosts, "hosts", "N",
               "hosts that the ranks are dealt out over, for the algorithms that make a difference", .def = "1",
               .low = 1, .high = MOST_RANKS),
    HK_ROW_INT(root, "root", "RANK", "the root, if the collective has one", .letter = 'r', .def = "0",
               .high = MOST_RANKS),
    HK_ROWS_PROOF(proof),
    {0}};

const hk_tool hk_tool_verify = {
    .name = "verify",
    .about = "prove that algorithms do what their collective says",
    .text =
        "A collective is a program for each rank. The verifier runs all of them symbolically. It proves that every "
        "output holds exactly the right contributions, that sends meet receives, that nothing can deadlock with this "
        "number of slots, and that no buffer is overwritten while it is still read, out of place and in place.\n"
        "\n"
        "ORDER is what is known of the order in which sums are made: fixed (in the order of ranks, the same "
        "wherever it is said; HOCKET_BATCH_INVARIANT=1 takes only these), equal (the same for every element, but "
        "another root, machine or algorithm may have another), sides (equal, but for which of two values is on the "
        "left of an addition) or varies (with the element's place). docs/numerics.md says more.",
    .findings = "a program was rejected; the output says which rank, lane and instruction, and why",
    .examples = "hocket verify --all --ranks 2-9\n  every algorithm, from 2 to 9 ranks\n"
                "hocket verify --algorithm ring --ranks 100 --slots 2\n  the ring, with two slots a link",
    .options = rows,
    .bytes = sizeof(options),
    .run = verify_run,
};
