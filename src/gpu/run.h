/* SPDX-License-Identifier: Apache-2.0 */
/* What runs calls on GPUs, and looks at how they end. */
#pragma once
#include "gpu.h"

struct hk_call;
struct hk_gpu_buffer;      /* buffer.h */
struct hk_gpu_launch_item; /* launch.h */
struct hk_shared;          /* transport/cuda/share.h */
struct hk_gpu_work;        /* kernels/cuda/work.h */

/* ---- run.c ---- */
/* The stages of a communicator's collectives in the current group. */
typedef struct hk_gpu_stage {
  struct hk_gpu_launch_item *last; /* the newest collective; NULL: none */
  unsigned stages;                 /* stages so far */
  unsigned length;                 /* collectives in the newest stage */
  size_t scratch;                  /* bytes of scratch that the newest stage uses */
} hk_gpu_stage;

/* Enqueues calls, all of communicators on GPUs. */
hk_status hk_gpu_run(const struct hk_call *calls, size_t n);
hk_status hk_gpu_run_one(const struct hk_call *call);
/* check.c: checks the call's options when it is made. Its buffers are checked when it runs. */
hk_status hk_gpu_check_options(const struct hk_call *call, const char *who);

/* ---- copy.c, copy_words.c: collectives by copy engines ---- */
typedef struct hk_gpu_copies {
  bool usable;             /* copy engines are requested and can be used */
  struct hk_shared *words; /* [nranks]: words of a rank; of one in another process: the mapping */
  char **words_at;         /* [nranks]: addresses of these words for the GPU */
  _Atomic(bool) used;      /* a call has used copy engines */
} hk_gpu_copies;

/* Decides whether copy engines are used; by all ranks.  asked: this rank requests them; all: all ranks request them and
 * can use them; alone: no two ranks share a GPU. */
hk_status hk_gpu_copy_choose(ncclComm_t c, bool asked, bool all, bool alone);
/* The word of rank `to` that rank `from` writes; `done`: the sender has written. */
void *hk_gpu_copy_word(ncclComm_t c, int to, int from, bool done);
/* *out: the window in which copy engines put the call's output; NULL: they do not run it. The same on all ranks if all
 * follow the rule for symmetric windows: the same window and the same offset in it. */
hk_status hk_gpu_copy_window(const struct hk_call *call, struct hk_gpu_buffer **out);
/* Releases the streams of a failed communicator that wait for other ranks.  Repeat it until they have ended. */
void hk_gpu_copy_free(ncclComm_t c);
void hk_gpu_copy_end(ncclComm_t c); /* after its streams have ended */

/* ---- transfers.c: sends and receives of a group ---- */
/* How the links of large sends and receives, and their blocks, are chosen. */
typedef struct hk_gpu_split {
  unsigned parts, net_parts; /* channels that a large send or receive may use; equal on all ranks */
  struct {
    unsigned links;
    struct hk_gpu_work *last[HK_GPU_BLOCKS]; /* [block] the newest work of each block */
  } turn;                                    /* while a table of transfers is filled */
} hk_gpu_split;

/* ---- reports.c: what kernels report ---- */
hk_status hk_gpu_reports_begin(ncclComm_t c); /* makes g->state */
bool hk_gpu_kernels_began(const hk_gpu *g);   /* some have, since the last question */
int hk_gpu_kernels_mismatch(const hk_gpu *g); /* the peer whose message does not fit the call; -1: none */

/* ---- health.c: completion of launches: polling, draining, the watchdog, and failures that kernels report ---- */
/* What the watchdog saw at its last look. */
typedef struct hk_gpu_health {
  uint64_t launches, seen_ns, reported_ns;
} hk_gpu_health;

/* Before a call that is not captured: waits until the GPU is no more than the limit of hk_gpu_ahead behind. */
hk_status hk_gpu_keep_near(ncclComm_t c);
/* Waits until all launches have ended, with or without an error.  The work of a failed communicator may be queued
 * behind other work that never ends: the wait is given up after some seconds. */
void hk_gpu_drain(ncclComm_t c);
/* Reports launches that do not end, as hk_watch does for waits on the host. Returns an error if a kernel has failed, or
 * if the watchdog must end the communicator.  From any thread. */
hk_status hk_gpu_watch(ncclComm_t c);
hk_status hk_gpu_check_kernels(ncclComm_t c); /* returns an error that a kernel has reported */
/* hk_backend.poll_health: both of these. Costs a driver call. */
hk_status hk_gpu_poll_health(ncclComm_t c);
