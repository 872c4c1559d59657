/* SPDX-License-Identifier: Apache-2.0 */
/* The programs of sends and receives in device memory. */
#include <string.h>
#include "../collectives/transfer.h"
#include "../program/program.h"
#include "endpoints.h"
#include "gpu.h"
#include "memory.h"

hk_status hk_gpu_endpoint_program(ncclComm_t c, int peer, bool sends, hk_gpu_endpoint *e) {
  hk_status rc = HK_OK;
  hk_gpu *g = hk_gpu_of(c);
  hk_program *program = NULL;
  char image[1024];
  void *at = NULL;
  if (e->device) return HK_OK;
  HK_TRY(hk_transfer_build(c->rank, c->nranks, peer, sends, &program), out);
  const size_t bytes = (HK_GPU_PROGRAM_AT + program->bytes + 15) & ~(size_t)15;
  if (bytes > sizeof image)
    HK_GIVE_UP(HK_FAIL(HK_ERR_INTERNAL, "the program of a transfer has %zu bytes", program->bytes), out);
  memset(image, 0, bytes);
  memcpy(image, &e->link, sizeof e->link);
  memcpy(image + HK_GPU_PROGRAM_AT, program, program->bytes);
  HK_TRY(hk_gpu_arena_get(g->memory, bytes, &at), out);
  HK_TRY(hk_device_copy(g->device, at, image, bytes, g->queue), out);
  e->device = at;
  e->program_bytes = (uint32_t)program->bytes;
out:
  hk_program_free(program);
  return rc;
}
