/* SPDX-License-Identifier: Apache-2.0 */
/* Communication during computation: an allreduce on a host stream returns at once and goes on in the stream's own
 * thread, as it would with a CUDA stream on a GPU.
 *
 *   make examples
 *   build/gcc/examples/overlap
 *
 * By hand it needs -lm, for sinf. */
#include <hocket.h>
#include <math.h>
#include "example.h"

enum { RANKS = 2, LAYERS = 4, COUNT = 1 << 18 };

/* Stands for the backward pass of one layer: fills its gradient. */
static void compute(float *gradient, int rank, int layer) {
  for (int i = 0; i < COUNT; i++) gradient[i] = (float)((rank + 1) * (layer + 1)) + 0 * sinf((float)i);
}

int main(void) {
  ncclComm_t comm[RANKS];
  hocketStream_t stream[RANKS];
  OK(ncclCommInitAll(comm, RANKS, NULL));
  for (int r = 0; r < RANKS; r++) OK(hocketStreamCreate(&stream[r]));

  float *gradient[RANKS][LAYERS];
  for (int layer = LAYERS - 1; layer >= 0; layer--) {
    for (int r = 0; r < RANKS; r++) {
      gradient[r][layer] = malloc(COUNT * sizeof(float));
      compute(gradient[r][layer], r, layer);
    }
    /* While this layer's gradients are averaged, the next layer is computed.  The buffer belongs to the library until
     * the stream has been synchronized. */
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++)
      OK(ncclAllReduce(gradient[r][layer], gradient[r][layer], COUNT, ncclFloat32, ncclAvg, comm[r],
                       hocketStreamAsCuda(stream[r])));
    OK(ncclGroupEnd());
  }
  for (int r = 0; r < RANKS; r++) OK(hocketStreamSynchronize(stream[r]));

  for (int r = 0; r < RANKS; r++)
    for (int layer = 0; layer < LAYERS; layer++) {
      for (int i = 0; i < COUNT; i++)
        expect("a gradient", r, (double)gradient[r][layer][i], (RANKS + 1) / 2.0 * (layer + 1));
      free(gradient[r][layer]);
    }
  printf("%d layers of %d gradients were averaged over %d ranks while the next ones were computed\n", LAYERS, COUNT,
         RANKS);

  for (int r = 0; r < RANKS; r++) {
    OK(hocketStreamDestroy(stream[r]));
    OK(ncclCommDestroy(comm[r]));
  }
  return 0;
}
