/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of the kernels in kernels.cu; NVIDIA's headers come first. */
#ifndef HK_TESTS_DEVICE_PARAMS_H
#define HK_TESTS_DEVICE_PARAMS_H

enum { BLOCKS = 3, THREADS = 64, VECTORS = 40, ROUNDS = 5 }; /* vectors of 16 bytes, a round */

struct kernel_params {
  ncclDevComm comm;
  ncclWindow_t in, out;
  ncclTeam half; /* a part of the LSA team, with barriers of its own */
  ncclLsaBarrierHandle halfBarrier;
  ncclMultimemHandle halfMultimem; /* empty: there is no multicast memory */
  ncclLLA2AHandle exchange;
  void *input; /* this rank's memory in the window `in` */
  int multimem;
  uint32_t *bad; /* counts what is wrong */
};
#endif
