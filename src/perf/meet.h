/* SPDX-License-Identifier: Apache-2.0 */
/* How processes that a launcher started find each other: the inside of meet.c (where; processes other than 0),
 * meet_serve.c (process 0) and meet_file.c (the file in which process 0 writes its address). */
#ifndef PERF_MEET_H
#define PERF_MEET_H
#include <stdint.h>
#include "launch.h"

enum {
  PERF_MEET_SECONDS = 300,      /* then every process gives up */
  PERF_MEET_REPORT_SECONDS = 5, /* then a process reports for whom it waits */
  PERF_MEET_ANSWER_SECONDS = 5, /* limit for all data of the other end of a connection */
  PERF_MEET_ADDRESSES = 16,
  PERF_MEET_ADDRESS_BYTES = 256
};

typedef struct perf_meeting {
  char folder[512], name[64]; /* name not empty: process 0 writes a file, whose name begins like this */
  char path[1024];            /* process 0: that file */
  char hosts[PERF_MEET_ADDRESSES][PERF_MEET_ADDRESS_BYTES];
  int nhosts, port; /* port 0: any, if the file is used */
  uint64_t token;   /* hash of the job's name, or a random number from the file */
  int64_t stranger; /* the owner, another user, of a file with the right name; -1: no such file */
} perf_meeting;

/* The first bytes on a connection, and process 0's answer. An accepted process confirms the answer with one byte. */
typedef struct perf_greeting {
  char magic[8];
  uint64_t token;
  int32_t nprocs, proc;
  uint32_t user, accepted;
} perf_greeting;

void perf_meet_greeting(const perf_launch *l, const perf_meeting *m, perf_greeting *g);
/* Describes how the other side's greeting differs from `mine`; false: it does not. */
bool perf_meet_differs(const perf_greeting *mine, const perf_greeting *other, char *text, size_t room);
/* Describes where the processes meet. */
void perf_meet_where(const perf_launch *l, const perf_meeting *m, char *text, size_t room);

void perf_meet_serve(perf_launch *l, perf_meeting *m); /* process 0 */

void perf_meet_write(perf_meeting *m);
/* Reads the next file of that name that may be used: *turn counts them, from 0. False: there are no more. */
bool perf_meet_read(perf_meeting *m, int *turn);
#endif
