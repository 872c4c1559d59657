/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The selector: the cheapest (algorithm, protocol, channels) that the machine can run and the user allows. A pure
 * function of its arguments, so ranks with equal arguments get the same decision.
 */
#pragma once
#include "filter.h"
#include "payload.h"

struct hk_algorithm; /* collectives/algorithm.h */
struct hk_machine;   /* machine.h */

enum { HK_ALTERNATIVES = HK_ALGORITHM_LIMIT * HK_PROTO_COUNT };

typedef struct hk_decision {
  const struct hk_algorithm *algorithm;
  hk_protocol protocol;
  int channels;
  /* set by hk_decide_execution */
  hk_payload payload;
  size_t chunk; /* bytes of a block that one wave moves; equal on all ranks */
  hk_executor executor;
  const char *executor_why; /* a sentence, without its full stop */
  double us;                /* the model's price */
  bool ruled;               /* a tuning file decided */
  bool unmet;               /* nothing that the filter allows can run, so a part of it is ignored */
  bool overruled;           /* no choice that the user allows is batch-invariant, so the others were dropped: warn */
  const char *note;         /* NULL, or a static text why it is not the cheapest ("as the tuning file says") */
} hk_decision;
/* Sizes of a class have one decision, so that a communicator can keep it: a class is an eighth of an octave. The prices
 * of the largest size decide, so a power of two, the last of its class, has the decision of its own prices. */
int hk_size_class(size_t bytes);         /* below HK_SIZE_CLASSES */
size_t hk_size_class_last(size_t bytes); /* the largest size of its class */

/* Returns true if the algorithm may run with batch_invariant. */
bool hk_select_invariant(const struct hk_algorithm *a, hk_coll coll);
/* Makes the decision for the size's class; `us` is the price of this size. `filter` may be NULL. A program whose file
 * is for other sizes is chosen only if the filter or a rule leaves no other. If no choice satisfies the filter, it is
 * ignored, and `note` says so. HK_ERR_SYSTEM: no memory. */
hk_status hk_select(const struct hk_machine *m, const hk_filter *filter, hk_coll coll, size_t bytes, hk_decision *out);

/* Adds to a decision how data travels and what runs the call. `m`: by the decision's protocol and channels
 * (hk_machine_as); it becomes that for messages of this size (hk_machine.long_waves). */
hk_status hk_decide_execution(struct hk_machine *m, const hk_request *r, hk_decision *d);
/* Bytes of a block that one wave moves, if a block of the algorithm's programs has `block` bytes on all channels: all
 * ranks get the same value. */
hk_status hk_choose_chunk(const struct hk_machine *m, const struct hk_algorithm *a, hk_coll coll, size_t block,
                          size_t *out);

/* Prices one algorithm and protocol. *can: it can run, and is not excluded. */
hk_status hk_select_one(const struct hk_machine *m, const hk_filter *filter, hk_coll coll, size_t bytes,
                        const struct hk_algorithm *a, hk_protocol p, hk_decision *out, bool *can);

typedef struct hk_alternative {
  hk_decision what; /* with the best number of channels for this algorithm and protocol */
  const char *why;  /* NULL: it can run; otherwise the reason, and `us` is 0 */
} hk_alternative;
/* Fills `out` with all *n alternatives, the cheapest first, and excluded ones last (one row for each algorithm, or for
 * each barred protocol of an algorithm that can run). */
hk_status hk_select_all(const struct hk_machine *m, const hk_filter *filter, hk_coll coll, size_t bytes,
                        hk_alternative out[HK_ALTERNATIVES], int *n);
const char *hk_decision_algorithm(const hk_decision *d); /* its name */
