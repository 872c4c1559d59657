/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan long=asan */
/* The simulator against published figures.  One model and one set of constants for all rows; each row names its
 * source. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include "../../src/decide/gpu.h"
#include "../../src/decide/protocol.h"
#include "../../src/sim/run.h"
#include "../../src/sim/sim.h"
#include "../../src/topo/synth.h"
#include "../support/suite.h"

enum { PERCENT = 15, GIB = 1 << 30, MIB = 1 << 20, NCCL_CHUNK = 480 << 10 };

typedef struct figure {
  const char *machine, *algorithm;
  hk_coll coll;
  size_t bytes;
  double low, high; /* GB/s of bus bandwidth; a range if the source gives one */
  const char *source;
} figure;

static const figure figures[] = {
    {"dgx-h100", "ring", HK_ALLREDUCE, GIB, 370, 370, "github.com/NVIDIA/nccl-tests/issues/212 (sjeaugey)"},
    {"dgx-h100", "nvls", HK_ALLREDUCE, GIB, 480, 480, "github.com/NVIDIA/nccl-tests/issues/212 (sjeaugey)"},
    {"7xh100:nvswitch4", "nvls", HK_ALLREDUCE, GIB, 460, 460, "github.com/NVIDIA/nccl/issues/1455"},
    {"6xh100:nvswitch4", "nvls", HK_ALLREDUCE, GIB, 440, 440, "github.com/NVIDIA/nccl/issues/1455"},
    {"5xh100:nvswitch4", "nvls", HK_ALLREDUCE, GIB, 420, 420, "github.com/NVIDIA/nccl/issues/1455"},
    {"2xh100:nvswitch4", "ring", HK_ALLREDUCE, GIB, 365, 370, "github.com/NVIDIA/nccl/issues/1455"},
    {"dgx-a100", "ring", HK_ALLREDUCE, GIB, 232.5, 232.5, "github.com/NVIDIA/nccl/issues/1048"},
    {"nodes=2 of dgx-a100", "ring", HK_ALLREDUCE, GIB, 192, 192, "github.com/NVIDIA/nccl/issues/812 (AddyLaddy)"},
    {"nodes=2 of dgx-h100 nic=1x400", "ring", HK_ALLREDUCE, GIB, 46, 48,
     "github.com/NVIDIA/nccl-tests/issues/290 (AddyLaddy)"},
    {"nodes=2 of 1xh100 nic=1x400", "ring", HK_ALLREDUCE, GIB, 46, 48,
     "github.com/NVIDIA/nccl-tests/issues/290 (AddyLaddy)"},
    {"nodes=6 of dgx-h100", "pairwise", HK_ALLTOALL, 128 * MIB, 48, 49,
     "github.com/NVIDIA/nccl-tests/issues/267 (AddyLaddy)"},
};

static double busbw(const hk_cluster *c, const char *algorithm, hk_coll coll, size_t bytes, int channels, size_t chunk,
                    double *us) {
  hk_simulator *x;
  hk_sim_result r;
  hk_sim_options o = {.algorithm = algorithm, .protocol = HK_PROTO_SIMPLE, .channels = channels, .chunk = chunk};
  ck_assert_msg(hk_simulator_new(&x, c, 0) == HK_OK, "%s", hk_last_error());
  ck_assert_msg(hk_sim_run(&r, x, coll, bytes, &o) == HK_OK, "%s", hk_last_error());
  double gbps = r.busbw;
  if (us) *us = r.us;
  hk_sim_result_clear(&r);
  hk_simulator_free(x);
  return gbps;
}

static double busbw_of(const char *machine, const char *algorithm, hk_coll coll, size_t bytes) {
  hk_cluster *c;
  ck_assert_msg(hk_cluster_from_string(&c, machine) == HK_OK, "%s", hk_last_error());
  double gbps = busbw(c, algorithm, coll, bytes, 0, 0, NULL);
  hk_cluster_free(c);
  return gbps;
}

TEST_LOOP(measured, HK_ARRAY_LENGTH(figures)) {
  const figure *f = &figures[_i];
  const char *all = getenv("CHECK_LONG");
  if (f->coll == HK_ALLTOALL && !(all && *all)) {
    printf("SKIP: %s of %zu bytes on %s takes half a minute: make check LONG=1 runs it\n", f->algorithm, f->bytes,
           f->machine);
    return;
  }
  double x = busbw_of(f->machine, f->algorithm, f->coll, f->bytes);
  printf("  %-30s %-9s %6.1f GB/s, published %.4g to %.4g: %s\n", f->machine, f->algorithm, x, f->low, f->high,
         f->source);
  ck_assert_msg(x >= f->low * (1 - PERCENT / 100.0) && x <= f->high * (1 + PERCENT / 100.0),
                "%s by %s: %.1f GB/s, published %.4g to %.4g (%s)", f->machine, f->algorithm, x, f->low, f->high,
                f->source);
}

/* Small messages whose kernel a replayed graph launches: NCCL's kernel for symmetric memory takes 2.3 us for 8 bytes on
 * 8 H800 or H200. Up to 16 KiB take at most 7 us: MSCCL++ has 6.5 there. */
