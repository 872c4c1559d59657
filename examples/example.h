/* SPDX-License-Identifier: Apache-2.0 */
/* What every example needs: OK(call) ends the program with the library's explanation when a call fails. */
#ifndef EXAMPLE_H
#define EXAMPLE_H
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

#define OK(call)                                                                                                       \
  do {                                                                                                                 \
    ncclResult_t result_ = (call);                                                                                     \
    if (result_ != ncclSuccess) {                                                                                      \
      /* The first text names the kind of error, the second says what happened and what to do. */                      \
      fprintf(stderr, "%s: %s: %s\n", #call, ncclGetErrorString(result_), ncclGetLastError(NULL));                     \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

/* Compares a result with what it must be, and ends the program when it is not. */
static inline void expect(const char *what, int rank, double got, double want) {
  if (got == want) return;
  fprintf(stderr, "rank %d: %s is %g and should be %g\n", rank, what, got, want);
  exit(1);
}
#endif
