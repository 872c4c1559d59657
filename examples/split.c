/* SPDX-License-Identifier: Apache-2.0 */
/* Splitting a communicator: a grid of ranks gets one communicator a row and one a column.
 *
 *   make examples
 *   build/gcc/examples/split
 *
 * Ranks that give the same colour land in one new communicator, in the order of their keys. */
#include "example.h"

enum { ROWS = 2, COLUMNS = 3, RANKS = ROWS * COLUMNS };

/* Adds up one number a rank over each rank's communicator of `comm`. */
static void add_up(ncclComm_t *comm, const int *in, int *out) {
  OK(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) OK(ncclAllReduce(&in[r], &out[r], 1, ncclInt32, ncclSum, comm[r], NULL));
  OK(ncclGroupEnd());
}

int main(void) {
  ncclComm_t world[RANKS], row[RANKS], column[RANKS];
  OK(ncclCommInitAll(world, RANKS, NULL));

  /* Split is collective: all ranks of the parent take part.  A rank that wants no new communicator would give the
   * colour NCCL_SPLIT_NOCOLOR. */
  OK(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) OK(ncclCommSplit(world[r], r / COLUMNS, r, &row[r], NULL));
  OK(ncclGroupEnd());
  OK(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) OK(ncclCommSplit(world[r], r % COLUMNS, r, &column[r], NULL));
  OK(ncclGroupEnd());

  int number[RANKS], row_sum[RANKS], column_sum[RANKS];
  for (int r = 0; r < RANKS; r++) number[r] = 1 << r;
  add_up(row, number, row_sum);
  add_up(column, number, column_sum);

  for (int r = 0; r < RANKS; r++) {
    int in_row, in_column, want_row = 0, want_column = 0;
    OK(ncclCommUserRank(row[r], &in_row));
    OK(ncclCommUserRank(column[r], &in_column));
    expect("the place in the row", r, in_row, r % COLUMNS);
    expect("the place in the column", r, in_column, r / COLUMNS);
    for (int other = 0; other < RANKS; other++) {
      if (other / COLUMNS == r / COLUMNS) want_row += number[other];
      if (other % COLUMNS == r % COLUMNS) want_column += number[other];
    }
    expect("the row's sum", r, row_sum[r], want_row);
    expect("the column's sum", r, column_sum[r], want_column);
    printf("rank %d at row %d, column %d: row sum %2d, column sum %2d\n", r, in_column, in_row, row_sum[r],
           column_sum[r]);
  }

  for (int r = 0; r < RANKS; r++) {
    OK(ncclCommDestroy(row[r]));
    OK(ncclCommDestroy(column[r]));
    OK(ncclCommDestroy(world[r]));
  }
  return 0;
}
