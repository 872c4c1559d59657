/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that communicate by NVIDIA's device API: what the library has filled in must be what NVIDIA's inline
 * functions expect.  nvcc compiles them with the headers as they are.  A C++ compiler compiles them for the emulated
 * driver, with device_shim.h and what inline.py has made of the headers. */
#ifdef HK_CUDAEMU
#include "device_shim.h"
#else
#include "../../../src/kernels/cuda/primitives.h"
#endif
#include "nccl_device/impl/core__funcs.h"
#include "nccl_device/impl/ll_a2a__funcs.h"
#include "nccl_device/impl/lsa_barrier__funcs.h"
#include "nccl_device/impl/ptr__funcs.h"
#include "params.h"

#if NCCL_VERSION_CODE < 22905
static_assert(sizeof(ncclDevComm) == 200, "as the library fills it");
#elif NCCL_VERSION_CODE < 23000
static_assert(sizeof(ncclDevComm) == 224, "as the library fills it");
#elif NCCL_VERSION_CODE < 23100
static_assert(sizeof(ncclDevComm) == 240, "as the library fills it");
#else
static_assert(sizeof(ncclDevComm) == 248, "as the library fills it");
#endif

HK_DEVICE void expect(const kernel_params &p, int holds, unsigned what) {
  if (!holds) *p.bad = what;
}

HK_DEVICE uint32_t value(int rank, unsigned at, unsigned round) {
  return (uint32_t)(rank + 1) * (at % 1000 + 1) + 7 * round;
}
HK_DEVICE uint32_t sum(int ranks, unsigned at, unsigned round) {
  return (uint32_t)(ranks * (ranks + 1) / 2) * (at % 1000 + 1) + 7 * round * (uint32_t)ranks;
}

/* Each block has vectors of its own, and a barrier of its own with the same block of the other ranks. */
HK_DEVICE unsigned vector_of(unsigned i) { return i * BLOCKS + hk_block(); }

HK_DEVICE void fill(const kernel_params &p, unsigned round) {
  for (unsigned i = hk_thread(); i < VECTORS; i += hk_threads()) {
    hk_vec v;
    for (unsigned k = 0; k < 4; k++) v.w[k] = value(p.comm.rank, 4 * vector_of(i) + k, round);
    hk_store((hk_vec *)p.input + vector_of(i), v);
  }
}

/* Loads from all ranks, or the switch's sum; this rank's share of the results goes to all ranks. */
HK_DEVICE void reduce(const kernel_params &p) {
  const int n = p.comm.lsaSize;
  for (unsigned i = hk_thread(); i < VECTORS; i += hk_threads()) {
    if ((int)(i % (unsigned)n) != p.comm.lsaRank) continue;
    const size_t at = sizeof(hk_vec) * vector_of(i);
    if (p.multimem) {
      hk_multi_store(ncclGetLsaMultimemPointer(p.out, at, p.comm),
                     hk_multi_reduce(ncclGetLsaMultimemPointer(p.in, at, p.comm), HK_MULTI_ADD_32));
      continue;
    }
    hk_vec total = {{0, 0, 0, 0}};
    for (int r = 0; r < n; r++) {
      hk_vec v = hk_load(ncclGetLsaPointer(p.in, at, r));
      for (unsigned k = 0; k < 4; k++) total.w[k] += v.w[k];
    }
    for (int r = 0; r < n; r++) hk_store(ncclGetPeerPointer(p.out, at, r), total);
  }
  hk_multi_fence();
}

HK_DEVICE void check(const kernel_params &p, unsigned round) {
  for (unsigned i = hk_thread(); i < VECTORS; i += hk_threads()) {
    hk_vec v = hk_load(ncclGetLocalPointer(p.out, sizeof(hk_vec) * vector_of(i)));
    for (unsigned k = 0; k < 4; k++) expect(p, v.w[k] == sum(p.comm.nRanks, 4 * vector_of(i) + k, round), 100 + round);
  }
}

HK_KERNEL void allreduce(HK_PARAMS(kernel_params) p) {
  ncclCoopCta cta;
  ncclLsaBarrierSession<ncclCoopCta> bar(cta, p.comm, ncclTeamTagLsa(), hk_block(), p.multimem);
  for (unsigned round = 0; round < ROUNDS; round++) {
    fill(p, round);
    bar.sync(cta, cuda::memory_order_acq_rel);
    reduce(p);
    bar.sync(cta, cuda::memory_order_acq_rel);
    check(p, round);
    bar.sync(cta, cuda::memory_order_acq_rel);
  }
}

/* What needs no communication: teams, windows by address, resources. */
HK_KERNEL void look(HK_PARAMS(kernel_params) p) {
  const ncclDevComm &c = p.comm;
  ncclTeam world = ncclTeamWorld(c), lsa = ncclTeamLsa(c), rail = ncclTeamRail(c);
  expect(p, world.nRanks == c.nRanks && world.rank == c.rank && world.stride == 1, 1);
  expect(p, lsa.nRanks == c.nRanks && lsa.rank == c.rank && lsa.stride == 1, 2);
  expect(p, rail.nRanks == 1 && rail.rank == 0 && rail.stride == c.nRanks, 3);
  expect(p, ncclTeamRankToLsa(c, p.half, 0) == c.rank - p.half.rank, 4);
  expect(p, *(uint32_t *)ncclGetLocalPointer(p.in, 0) == *(uint32_t *)p.input, 5);
  expect(p, ncclGetPeerPointer(p.in, 8, p.half, 0) == ncclGetLsaPointer(p.in, 8, c.rank - p.half.rank), 6);
  expect(p,
         ncclGetResourceBufferLocalPointer(c, c.lsaBarrier.bufHandle) ==
             ncclGetLocalPointer(c.resourceWindow, ncclGetResourceBufferOffset(c.lsaBarrier.bufHandle)),
         7);
  expect(p, c.lsaBarrier.nBarriers == BLOCKS && p.exchange.nSlots > 0, 8);
#if NCCL_VERSION_CODE >= 22900
  expect(p, ncclFindWindow(ncclCoopWarp(), c, (char *)p.input + 100) == p.in, 9);
  expect(p, c.abortFlag == nullptr, 10);
#endif
}

/* Barriers of a part of the ranks; then all ranks send each other a number by LL lines, several times. */
HK_KERNEL void exchange(HK_PARAMS(kernel_params) p) {
  ncclCoopCta cta;
  const int n = p.comm.lsaSize, bcast = p.halfMultimem.mcBasePtr != nullptr;
  ncclTeam lsa = ncclTeamLsa(p.comm);
  {
    ncclLsaBarrierSession<ncclCoopCta> bar(cta, p.comm, p.half, p.halfBarrier, hk_block(), bcast, p.halfMultimem);
    for (int i = 0; i < 3; i++) bar.sync(cta, cuda::memory_order_acq_rel);
  }
  ncclLLA2ASession<ncclCoopCta> session(cta, p.comm, lsa, p.exchange, hk_block(), n * THREADS, bcast,
                                        p.comm.lsaMultimem);
  for (unsigned round = 0; round < ROUNDS; round++) {
    const unsigned me = hk_thread();
    if (round % 2) {
      session.bcast(lsa.rank * THREADS + (int)me, value(lsa.rank, me, round));
    } else {
      for (int r = 0; r < n; r++) session.send(r, lsa.rank * THREADS + (int)me, value(lsa.rank, me, round));
    }
    uint32_t total = 0;
    for (int r = 0; r < n; r++) total += session.template recv<uint32_t>(r * THREADS + (int)me);
    expect(p, total == sum(n, me, round), 200 + round);
    session.endEpoch(cta);
  }
}
