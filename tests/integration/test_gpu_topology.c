/* SPDX-License-Identifier: Apache-2.0 */
/* Emulated GPUs in machines from a file (NCCL_TOPO_FILE): what goes over NVLink, and what that and PCI cost.
 * check: timeout=300 notsan */
#include "../../src/gpu/gpu.h"
#include "../../src/gpu/process_group.h"
#include "../support/gpu.h"
#include "../support/suite.h"

static char dir[64];

typedef enum machine { MESH, PCI, CIRCLE } machine;

/* NVLinks between all, none, or from 0 to 2 to 1 to 3 to 0. */
static void write_machine(machine m) {
  static const bool joined[][MACHINE_GPUS][MACHINE_GPUS] = {
      [MESH] = {{0, 1, 1, 1}, {1, 0, 1, 1}, {1, 1, 0, 1}, {1, 1, 1, 0}},
      [PCI] = {{0}},
      [CIRCLE] = {{0, 0, 1, 1}, {0, 0, 1, 1}, {1, 1, 0, 0}, {1, 1, 0, 0}},
  };
  char path[96];
  snprintf(path, sizeof path, "%s/machine.xml", dir);
  gpu_machine_write(path, joined[m]);
}

/* The last line of the log with the text; empty: none. */
static void find_line(const char *text, char *line, size_t bytes) {
  char path[96], one[1024];
  snprintf(path, sizeof path, "%s/log", dir);
  line[0] = 0;
  FILE *f = fopen(path, "r");
  while (f && fgets(one, sizeof one, f))
    if (strstr(one, text)) snprintf(line, bytes, "%s", strstr(one, text));
  if (f) fclose(f);
}

static void begin(machine m) {
  char path[96];
  snprintf(dir, sizeof dir, "/tmp/hocket-gpus-XXXXXX");
  ck_assert_ptr_nonnull(mkdtemp(dir));
  snprintf(path, sizeof path, "%s/log", dir);
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_FILE", path, 1);
  setenv("NCCL_DEBUG_SUBSYS", "INIT,P2P,GRAPH,TUNING", 1);
  setenv("HOCKET_SLOT_BYTES", "131072", 1);
  setenv("CUDAEMU_DEVICES", "4", 1);
  write_machine(m);
}

static void end(void) {
  static const char *const names[] = {"log", "machine.xml", "graph.xml"};
  char path[96];
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(names); i++) {
    snprintf(path, sizeof path, "%s/%s", dir, names[i]);
    unlink(path);
  }
  rmdir(dir);
}

static void run_all_collectives(gpu_ranks *g) {
  for (hk_coll coll = HK_ALLREDUCE; coll < HK_COLL_COUNT; coll++) {
    if (coll == HK_ALLTOALLV) continue; /* it has the protocol Simple alone: test_gpu_vcoll */
    gpu_call c = {.coll = coll, .count = 7001, .type = ncclFloat32, .op = ncclSum, .root = 1};
    gpu_fill(g, &c);
    for (int k = 0; k < 2; k++) gpu_group(g, &c);
    gpu_check(g, &c);
  }
}

TEST_LOOP(machines, 2) {
  char line[512];
  float us, next, all;
  begin((machine)_i);
  setenv("NCCL_PROTO", "LL128", 1);
  gpu_ranks *g = gpu_begin(4, 4, 1 << 18);
  run_all_collectives(g);
  gpu_close(g);
  find_line("GPUs by the topology", line, sizeof line);
  ck_assert_int_eq(sscanf(line, "GPUs by the topology: %f us, %f GB/s to the next, %f GB/s to all", &us, &next, &all),
                   3);
  if (_i == 0)
    ck_assert_msg(next > 80 && all > 150 && us < 2, "%s", line); /* six links to each, eighteen in all */
  else
    ck_assert_msg(next > 5 && next < 30 && all < 30 && us > 0.5, "%s", line);
  find_line("over NVLink", line, sizeof line);
  ck_assert_int_eq(line[0] != 0, _i == 0);
  find_line("none of the allowed protocols is there", line, sizeof line); /* lines of 128 bytes are for NVLink */
  ck_assert_int_eq(line[0] == 0, _i == 0);
  end();
}

/* Ranks of one GPU: no link is between them, and none has a rate. */
TEST(shared) {
  char line[512];
  begin(MESH);
  gpu_ranks *g = gpu_begin(2, 1, 4096);
  gpu_close(g);
  find_line("GPUs by the topology", line, sizeof line);
  ck_assert_ptr_nonnull(strstr(line, "us, a shared GPU's memory to the next, a shared GPU's memory to all"));
  end();
}

#define RINGS "allreduce:ring;allgather:ring;reducescatter:ring;broadcast:chain;reduce:chain"
#define TREES "allreduce:tree;broadcast:tree;reduce:tree"
static const struct {
  machine machine;
  const char *algo, *line; /* of the ring orders */
  bool file;               /* they come from a file, turned round */
} orders[] = {{CIRCLE, RINGS, "Channel 00/04 : 0 2 1 3", false},
              {MESH, RINGS, "Channel 01/04 : 0 3 2 1", false},
              {MESH, TREES, "Channel 01/04 : 0 3 2 1", false},
              {CIRCLE, RINGS, "Channel 01/02 : 2 1 3 0", true}};

/* Rings follow the NVLinks, each channel its own order. */
TEST_LOOP(ring_orders, HK_ARRAY_LENGTH(orders)) {
  char line[512], path[96];
  begin(orders[_i].machine);
  setenv("NCCL_ALGO", orders[_i].algo, 1);
  setenv("NCCL_MIN_NCHANNELS", "3", 1);
  if (orders[_i].file) {
    snprintf(path, sizeof path, "%s/graph.xml", dir);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs("<graphs version=\"1\"><graph id=\"0\" pattern=\"4\" crossnic=\"0\" nchannels=\"2\" speedintra=\"40\" "
          "speedinter=\"0\" "
          "latencyinter=\"0\" typeintra=\"NVL\" typeinter=\"LOC\" samechannels=\"0\">"
          "<channel><gpu dev=\"3\"/><gpu dev=\"1\"/><gpu dev=\"2\"/><gpu dev=\"0\"/></channel>"
          "<channel><gpu dev=\"2\"/><gpu dev=\"1\"/><gpu dev=\"3\"/><gpu dev=\"0\"/></channel></graph></graphs>\n",
          f);
    ck_assert_int_eq(fclose(f), 0);
    setenv("NCCL_GRAPH_FILE", path, 1);
  }
  gpu_ranks *g = gpu_begin(4, 4, 1 << 18);
  run_all_collectives(g);
  gpu_close(g);
  find_line(orders[_i].line, line, sizeof line);
  ck_assert_msg(line[0], "no line with '%s'", orders[_i].line);
  find_line(_i == 2 ? "AllReduce by tree" : "AllReduce by ring", line, sizeof line);
  ck_assert_msg(line[0], "another algorithm ran");
  end();
}

/* A rank that is alone on its host reads no topology: there is nothing to choose. */
TEST(alone) {
  begin(MESH);
  for (int n = 1; n <= 2; n++) {
    gpu_ranks *g = gpu_begin(n, n, 1 << 18);
    ck_assert_int_eq(hk_gpu_of(g->comm[0])->group->looked, n > 1);
    gpu_close(g);
  }
  end();
}

int main(void) { return gpu_main("gpu_topology", .timeout = 100); }