TEST(small_messages_in_a_graph) {
  hk_cluster *c;
  hk_simulator *x;
  hk_sim_result r;
  const hk_sim_options graph = {.protocol = -1, .graph = true}, stream = {.protocol = -1};
  ck_assert_msg(hk_cluster_from_string(&c, "dgx-h100") == HK_OK, "%s", hk_last_error());
  ck_assert_msg(hk_simulator_new(&x, c, 0) == HK_OK, "%s", hk_last_error());
  for (size_t bytes = 8; bytes <= 16 << 10; bytes *= 2) {
    ck_assert(hk_sim_run(&r, x, HK_ALLREDUCE, bytes, &graph) == HK_OK);
    const double us = r.us;
    hk_sim_result_clear(&r);
    ck_assert(hk_sim_run(&r, x, HK_ALLREDUCE, bytes, &stream) == HK_OK);
    ck_assert_double_eq_tol(r.us - us, HK_GPU_GRAPH_SAVES_US, 1e-9);
    hk_sim_result_clear(&r);
    ck_assert_msg(us <= 7, "%zu bytes: %.2f us", bytes, us);
    if (bytes == 8) ck_assert_double_eq_tol(us, 2.3, 2.3 * PERCENT / 100);
  }
  hk_simulator_free(x);
  hk_cluster_free(c);
}

/* n GPUs on one switch, each by one link. */
static hk_cluster *star(int n, bool nvlink, float gbps, int sm, float memory) {
  hk_topo *t;
  hk_cluster *c;
  uint32_t cpu, hub, gpu;
  ck_assert(hk_topo_new(&t, "star") == HK_OK && hk_topo_add(t, HK_NODE_CPU, 0, &cpu) == HK_OK);
  t->nodes[cpu].numa = 0;
  ck_assert(hk_topo_add(t, HK_NODE_PCI, 1 << 12, &hub) == HK_OK);
  ck_assert(hk_topo_link(t, cpu, hub, HK_EDGE_PCI, 1, nvlink ? 32 : gbps, 0.25f) == HK_OK);
  uint32_t center = hub;
  if (nvlink) ck_assert(hk_topo_add(t, HK_NODE_NVS, 0, &center) == HK_OK);
  for (int i = 0; i < n; i++) {
    ck_assert(hk_topo_add(t, HK_NODE_GPU, (uint64_t)(i + 2) << 12, &gpu) == HK_OK);
    t->nodes[gpu].gpu = (hk_gpu_info){.dev = i, .sm = sm, .memory_gbps = memory, .gdr = true};
    t->nodes[gpu].numa = 0;
    ck_assert(hk_topo_link(t, gpu, hub, HK_EDGE_PCI, 1, 32, 0.25f) == HK_OK);
    if (nvlink) ck_assert(hk_topo_link(t, gpu, center, HK_EDGE_NVLINK, 18, gbps, 0.35f) == HK_OK);
  }
  ck_assert_msg(hk_topo_finish(t) == HK_OK, "%s", hk_last_error());
  ck_assert(hk_cluster_of(&c, t, 1) == HK_OK);
  return c;
}

/* The guides' arithmetic: a ring moves 2 (n - 1) / n of the message over every link.  1 GB, 8 GPUs: 54.7 ms over PCIe
 * 4.0 x16 at its nominal 32 GB/s a direction, 1.94 ms at 900 GB/s. In chunks of nearly NCCL's slots (512 KiB), which
 * divide the message evenly: with the library's, 32 lanes do not reach 900 GB/s. */
TEST(arithmetic) {
  static const struct {
    bool nvlink;
    float gbps;
    int sm, channels;
    float memory;
    double ms;
  } rows[] = {{false, 32, 80, 16, 2039, 54.7}, {true, 900, 100, 32, 8000, 1.94}};
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    double us;
    hk_cluster *c = star(8, rows[i].nvlink, rows[i].gbps, rows[i].sm, rows[i].memory);
    busbw(c, "ring", HK_ALLREDUCE, 1000000000, rows[i].channels, NCCL_CHUNK, &us);
    printf("  1 GB over 8 GPUs at %g GB/s: %.3g ms, by hand %.3g ms\n", rows[i].gbps, us / 1000, rows[i].ms);
    ck_assert_msg(fabs(us / 1000 / rows[i].ms - 1) <= PERCENT / 100.0, "%.3g ms instead of %.3g", us / 1000,
                  rows[i].ms);
    hk_cluster_free(c);
  }
}

/* GPUs on two PCIe switches and two sockets: an order of magnitude under the NVSwitch box. */
TEST(two_sockets) {
  double box = busbw_of("8xh100:pcie2", "ring", HK_ALLREDUCE, GIB);
  double nvswitch = busbw_of("dgx-h100", "ring", HK_ALLREDUCE, GIB);
  printf("  8 H100 on two PCIe switches and sockets: %.1f GB/s, with NVSwitch %.1f\n", box, nvswitch);
  ck_assert_double_ge(nvswitch / box, 10);
  ck_assert_double_le(nvswitch / box, 30);
}

/* A queue that grows while it is in use, with its first element in the middle of its memory. */
TEST(queue_grows) {
  hk_times q = {0};
  double pushed = 0, popped = 0;
  for (int round = 0; round < 20; round++) {
    for (int i = 0; i < 7; i++) ck_assert_int_eq(hk_times_push(&q, pushed++), HK_OK);
    for (int i = 0; i < 3; i++, hk_times_pop(&q)) ck_assert_double_eq(hk_times_first(&q), popped++);
  }
  ck_assert_uint_eq(q.count, 80);
  for (; q.count; hk_times_pop(&q)) ck_assert_double_eq(hk_times_first(&q), popped++);
  free(q.at);
}

int main(void) { return suite_main("sim_published", .timeout = 120); }
