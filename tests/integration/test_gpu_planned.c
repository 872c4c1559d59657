/* SPDX-License-Identifier: Apache-2.0 */
/* What a job chooses on emulated GPUs of two hosts is what `hocket plan` says of two such hosts.
 * check: timeout=300 notsan */
#include <math.h>
#include "../../src/base/param.h"
#include "../../src/decide/select.h"
#include "../../src/run/selection.h"
#include "../../src/tools/inputs.h"
#include "../../src/tools/machine.h"
#include "../../src/tools/tools.h"
#include "../../src/topo/detect.h"
#include "../../src/topo/synth.h"
#include "../../src/topo/topo.h"
#include "../support/gpu.h"
#include "../support/suite.h"

enum { HOSTS = 2, GPUS = 8, FIRST_BUS = 0x10 }; /* FIRST_BUS: of the emulated driver */

enum { H100 = 4 }; /* in `machines` */
static const struct {
  const char *words, *sm, *multicast;
} machines[] = {{"dgx-v100", "70", "0"}, {"dgx-a100", "80", "0"},
                {"p4d", "80", "0"},      {"8xa100:nvswitch6 cpu=2xrome switch=4 nic=16x200", "80", "0"},
                {"dgx-h100", "90", "1"}, {"8xh100:nvswitch4 cpu=2xsapphirerapids switch=4 nic=4x400", "90", "1"},
                {"pcie-2s", "89", "0"}};

/* In place of the command's, for src/tools/inputs.c. */
const hk_settings *hk_tool_settings(void) { return hk_settings_now(); }
int hk_tool_wrong(const char *format, ...) { ck_abort_msg("%s", format); }
int hk_tool_failed(hk_status rc) { ck_abort_msg("%d: %s", rc, hk_last_error()); }
int hk_tool_machine(hk_cluster **out, const char *words, const char *file) {
  (void)file;
  ck_assert_msg(hk_cluster_from_string(out, words) == HK_OK, "%s", hk_last_error());
  return 0;
}

/* In place of the library's: a host of the machine that the test names, with the emulated driver's GPUs. */
hk_status hk_topo_detect(hk_topo **out, unsigned flags, const char *sys) {
  (void)flags, (void)sys;
  hk_cluster *c;
  hk_tool_machine(&c, getenv("MACHINE"), NULL);
  hk_topo *t = *out = c->kinds[0];
  for (uint32_t i = 0; i < GPUS; i++) t->nodes[t->first_of[HK_NODE_GPU] + i].id = (uint64_t)(FIRST_BUS + i) << 12;
  c->nkinds = 0;
  hk_cluster_free(c);
  return HK_OK;
}

static void compare(int rank, const hk_machine *running, const hk_machine *planned) {
  for (int coll = 0; coll < HK_SENDRECV; coll++)
    for (size_t bytes = 64; bytes <= (size_t)1 << 30; bytes *= 4) {
      hk_decision a, b;
      ck_assert_int_eq(hk_select(planned, NULL, (hk_coll)coll, bytes, &a), HK_OK);
      ck_assert_int_eq(hk_select(running, NULL, (hk_coll)coll, bytes, &b), HK_OK);
      ck_assert_msg(a.algorithm == b.algorithm && a.protocol == b.protocol && a.channels == b.channels &&
                        fabs(a.us - b.us) < 1e-6 * a.us,
                    "%s of %zu bytes: planned are %s, protocol %d, %d channels, %f us; rank %d has %s, %d, %d, %f us",
                    hk_coll_name((hk_coll)coll), bytes, hk_decision_algorithm(&a), a.protocol, a.channels, a.us, rank,
                    hk_decision_algorithm(&b), b.protocol, b.channels, b.us);
    }
}

static void choose_as_planned(gpu_place *p) {
  char words[200];
  hk_inputs planned;
  snprintf(words, sizeof words, "nodes=%d of %s", HOSTS, getenv("MACHINE"));
  ck_assert_int_eq(hk_inputs_open(&planned, words, NULL, 0), 0);
  for (int r = p->first; r < p->first + p->each; r++) compare(r, hk_selection_machine(p->g.comm[r]), &planned.machine);
  hk_inputs_close(&planned);
}

static void use_machine(int i) {
  setenv("MACHINE", machines[i].words, 1);
  setenv("CUDAEMU_SM", machines[i].sm, 1);
  setenv("CUDAEMU_MULTICAST", machines[i].multicast, 1);
}

TEST_LOOP(planned, HK_ARRAY_LENGTH(machines)) {
  use_machine(_i);
  setenv("CUDAEMU_SMS", "132", 1);
  unsetenv("NCCL_MAX_NCHANNELS");
  ck_assert_int_eq(run_processes(HOSTS, GPUS, GPUS, HOSTS, choose_as_planned), 0);
}

/* LL128 inside the hosts; between them its slots go as Simple's. */
static void collectives(gpu_place *p) {
  ck_assert(hk_selection_machine(p->g.comm[p->first])->protocols >> HK_PROTO_LL128 & 1u);
  for (hk_coll coll = HK_ALLREDUCE; coll < HK_SENDRECV; coll++) {
    if (hk_coll_pairs(coll)) continue; /* it has the protocol Simple alone */
    gpu_call c = {.coll = coll, .count = 1500, .type = ncclFloat32, .op = ncclSum, .root = p->g.n - 1};
    each_call(p, &c, 2);
  }
}
TEST(wide_lines) {
  use_machine(H100);
  setenv("NCCL_PROTO", "LL128", 1);
  ck_assert_int_eq(run_processes(HOSTS, 2, 4, HOSTS, collectives), 0);
}

int main(void) { return gpu_main("gpu_planned", .timeout = 100); }
