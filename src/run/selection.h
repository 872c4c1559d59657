/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator's decisions, and what they follow from. */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

struct hk_algorithm; /* collectives/algorithm.h */
struct hk_call;
struct hk_channels;   /* topo/search.h */
struct hk_constants;  /* decide/constants.h */
struct hk_decision;   /* decide/select.h */
struct hk_filter;     /* decide/filter.h */
struct hk_layout;     /* program/layout.h */
struct hk_machine;    /* decide/machine.h */
struct hk_path_rules; /* topo/paths.h */
struct hk_plan;       /* kernels/plan.h */
struct hk_program;    /* program/program.h */
struct hk_tuner;      /* tuner.h */

/* A decision that holds for all plain calls of a collective and size class (hk_size_class). */
typedef struct hk_class_decision {
  uint8_t known; /* 1 + the kind of call; 0: not yet decided */
  uint8_t algorithm, protocol;
  uint16_t channels;
} hk_class_decision;

/* Equal on all ranks, fixed at init. */
typedef struct hk_selection {
  struct hk_machine *machine;
  struct hk_layout *layout;       /* NULL: one host */
  struct hk_channels *rings;      /* of each host; NULL: hosts have different ones, or none */
  struct hk_overrides *overrides; /* decide/overrides.h */
  const struct hk_filter *filter; /* the one in `overrides` */
  struct hk_tuner *tuner;         /* NULL: none */
  uint64_t sums;                  /* the reductions of the network, if machine.in_network: hk_collnet_sum bits */
  int network_calls;              /* HK_COLLNET_GATHERS, HK_COLLNET_SCATTERS */
  unsigned overruled;             /* bits 1u << hk_coll: the warning of hk_decision.overruled has been logged */
  hk_class_decision *classes;     /* HK_COLL_COUNT x HK_SIZE_CLASSES */
} hk_selection;

/* The elements of a block on which the choice is based; equal on all ranks. For an uneven collective: of the longest
 * block, rounded up to a power of two, so that calls with other counts often need no new choice. */
size_t hk_selection_count(const struct hk_call *op);
/* The decision for a call, and its plan, which is made if there is none yet. Plain calls get the algorithm of another
 * size of the class if there was one; its price is then not known. Rules and plugins see each size. Warns if NCCL_ALGO
 * allows no batch-invariant algorithm where one is wanted. */
hk_status hk_selection_decide(ncclComm_t c, const struct hk_call *op, struct hk_decision *d, struct hk_plan **plan);
/* plans.c: the plan for the algorithm, at most so many channels, and the call's collective; made if there is none
 * yet. */
hk_status hk_plan_get(ncclComm_t c, const struct hk_algorithm *a, int channels, const struct hk_call *op,
                      struct hk_plan **out);
const struct hk_program *hk_plan_program(const struct hk_plan *plan, unsigned *channels); /* and its channels */
/* HK_ERR_ARGUMENT if none of the algorithms and protocols of op->options.only can run the call. */
hk_status hk_selection_check(ncclComm_t c, const struct hk_call *op, const char *who);
hk_status hk_selection_price(ncclComm_t c, const struct hk_call *op, double *us); /* microseconds, by the cost model */
/* estimate.c: *us: microseconds until the last call of a group is complete on this rank; nothing is run. */
hk_status hk_estimate(const struct hk_call *calls, size_t n, double *us);
const struct hk_machine *hk_selection_machine(ncclComm_t c);
const struct hk_constants *hk_selection_constants(ncclComm_t c);
/* Finds the tuner plugin. *hash: hk_tuner_hash. */
hk_status hk_selection_load_tuner(ncclComm_t c, uint64_t *hash);
/* The network reduces (CollNet); arguments: hk_selection.sums, .network_calls. */
void hk_selection_use_network(ncclComm_t c, uint64_t sums, int calls);
/* Sets the layout of the ranks, as hk_layout_new. */
hk_status hk_selection_layout(ncclComm_t c, const uint64_t *hosts, const int32_t *order, int nchannels);
const struct hk_path_rules *hk_selection_paths(const struct ncclComm *c);    /* the user's, for paths between devices */
void hk_selection_channels(const struct ncclComm *c, int *least, int *most); /* the user's, on all ranks; 0: none */
/* Adds the programs of a text to the algorithms of later calls; errors name the text by `name`. *way: as in
 * hk_user_programs_add (decide/programs.h). *hash: of all added ones. hk_selection_drop_program undoes it. */
hk_status hk_selection_add_program(ncclComm_t c, const char *name, const char *text, uint8_t *way, uint64_t *hash);
void hk_selection_drop_program(ncclComm_t c, uint64_t hash_before);
uint64_t hk_selection_programs(ncclComm_t c);                            /* the hash of those now; 0: none */
const struct hk_algorithm *const *hk_selection_algorithms(ncclComm_t c); /* all that may be chosen, ended by NULL */
/* Limits later calls of the collective to these algorithms: bit i is entry i of the registry. */
void hk_selection_only(ncclComm_t c, int coll, uint32_t algorithms);
void hk_choices_forget(ncclComm_t c);     /* choose.c: forgets the choices of earlier calls; their plans stay */
hk_status hk_selection_new(ncclComm_t c); /* c->selection */
void hk_selection_free(ncclComm_t c);     /* after the backend's detach */
