/* SPDX-License-Identifier: Apache-2.0 */
/* The rate of the executor within a GPU if it never waits: copies and sums. */
#include <string.h>
#include "../../base/wait.h" /* hk_now_ns */
#include "../../gpu/code.h"
#include "../../kernels/cuda/work.h"
#include "../../kernels/gpu_image.h"
#include "../../kernels/reduce.h"
#include "../../program/builder.h"
#include "bandwidth.h"

enum { ROUNDS = 3, WAVES = 8 };

typedef struct bench {
  const hk_bw *b;
  hk_gpu_code *code;
  hk_memory in, out, state, program[2]; /* of a copy; of a reduction */
} bench;

/* A program of a rank of two that waits for no rank: out <- in[0], or in[0] + in[1]. */
static hk_status kernels_upload(bench *x, bool adds) {
  hk_status rc = HK_OK;
  hk_device *d = x->code->device;
  hk_memory *to = &x->program[adds];
  const hk_operand out = hk_out(0, 0), in[2] = {hk_in(0, 0), hk_in(1, 0)};
  hk_program *p = NULL;
  hk_builder *builder;
  HK_TRY(hk_builder_new(&builder, &(hk_build){.coll = HK_REDUCE_SCATTER, .nranks = 2}), out);
  hk_build_lane(builder);
  hk_build_move(builder, HK_INSTR_FINAL, &out, 1, in, adds ? 2 : 1);
  HK_TRY(hk_builder_finish(builder, "alone", &p), out);
  HK_TRY(d->ops->memory->alloc(d, p->bytes, to), out);
  HK_TRY(d->ops->copy(d, to->base, p, p->bytes, NULL), out);
  rc = d->ops->wait(d, NULL);
out:
  hk_program_free(p);
  return rc;
}

static hk_status kernels_fill(const bench *x, hk_dtype type, bool adds, hk_gpu_batch *batch) {
  const unsigned most = x->code->resident < UINT16_MAX ? x->code->resident : UINT16_MAX, blocks = most ? most : 1;
  const size_t bytes = x->b->bytes, chunk = (bytes / blocks / WAVES + 1023) & ~(size_t)1023;
  hk_reducer r;
  HK_OR_RETURN(hk_reducer_init(&r, type, HK_SUM, 2, NULL));
  *batch = (hk_gpu_batch){.works = 1, .end = {blocks}};
  batch->work[0] = (hk_gpu_work){.program = x->program[adds].base,
                                 .in = x->in.base,
                                 .out = x->out.base,
                                 .sizes = hk_sizes_of(HK_PART_SPLIT, 2 * bytes, bytes, chunk ? chunk : 1024),
                                 .state = x->state.base,
                                 .reducer = {.dtype = r.dtype, .op = r.op, .elem_bytes = r.elem_bytes, .reduces = adds},
                                 .channels = (uint16_t)blocks,
                                 .orders = 1,
                                 .lanes = 1};
  return HK_OK;
}

static hk_status kernels_timed(const bench *x, hk_dtype type, bool adds, double *rate) {
  hk_device *d = x->code->device;
  hk_gpu_batch batch;
  HK_OR_RETURN(kernels_fill(x, type, adds, &batch));
  const hk_kernel_launch l = {
      .function = x->code->batch, .blocks = batch.end[0], .threads = x->code->threads, .param = &batch};
  for (int round = 0; round <= ROUNDS; round++) { /* the first one warms up */
    const int runs = round ? x->b->copies : 1;
    const uint64_t begin = hk_now_ns();
    for (int i = 0; i < runs; i++) HK_OR_RETURN(d->ops->kernel->launch(d, &l, NULL));
    HK_OR_RETURN(d->ops->wait(d, NULL));
    const double ns = (double)(hk_now_ns() - begin) + 1, moved = (double)x->b->bytes * (adds ? 3 : 2) * runs / ns;
    if (round && moved > *rate) *rate = moved;
  }
  return HK_OK;
}

static hk_status kernels_measure(hk_bw *b, int gpu) {
  static const hk_dtype types[] = {[HK_BW_COPY] = HK_F32, [HK_BW_FLOAT] = HK_F32, HK_F16, HK_BF16};
  hk_status rc = HK_OK;
  bench x = {.b = b};
  HK_TRY(hk_gpu_code_get(gpu, &x.code), out);
  hk_device *d = x.code->device;
  HK_TRY(d->ops->memory->alloc(d, 2 * b->bytes, &x.in), out);
  HK_TRY(d->ops->memory->alloc(d, b->bytes, &x.out), out);
  HK_TRY(d->ops->memory->alloc_host(d, sizeof(hk_gpu_state), &x.state), out);
  for (int adds = 0; adds < 2; adds++) HK_TRY(kernels_upload(&x, adds), out);
  for (int k = 0; k < HK_BW_KERNELS; k++) HK_TRY(kernels_timed(&x, types[k], k != HK_BW_COPY, &b->kernel[gpu][k]), out);
out:
  if (x.code) {
    hk_memory *all[] = {&x.in, &x.out, &x.state, &x.program[0], &x.program[1]};
    for (size_t i = 0; i < HK_ARRAY_LENGTH(all); i++)
      (void)x.code->device->ops->memory->release(x.code->device, all[i]);
  }
  hk_gpu_code_put(x.code);
  return rc;
}

hk_status hk_bw_run_kernels(hk_bw *b) {
  for (int g = 0; g < b->ngpus; g++)
    for (int k = 0; k < HK_BW_KERNELS; k++) b->kernel[g][k] = -1;
  if (!hk_gpu_image_here()) return HK_OK;
  for (int g = 0; g < b->ngpus; g++) HK_OR_RETURN(kernels_measure(b, g));
  return HK_OK;
}
