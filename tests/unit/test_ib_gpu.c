/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* GPU memory for RDMA cards: the emulated CUDA driver's, registered with the fake libibverbs.so.1 in the ways that
 * both let. */
#include "../../src/transport/net/ib/ib_direct.h"
#include "../../src/transport/net/ib/ib_gdr.h"
#include "../support/fake_rdma.h"
#include "../support/gpu.h"
#include "../support/suite.h"
#include "../support/topo_machines.h"

static const struct pair {
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

TEST_LOOP(finds_the_way, 2 * (int)HK_ARRAY_LENGTH(pairs)) {
  const bool relaxed = _i % 2;
  const struct pair *p = &pairs[_i / 2];
  fake_verbs_state *v = rdma_begin(1);
  hk_device *gpu;
  hk_memory memory;
  hk_ib_gpu_memory m;
  char why[160];
  int n;
  setenv("CUDAEMU_DMABUF", p->driver, 1);
  emu_start(1);
  rdma_param("NCCL_DMABUF_ENABLE", p->enable);
  rdma_param("NCCL_IB_PCI_RELAXED_ORDERING", relaxed ? "1" : "0");
  const hk_ibv *api = hk_ibv_load(why, sizeof why);
  ck_assert_msg(api != NULL, "%s", why);
  ck_assert_int_eq(hk_cuda_open(0, &gpu), HK_OK);
  ck_assert_int_eq(gpu->ops->memory->alloc(gpu, 1 << 20, &memory), HK_OK);
  ck_assert_int_eq(api->fork_init(), 0);
  hk_ibv_device **list = api->get_device_list(&n);
  hk_ibv_context *card = api->open_device(list[0]);
  hk_ibv_pd *pd = api->alloc_pd(card);
  /* All of the address space, but for dma-bufs, is memory of a GPU. */
  v->gpu = (char *)4096;
  v->gpu_bytes = (uint64_t)1 << 48;
  v->peermem = p->module;
  v->dmabuf_refusal = p->refusal;
  hk_ib_gpu_register(hk_settings_now(), api, pd, gpu, memory.base, 1 << 20, &m);
  ck_assert_int_eq(m.method, p->method);
  ck_assert_int_eq(m.mr != NULL, m.method != HK_GDR_STAGED);
  ck_assert_msg(strstr(m.why, p->words) && strstr(m.why, p->other), "%s", m.why);
  ck_assert_uint_eq(v->dmabufs, m.method == HK_GDR_DMABUF);
  ck_assert_uint_eq(v->relaxed, m.mr && relaxed ? 1 << 20 : 0);
  if (m.mr) api->dereg_mr(m.mr);
  ck_assert_int_eq(hk_ib_gpu_probe(hk_settings_now(), api, card, gpu, memory.base, &m), HK_OK);
  ck_assert_int_eq(m.method, p->method);
  ck_assert_int_eq(v->nmrs, 0);
  api->dealloc_pd(pd);
  api->close_device(card);
  api->free_device_list(list);
  ck_assert_int_eq(gpu->ops->memory->release(gpu, &memory), HK_OK);
  gpu->ops->close(gpu);
  rdma_end(v);
}

/* ---- data direct ---- */

#define BESIDE "/devices/pci0018:00/0018:00:00.0/0018:01:00.0/0018:03:00.0"
static const struct {
  const char *second, *wanted, *pci; /* NCCL_IB_DATA_DIRECT; CUDAEMU_DMABUF_PCI */
  int mlx5, refusal;                 /* of the data-direct function */
  bool direct;
  const char *words;
} direct[] = {
    {BESIDE, "1", "1", 1, 0, true, ""},
    {BESIDE, "2", "1", 1, 0, true, ""},
    {BESIDE, "1", "0", 1, 0, true, ""},
    {BESIDE, "0", "1", 1, 0, false, ""},
    {NULL, "1", "1", 1, 0, false, ""},
    {BESIDE, "1", "1", 0, 0, false, ""},
    {BESIDE, "1", "1", 1, ENOSPC, false, "data direct: the card's driver refuses it (No space left on device)"}};

/* A card's second function is used if it has one, and the card itself if that refuses. */
TEST_LOOP(uses_data_direct, HK_ARRAY_LENGTH(direct)) {
  fake_verbs_state *v = rdma_begin(1);
  hk_device *gpu;
  hk_memory memory;
  hk_ib_gpu_memory m;
  char why[160];
  int n;
  setenv("CUDAEMU_DMABUF", "1", 1);
  setenv("CUDAEMU_DMABUF_PCI", direct[_i].pci, 1);
  emu_start(1);
  rdma_param("NCCL_IB_DATA_DIRECT", direct[_i].wanted);
  v->device[0].mlx5 = direct[_i].mlx5;
  v->device[0].second = direct[_i].second;
  v->device[0].no_direct = direct[_i].refusal;
  const hk_ibv *api = hk_ibv_load(why, sizeof why);
  ck_assert_int_eq(hk_cuda_open(0, &gpu), HK_OK);
  ck_assert_int_eq(gpu->ops->memory->alloc(gpu, 1 << 20, &memory), HK_OK);
  const int *pci = dlsym(dlopen(emu_file("libcuda.so.1"), RTLD_NOW | RTLD_NOLOAD), "cudaemu_pci_dmabufs");
  ck_assert_int_eq(api->fork_init(), 0);
  hk_ibv_device **list = api->get_device_list(&n);
  hk_ibv_context *card = api->open_device(list[0]);
  hk_ibv_pd *pd = api->alloc_pd(card);
  hk_ib_gpu_register(hk_settings_now(), api, pd, gpu, memory.base, 1 << 20, &m);
  ck_assert(m.method == HK_GDR_DMABUF && m.mr);
  ck_assert_int_eq(m.direct, direct[_i].direct);
  ck_assert_str_eq(hk_ib_gpu_words(&m), direct[_i].direct ? "dma-buf, data direct" : "dma-buf");
  ck_assert_str_eq(m.why, direct[_i].words);
  ck_assert_int_eq(v->device[0].directs, direct[_i].direct);
  ck_assert_int_eq(*pci, (direct[_i].direct || direct[_i].refusal) && direct[_i].pci[0] == '1');
  ck_assert_uint_eq(v->dmabufs, 1);
  api->dereg_mr(m.mr);
  ck_assert_int_eq(hk_ib_gpu_probe(hk_settings_now(), api, card, gpu, memory.base, &m), HK_OK);
  ck_assert(m.direct == direct[_i].direct && !m.mr);
  api->dealloc_pd(pd);
  api->close_device(card);
  api->free_device_list(list);
  ck_assert_int_eq(gpu->ops->memory->release(gpu, &memory), HK_OK);
  gpu->ops->close(gpu);
  rdma_end(v);
}

/* By the PCI paths of the function and of the GPU, whose address CUDA writes with capital letters. */
TEST(measures_data_direct) {
  fake_verbs_state *v = rdma_begin(1);
  static const struct {
    const char *function;
    hk_path_class cls;
  } at[] = {{"/sys/devices/pci0018:00/0018:00:00.0/0018:01:00.0/0018:0b:00.1", HK_PATH_PIX},
            {"/sys/devices/pci0018:00/0018:00:00.0/0018:01:00.0/0018:03:00.0", HK_PATH_PIX},
            {"/sys/devices/pci0018:00/0018:00:00.0/0018:01:01.0/0018:04:00.0/0018:05:00.0", HK_PATH_PXB},
            {"/sys/devices/pci0018:00/0018:00:01.0/0018:05:00.0", HK_PATH_PHB},
            {"/sys/devices/pci0009:00/0009:00:01.0/0009:05:00.0", HK_PATH_SYS}};
  hk_device gpu = {.limits = {.bus_id = "0018:0B:00.0"}};
  fm_file("sys/devices/pci0018:00/0018:00:00.0/0018:01:00.0/0018:0b:00.0/vendor", "0x10de\n");
  fm_link("sys/bus/pci/devices/0018:0b:00.0", "../../../devices/pci0018:00/0018:00:00.0/0018:01:00.0/0018:0b:00.0");
  for (size_t i = 0; i < HK_ARRAY_LENGTH(at); i++)
    ck_assert_int_eq(hk_ib_direct_distance(at[i].function, &gpu, HK_PATH_NVL), at[i].cls);
  gpu.limits.bus_id[6] = 'C';
  ck_assert_int_eq(hk_ib_direct_distance(at[0].function, &gpu, HK_PATH_P2C), HK_PATH_P2C);
  /* Where the card says that its function is. */
  char why[160], path[HK_SYSFS_PATH];
  int n;
  const hk_ibv *api = hk_ibv_load(why, sizeof why);
  hk_ibv_device **list = api->get_device_list(&n);
  hk_ibv_context *card = api->open_device(list[0]);
  v->device[0].mlx5 = 1;
  ck_assert(!hk_ib_direct_function(hk_settings_now(), card, path));
  v->device[0].second = BESIDE;
  ck_assert(hk_ib_direct_function(hk_settings_now(), card, path));
  ck_assert_str_eq(path, "/sys" BESIDE);
  v->device[0].second = "devices/x";
  ck_assert(hk_ib_direct_function(hk_settings_now(), card, path));
  ck_assert_str_eq(path, "/sys/devices/x");
  api->close_device(card);
  api->free_device_list(list);
  rdma_end(v);
}

/* ---- distances ---- */

TEST(finds_cards_by_name_or_address) {
  hk_topo *t = m_new("one GPU");
  hk_paths *p;
  uint32_t cpu;
  m_cpus(t, 1, 10, "GenuineIntel", &cpu);
  const uint32_t bridge = m_add(t, HK_NODE_PCI, m_bus(9), 0), gpu = m_gpu(t, 3, m_bus(1), 0);
  m_link(t, cpu, bridge, HK_EDGE_PCI, 1, 24);
  m_link(t, bridge, gpu, HK_EDGE_PCI, 1, 24);
  m_nic(t, 0, m_bus(2), bridge, 24, 200000);
  m_nic(t, 1, m_bus(4), cpu, 24, 200000);
  for (uint32_t i = 0; i < t->nnodes; i++)
    if (t->nodes[i].kind == HK_NODE_NET)
      snprintf(t->nodes[i].name, sizeof t->nodes[i].name, "net%d", t->nodes[i].net.dev);
  m_finish(t);
  ck_assert_int_eq(hk_paths_new(&p, t, NULL), HK_OK);
  ck_assert_int_eq(hk_gdr_distance(p, 3, "net0", NULL), HK_PATH_PIX);
  ck_assert_int_eq(hk_gdr_distance(p, 3, "net1", NULL), HK_PATH_PHB);
  ck_assert_int_eq(hk_gdr_distance(p, 3, "other", "0000:02:00.0"), HK_PATH_PIX);
  ck_assert_int_eq(hk_gdr_distance(p, 3, "other", "0000:04:00.0"), HK_PATH_PHB);
  ck_assert_int_eq(hk_gdr_distance(p, 3, "other", "0000:01:00.0"), HK_PATH_DIS); /* no card */
  ck_assert_int_eq(hk_gdr_distance(p, 3, "other", "nonsense"), HK_PATH_DIS);
  ck_assert_int_eq(hk_gdr_distance(p, 3, "other", NULL), HK_PATH_DIS);
  ck_assert_int_eq(hk_gdr_distance(p, 0, "net0", NULL), HK_PATH_DIS);
  ck_assert_int_eq(hk_gdr_distance(NULL, 3, "net0", NULL), HK_PATH_DIS);
  hk_paths_free(p);
  hk_topo_free(t);
}

static const struct {
  const char *level, *old; /* NCCL_NET_GDR_LEVEL, NCCL_IB_CUDA_SUPPORT */
  hk_path_class most;      /* that is allowed; LOC: none */
} levels[] = {{NULL, NULL, HK_PATH_PXB},  {"", NULL, HK_PATH_PXB},    {"PIX", NULL, HK_PATH_PIX},
              {"SYS", NULL, HK_PATH_SYS}, {"LOC", NULL, HK_PATH_LOC}, {"LOC", "1", HK_PATH_LOC},
              {NULL, "0", HK_PATH_LOC},   {"SYS", "0", HK_PATH_LOC},  {NULL, "1", HK_PATH_DIS},
              {"PIX", "1", HK_PATH_PIX},  {"", "1", HK_PATH_DIS}};

TEST_LOOP(allows_some_distances, HK_ARRAY_LENGTH(levels)) {
  char why[160];
  if (levels[_i].level) rdma_param("NCCL_NET_GDR_LEVEL", levels[_i].level);
  if (levels[_i].old) rdma_param("NCCL_IB_CUDA_SUPPORT", levels[_i].old);
  for (int c = HK_PATH_NVL; c <= HK_PATH_DIS; c++) {
    const bool never = levels[_i].most == HK_PATH_LOC, unknown = c == HK_PATH_DIS;
    const bool far = never || (c > (int)levels[_i].most && !unknown);
    memset(why, 'x', sizeof why);
    ck_assert_int_eq(hk_gdr_too_far(hk_settings_now(), (hk_path_class)c, why, sizeof why), far);
    ck_assert_int_eq(why[0] != '\0', far);
  }
}

TEST(joins_causes) {
  char why[HK_GDR_WHY] = "";
  hk_gdr_add_cause(why, "one (%d)", 1);
  ck_assert_str_eq(why, "one (1)");
  hk_gdr_add_cause(why, "two");
  ck_assert_str_eq(why, "one (1); two");
  for (size_t capacity = 0; capacity < 5; capacity++) { /* it ends where there is no room */
    memset(why, 'x', sizeof why);
    why[HK_GDR_WHY - 1 - capacity] = '\0';
    hk_gdr_add_cause(why, "and more");
    ck_assert_uint_le(strlen(why), HK_GDR_WHY - 1);
    if (capacity == 4) ck_assert_str_eq(why + HK_GDR_WHY - 5, "; an");
  }
}

int main(void) { return suite_main("ib_gpu", .timeout = 60); }
