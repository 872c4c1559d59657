/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket flight`: flight records of a communicator's ranks, and what they show together. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "../../base/status.h"

typedef enum hk_flight_state { HK_FLIGHT_BEGUN, HK_FLIGHT_OVER, HK_FLIGHT_FAILED, HK_FLIGHT_ON_STREAM } hk_flight_state;
const char *hk_flight_state_name(hk_flight_state s);

typedef struct hk_flight_op {
  long long number, collective; /* collective 0: a send or receive */
  long long begin_ns, end_ns;   /* end 0: it has not ended, or its end has no time */
  char *call;
  char algorithm[24];
  uint8_t state; /* hk_flight_state */
  bool timed;    /* begin_ns is known; else it is a guess between those of its neighbours */
  bool rooted;   /* ranks may end it at different times */
} hk_flight_op;

typedef struct hk_flight_file {
  char *path;
  uint64_t comm;
  char name[64], host[64], does[256];
  int rank, nranks, pid;
  bool streams; /* the times are those at which operations were put on their streams */
  long long written_ns;
  int code, blamed; /* the failure; 0: none. The rank that it is about; -1: none */
  char *text;       /* of the failure; NULL: none */
  hk_flight_op *ops;
  size_t nops;
  /* judge.c */
  long long ended, begun; /* the newest collective that is over, that has begun; 0: none */
  bool late;
  long long shift_ns; /* what its clock is ahead of the first rank's, estimated */
} hk_flight_file;

/* The files of one communicator, in the order of ranks. */
typedef struct hk_flight_comm {
  hk_flight_file **files;
  int nfiles, nranks;
  int *missing, nmissing;
  long long ended, newest;   /* the newest collective that is over on all, that has begun on one */
  long long differs;         /* the first collective in which calls differ; 0: none */
  const char *usual, *other; /* the two calls */
  int blamed, blamers;       /* the rank that most failures are about, -1: none; how many */
  const char *why;           /* the text of such a failure; NULL: none */
  const hk_flight_op *waits; /* the longest wait that had not ended; NULL: none */
  const hk_flight_file *waiter;
  int nlate;
  char verdict[1200]; /* empty: nothing to report */
} hk_flight_comm;

/* read.c. HK_ERR_ARGUMENT: the file is no flight record; the error has the place. Free it in any case. */
hk_status hk_flight_read(const char *path, hk_flight_file *out);
void hk_flight_file_free(hk_flight_file *f);
/* judge.c. `c` has files and nfiles; all else is filled in. */
hk_status hk_flight_judge(hk_flight_comm *c);
/* The operation of that number among collectives; NULL: the file does not have it. */
const hk_flight_op *hk_flight_collective(const hk_flight_file *f, long long number);
/* timeline.c: estimates shift_ns; then writes a timeline in Chrome's trace form. */
void hk_flight_align(hk_flight_comm *c);
void hk_flight_timeline(const hk_flight_comm *comms, int n, FILE *to);
