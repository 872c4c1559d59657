/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket plan`: the choice for a call, its reasons, and the prices of the alternatives. */
#include "plan.h"
#include <stdlib.h>
#include "../base/param.h" /* HOCKET_QUANTISED */
#include "../program/quantised.h"
#include "../sim/sim.h"
#include "inputs.h"
#include "machine.h"
#include "tools.h"

typedef struct options {
  const char *machine, *file;
  int ranks, root, rank, channel;
  bool program, json, all, simulate, rules, quantised;
} options;

/* --quantised and HOCKET_QUANTISED; the variable changes only what it changes in a communicator. */
static int plan_quantise(hk_inputs *w, const options *o, bool has_form) {
  const bool can = has_form && !w->machine.team.overlap;
  if (o->quantised && !can)
    return hk_tool_wrong("--quantised is for an allreduce of ranks on CPUs: hocket plan allreduce SIZE --quantised");
  if (can && (o->quantised || w->overrides.settings->QUANTISED)) hk_machine_quantise(&w->machine, sizeof(float));
  return HK_EXIT_OK;
}

static int plan_run(void *into, int nargs, char **args) {
  const options *o = into;
  hk_coll coll = HK_ALLREDUCE;
  size_t bytes = 0;
  if (nargs > 0 && !hk_tool_coll(args[0], &coll)) return HK_EXIT_TROUBLE;
  if (nargs > 1 && !hk_tool_size("SIZE", args[1], &bytes)) return HK_EXIT_TROUBLE;
  if ((o->program || o->simulate) && nargs < 2)
    return hk_tool_wrong("--%s needs COLLECTIVE and SIZE", o->program ? "program" : "simulate");
  if (o->rules && nargs > 1) return hk_tool_wrong("--rules are for all sizes: leave SIZE out");
  hk_inputs w;
  hk_simulator *x = NULL;
  int code = hk_inputs_open(&w, o->machine, o->file, o->ranks);
  if (code == HK_EXIT_OK) code = plan_quantise(&w, o, nargs > 0 && hk_quantised_coll(coll));
  if (code == HK_EXIT_OK && o->simulate) code = hk_inputs_simulator(&x, &w);
  if (code != HK_EXIT_OK) goto out;
  if (o->program) {
    code = hk_plan_print_program(
        &w, coll, bytes, &(hk_plan_program){.rank = o->rank, .root = o->root, .channel = o->channel, .json = o->json});
  } else if (o->json) {
    code = hk_plan_print_json(&w, nargs > 0 ? &coll : NULL, nargs > 1 ? &bytes : NULL, x);
  } else if (o->rules) {
    hk_plan_print_rules(&w, nargs > 0 ? &coll : NULL);
  } else if (nargs < 2) {
    hk_plan_print_ranges(&w, nargs > 0 ? &coll : NULL);
  } else {
    hk_plan_report *r = malloc(sizeof *r);
    const hk_status rc = r ? hk_plan_ask(r, &w, coll, bytes) : HK_FAIL(HK_ERR_SYSTEM, "out of memory");
    if (rc == HK_OK)
      hk_plan_print_one(r, o->all, x);
    else
      code = hk_tool_failed(rc);
    free(r);
  }
out:
  hk_simulator_free(x);
  hk_inputs_close(&w);
  return code;
}

static const hk_tool_option rows[] = {
    HK_ROW_MACHINE(machine),
    HK_ROW_XML(file),
    HK_ROW_INT(ranks, "ranks", "N", "ranks; without it one for each GPU, on a machine without GPUs one for each core",
               .letter = 'n', .low = 1, .high = HK_RANKS_MOST),
    HK_ROW_INT(root, "root", "RANK", "the root, if the collective has one", .letter = 'r', .def = "0",
               .high = HK_RANKS_MOST),
    HK_ROW_FLAG(program, "program", "write what each rank would do, as text that hocket program reads", .letter = 'p'),
    HK_ROW_INT(rank, "rank", "RANK", "with --program: only this rank's", .def = "-1", .low = -1, .high = HK_RANKS_MOST),
    HK_ROW_INT(channel, "channel", "N", "with --program: the program of this channel", .def = "0", .high = 255),
    HK_ROW_FLAG(all, "all", "alternatives by every protocol, not only each algorithm's best", .letter = 'a'),
    HK_ROW_FLAG(simulate, "simulate",
                "also run the alternatives on the simulator, and show its times next to the prices", .letter = 's'),
    HK_ROW_FLAG(quantised, "quantised", "an allreduce of float32 with 8 bits a value on links, and its error bound",
                .letter = 'q'),
    HK_ROW_FLAG(rules, "rules", "write what runs from which size on as a tuning file (HOCKET_TUNING_FILE)"),
    HK_ROW_FLAG(json, "json", "write JSON"),
    {0}};

const hk_tool hk_tool_plan = {
    .name = "plan",
    .about = "show what runs for a collective, and why",
    .usage = "[COLLECTIVE [SIZE]]",
    .text =
        "With COLLECTIVE and SIZE: the algorithm, protocol and number of channels that a communicator there chooses, "
        "the reasons in words, and the price of each alternative. Without SIZE: what runs from which size on. SIZE "
        "is that of the larger of a rank's buffers, in bytes; K, M and G mean 2^10, 2^20 and 2^30.\n"
        "\n"
        "The parameters that change the choice (NCCL_ALGO, NCCL_PROTO and others) have their effect here too. Prices "
        "come from the model that docs/tuning.md describes; hocket sim runs the programs link by link.",
    .examples =
        "hocket plan allreduce 1G --machine dgx-h100\n  one large allreduce on a DGX H100\n"
        "hocket plan --machine 'nodes=16 of dgx-a100'\n  what runs for which size, of every collective\n"
        "hocket plan --rules >mine.conf\n  the choices as a file, to be changed and used as HOCKET_TUNING_FILE\n"
        "NCCL_ALGO=^ring hocket plan allreduce 64M --ranks 4\n  what runs if the ring is not allowed\n"
        "hocket plan allreduce 1M --ranks 4 --program --rank 1\n  what rank 1 does",
    .options = rows,
    .bytes = sizeof(options),
    .most = 2,
    .run = plan_run,
};
