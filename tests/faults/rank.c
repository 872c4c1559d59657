/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of a job in which a fault happens.  It says what it saw as one line of facts; matrix.py judges them.
 *
 *   rank FAULT OPERATION RANK VICTIM FOLDER */
#include "rank.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static void stage(const run *w, const char *what) {
  printf("STAGE rank %d: %s\n", w->rank, what);
  fflush(NULL);
}

static void die(const run *w, ncclResult_t rc, const char *what) {
  printf("BROKEN rank %d: %s gives %d: %s\n", w->rank, what, rc, ncclGetLastError(NULL));
  fflush(NULL);
  _exit(4);
}

/* A communicator of the ranks that are left, which works. */
static ncclResult_t fresh(run *w, const char *name) {
  int rank = 0, n = ranks_left(w, &rank);
  ncclComm_t c = NULL;
  ncclResult_t rc = init_comm(w, name, rank, n, &c);
  if (rc == ncclSuccess) rc = op_all(w, c, rank, n);
  if (rc != ncclSuccess) {
    printf("rank %d: the communicator %s gives %d: %s\n", w->rank, name, rc, ncclGetLastError(c));
    if (c) ncclCommAbort(c);
    return rc;
  }
  return ncclCommDestroy(c);
}

static void *caller(void *arg) {
  perform(arg);
  return NULL;
}

/* Whatever is left of the job's communicator ends; gives how long that took, and where it failed the code. */
static int close_down(run *w, ncclResult_t *rc) {
  int64_t begin = now_ns();
  *rc = ncclSuccess;
  if (w->comm) *rc = w->code == ncclSuccess ? ncclCommDestroy(w->comm) : ncclCommAbort(w->comm);
  w->comm = NULL;
  return (int)((now_ns() - begin) / 1000000);
}

static void quote(const char *text) {
  putchar('"');
  for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
    if (*p == '"' || *p == '\\') putchar('\\');
    if (*p >= ' ' && *p < 127)
      putchar(*p);
    else
      printf("?");
  }
  putchar('"');
}

static void print_counts(const char *name, const counts *m) {
  printf(", \"%s\": {\"fds\": %d, \"sockets\": %d, \"threads\": %d, \"maps\": %d, \"shared\": %d, \"kb\": %ld}", name,
         m->fds, m->sockets, m->threads, m->maps, m->shared, m->kb);
}

/* The fault in a communicator that has worked before, where the operation needs one. */
static void faulty(run *w) {
  bool cold = w->fault == FAULT_enomem || w->fault == FAULT_emfile;
  ncclResult_t rc;
  inject_sockets(w, 0);
  if (w->op != OP_init && (rc = init_comm(w, "job", w->rank, w->n, &w->comm)) != ncclSuccess) die(w, rc, "init");
  /* A faster rank's first data connection must not count as one of the init's. */
  meet(w, 7);
  inject_sockets(w, 1);
  meet(w, 8);
  for (int i = 0; i < 2 && w->op != OP_init && !cold; i++) {
    call k = op_call(w, i);
    if (w->op != OP_destroy && (rc = op_run(w, w->comm, &k, i)) != ncclSuccess)
      die(w, rc, "the operation before the fault");
    if (w->op == OP_destroy && (rc = op_next(w, w->comm)) != ncclSuccess) die(w, rc, "an operation before the fault");
  }
  w->calls = 0;
  meet(w, 2);
  stage(w, "the fault");
  void *result = NULL;
  pthread_create(&w->caller, NULL, caller, w);
  pthread_join(w->caller, &result);
  if (result == PTHREAD_CANCELED) w->code = NO_CODE;
}

int main(int argc, char **argv) {
  static const char *const faults[] = {
#define FAULT(name, kind, outcome, seconds, what) #name,
#include "faults.def"
  };
  static const char *const operations[] = {
#define OPERATION(name, repeats, what) #name,
#include "operations.def"
  };
  if (argc != 6) return 2;
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* a matrix that is interrupted leaves nothing */
  run w = {.rank = atoi(argv[3]), .victim = atoi(argv[4]), .n = RANKS, .folder = argv[5], .where = ""};
  while (w.fault < FAULTS && strcmp(faults[w.fault], argv[1])) w.fault++;
  while (w.op < OPERATIONS && strcmp(operations[w.op], argv[2])) w.op++;
  if (w.fault == FAULTS || w.op == OPERATIONS) return 2;
  w.board = board_open(w.folder);
  w.in = malloc(LARGE * 4 + 4096), w.out = malloc(LARGE * 4 + 4096);
  memset(w.in, 1, LARGE * 4 + 4096), memset(w.out, 1, LARGE * 4 + 4096);
  inject_before(&w);
  inject_warm();
  bool two_jobs = w.fault == FAULT_job;
  ncclResult_t rc;
  stage(&w, "before");
  if (!two_jobs && (rc = fresh(&w, "before")) != ncclSuccess) die(&w, rc, "the communicator before");
  meet(&w, 0);
  counts before = measure();
  meet(&w, 1);
  faulty(&w);
  stage(&w, "its end");
  /* Every rank has its result without the help of another's ncclCommAbort; but who makes no call may be what is waited
   * for, and the rank that a shrink leaves out waits for the next call of ranks whose shrink has failed. */
  bool first = w.code == NO_CODE || w.op == OP_shrink || (w.fault == FAULT_extra && w.op == OP_idle);
  if (!first) meet(&w, 6);
  int closing = close_down(&w, &rc);
  if (first) meet(&w, 6);
  if (w.bad) munmap(w.bad, LARGE * 4 + 4096);
  meet(&w, 3);
  inject_undo(&w);
  meet(&w, 4);
  stage(&w, "afterwards");
  long wrong = w.wrong;
  /* Two jobs make no communicator together; and the root of a failed NCCL_COMM_ID reports the failure to late ranks for
   * 10 s. */
  ncclResult_t after = two_jobs ? ncclSuccess : fresh(&w, "after");
  meet(&w, 5);
  counts now = measure_settled(&before, 20000);
  int64_t struck = atomic_load(&w.board->struck), since = w.called > struck ? w.called : struck;
  printf("FACTS {\"rank\": %d, \"code\": %d, \"where\": ", w.rank, (int)w.code);
  quote(w.where);
  printf(", \"text\": "), quote(w.text);
  printf(", \"ms\": %lld, \"wrong\": %ld, \"closing\": %d, \"closed\": %d, \"after\": %d, \"hits\": %d, \"calls\": %d",
         (long long)(w.ended - since) / 1000000, wrong, closing, rc, after, w.hits, w.calls);
  printf(", \"wrong_after\": %ld", w.wrong - wrong);
  print_counts("before", &before), print_counts("now", &now);
  puts("}");
  return 0;
}
