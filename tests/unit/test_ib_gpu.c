/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* GPU memory for RDMA cards: the emulated CUDA driver's, registered with the fake libibverbs.so.1 in the ways that
 * both let. */
#include <errno.h>
#include "../../src/transport/net/ib_gdr.h"
#include "../support/cudaemu.h"
#include "../support/fake_rdma.h"
#include "../support/suite.h"

static const struct {
  const char *driver, *enable; /* does the driver have dma-bufs, are they wanted */
  int refusal;                 /* of the card */
  bool module;
  hk_gdr_method method;
  const char *words, *other;
} pairs[] = {
    {"1", "1", 0, false, HK_GDR_DMABUF, "", ""},
    {"1", "1", EOPNOTSUPP, true, HK_GDR_PEERMEM, "knows no dma-buf", ""},
    {"1", "1", ENOMEM, false, HK_GDR_STAGED, "Cannot allocate memory", "nvidia-peermem: it is not loaded"},
    {"1", "0", 0, true, HK_GDR_PEERMEM, "NCCL_DMABUF_ENABLE=0", ""},
    {"0", "1", 0, true, HK_GDR_PEERMEM, "open kernel modules", ""},
    {"0", "1", 0, false, HK_GDR_STAGED, "open kernel modules", "nvidia-peermem: it is not loaded"},
};

START_TEST(finds_the_way) {
  fake_verbs_state *v = rdma_begin(1);
  hk_device *gpu;
  hk_memory memory;
  hk_ib_gpu_memory m;
  char why[160];
  int n;
  setenv("CUDAEMU_DMABUF", pairs[_i].driver, 1);
  emu_start(1);
  rdma_param("NCCL_DMABUF_ENABLE", pairs[_i].enable);
  const hk_ibv *api = hk_ibv_load(why, sizeof why);
  ck_assert_msg(api != NULL, "%s", why);
  ck_assert_int_eq(hk_cuda_open(0, &gpu), HK_OK);
  ck_assert_int_eq(gpu->ops->alloc(gpu, 1 << 20, &memory), HK_OK);
  hk_ibv_device **list = api->get_device_list(&n);
  hk_ibv_context *card = api->open_device(list[0]);
  hk_ibv_pd *pd = api->alloc_pd(card);
  /* All of the address space, but for dma-bufs, is memory of a GPU. */
  v->gpu = (char *)4096;
  v->gpu_bytes = (uint64_t)1 << 48;
  v->peermem = pairs[_i].module;
  v->dmabuf_refusal = pairs[_i].refusal;
  hk_ib_gpu_register(api, pd, gpu, memory.base, 1 << 20, &m);
  ck_assert_int_eq(m.method, pairs[_i].method);
  ck_assert_int_eq(m.mr != NULL, m.method != HK_GDR_STAGED);
  ck_assert_msg(strstr(m.why, pairs[_i].words) && strstr(m.why, pairs[_i].other), "%s", m.why);
  ck_assert_uint_eq(v->dmabufs, m.method == HK_GDR_DMABUF);
  if (m.mr) api->dereg_mr(m.mr);
  ck_assert_int_eq(hk_ib_gpu_probe(api, card, gpu, memory.base, &m), HK_OK);
  ck_assert_int_eq(m.method, pairs[_i].method);
  ck_assert_int_eq(v->nmrs, 0);
  api->dealloc_pd(pd);
  api->close_device(card);
  api->free_device_list(list);
  ck_assert_int_eq(gpu->ops->release(gpu, &memory), HK_OK);
  gpu->ops->close(gpu);
  rdma_end(v);
}
END_TEST

int main(void) {
  TCase *t = tcase_create("ib_gpu");
  tcase_set_timeout(t, 60);
  tcase_add_loop_test(t, finds_the_way, 0, (int)HK_ARRAY_LENGTH(pairs));
  return suite_run_one("ib_gpu", t);
}
