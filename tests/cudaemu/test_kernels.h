/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of the kernels in test_kernels.cu; hk_vec is declared before. */
#ifndef HK_CUDAEMU_TEST_KERNELS_H
#define HK_CUDAEMU_TEST_KERNELS_H
#include <stdint.h>
typedef struct barriers_params {
  uint32_t *out;
  uint32_t rounds;
} barriers_params;
typedef struct warps_params {
  uint32_t *out;
} warps_params;
typedef struct publish_params {
  hk_vec *data;
  uint32_t *flag, *stale;
  uint32_t vectors, value, fence;
} publish_params;
/* What ncclDevCommCreate gives, as far as the kernel needs it. */
typedef struct lsa_params {
  char *in, *out;           /* rank 0's part of two windows */
  char *buffer;             /* and of the resource buffer */
  uint32_t stride_4g;       /* from rank to rank */
  uint32_t barriers, place; /* of the buffer, in units of 128 bytes */
  int rank, ranks;
  char *all_in, *all_out, *all_buffer; /* the same in multicast memory; NULL: there is none */
  uint32_t count, rounds;
  uint32_t *bad;
} lsa_params;
typedef struct halves_params {
  uint16_t *back;
} halves_params;
#endif
