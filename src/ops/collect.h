/* SPDX-License-Identifier: Apache-2.0 */
/* The communicators whose ranks run on this host, with all of their ranks; and which rank keeps the others waiting. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "../boot/status.h"

/* How often a rank came last to a collective, and by how much in all. */
typedef struct hk_ps_late {
  uint64_t count, ns;
} hk_ps_late;

typedef struct hk_ps_rank {
  bool here;            /* its process is on this host, and has answered */
  int pid;              /* 0: not known */
  char host[64];        /* the name of this host, or an address; empty: not known */
  hk_presence presence; /* the activity is valid with HK_PRESENCE_ANSWERS */
  bool joins;           /* its process runs, but the rank has not joined yet */
  hk_activity activity;
  char does[160];          /* hk_ps_does, if the activity does not say it; empty: it does */
  bool guilty;             /* it keeps others waiting */
  hk_ps_late late, recent; /* since the communicator began; in the collectives of hk_ps_comm.late */
} hk_ps_rank;

/* True if the activity is that of a member of the communicator. */
static inline bool hk_ps_answers(const hk_ps_rank *r) { return r->presence == HK_PRESENCE_ANSWERS && !r->joins; }

typedef struct hk_ps_comm {
  uint64_t id;
  char name[64];   /* empty: it has none */
  const char *job; /* the names of its job (boot/job.h) */
  int nranks;
  hk_ps_rank *ranks;
  const hk_status_member *source; /* how to ask the other ranks */
  uint64_t newest;                /* the highest number of an operation that a rank has begun */
  uint64_t waited_ms;             /* the longest wait of a rank in it */
  char verdict[400];              /* in words; empty: nothing to report */
  struct {
    int collectives;      /* the latest ones in which ranks waited for others; all ranks still know them */
    uint64_t first, last; /* their numbers */
    char text[320];       /* the ranks that are late, in words; empty: none is */
  } late;
} hk_ps_comm;

typedef struct hk_ps {
  hk_ps_comm *comms;
  int ncomms;
  hk_status_process *processes;
  int nprocesses, refused, silent, strange; /* of these: of other users; without an answer; of another version */
} hk_ps;

/* How long it waits for answers. */
typedef struct hk_ps_patience {
  uint64_t process_ns;         /* for a process of this host */
  uint64_t others_ns, rank_ns; /* for all ranks of other processes; for one of them */
  _Atomic(int) *stop;          /* not 0 (an hk_status): it ends at once; NULL: nothing ends it */
} hk_ps_patience;

/* `late_ms`: a wait from this length on is reported. `p`: NULL for a patience of about two seconds in all. */
hk_status hk_ps_collect(hk_ps *out, unsigned late_ms, const hk_ps_patience *p);
/* late.c: fills in which ranks came last to collectives. */
void hk_ps_find_late(hk_ps_comm *c);
void hk_ps_free(hk_ps *p);
const char *hk_ps_state(const hk_ps_rank *r); /* "runs", "does not answer", "has not joined yet", ... */
/* The call of a rank that answers, "AllReduce(1 x float, sum)" or "outside of calls"; else its state. */
const char *hk_ps_does(const hk_ps_rank *r, char *text, size_t bytes);
