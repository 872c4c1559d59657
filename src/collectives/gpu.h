/* SPDX-License-Identifier: Apache-2.0 */
/* The times that software adds to a GPU's links. The cost model and the simulator share them: they price the same
 * library. */
#ifndef HK_COLLECTIVES_GPU_H
#define HK_COLLECTIVES_GPU_H
#include <stddef.h>
#include "protocol.h"

/* From a call to the first instruction, and from the last one to the end that a stream sees: the part of NCCL's latency
 * model (src/graph/tuning.cc, baseLat of a ring with LL) that does not depend on the steps. */
#define HK_GPU_LAUNCH_US 6.6
/* So much less if the kernel of small messages runs the program (docs/results/sass.md): three round trips of 0.15 us,
 * and some 130 instructions of 1 to 4 cycles.  It takes one-shot programs of so many ranks, with LL, of so many bytes a
 * channel. */
#define HK_GPU_SMALL_SAVES_US 0.6
/* So much less if a replayed graph launches the kernel. NCCL's kernel for small messages, which needs some 50
 * instructions and a round trip more than ours before its first line, takes 2.3 us in all on 8 H800 or H200
 * (github.com/NVIDIA/nccl/issues/1940). Its counts and the way over NVLink make at least 1.2 us of that, so 1.1 us at
 * most are left for launch and end, where the 6.6 us have 5.9 at most (docs/results/sass.md). */
#define HK_GPU_GRAPH_SAVES_US 4.8
enum { HK_GPU_SMALL_RANKS = 8, HK_GPU_SMALL_BYTES = 16384 };
/* Bytes that a slot's lines carry. */
enum { HK_GPU_LL_SLOT_BYTES = HK_GPU_SMALL_BYTES, HK_GPU_LL128_SLOT_BYTES = 61440 };
/* The most that LL's lines carry to another host, and what the proxies take for a byte of them (measured: 0.4 us for
 * 4 KiB that the sender's takes out of lines, 0.2 us for those that the receiver's puts into them). What does not fit
 * lines waits for Simple's fence, with any protocol. Flags do not go over the network, but LL's and LL128's slots are
 * shorter than Simple's, and a proxy's time for each slot is nowhere else in the model: so bytes cost as much more
 * there as inside a host. */
enum { HK_GPU_LL_FAR_BYTES = 3072 };
#define HK_GPU_FAR_LINES_US 0.00015
/* The most that a wave moves through a slot of so many bytes: what does not fit its lines would go as with Simple. */
static inline size_t hk_gpu_slot_carries(size_t bytes, hk_protocol p) {
  const size_t lines = p == HK_PROTO_LL ? HK_GPU_LL_SLOT_BYTES : p == HK_PROTO_LL128 ? HK_GPU_LL128_SLOT_BYTES : bytes;
  return bytes < lines ? bytes : lines;
}
/* The time that a message with Simple takes beyond the links' latency (fences, flags, the block's barrier); LL takes
 * none of it, LL128 a part. With it a ring's step over NVSwitch takes the 3.4, 1.9 and 0.6 us of NCCL's hwLat. */
#define HK_GPU_SYNC_US 2.7
/* The part of it during which the lane can do nothing else, and the time of any instruction. */
#define HK_GPU_SYNC_LANE 0.3
#define HK_GPU_INSTR_US 0.15
/* The launch of another channel's blocks ... */
#define HK_GPU_CHANNEL_US 0.05
/* ... and the time by which they begin later. Without it all channels would wait at the same moments and leave the
 * links idle then; real channels drift apart. */
#define HK_GPU_STAGGER_US 0.25
/* A proxy's part in a message between hosts: the trigger, the work request, the completion; not the lane's time. */
#define HK_GPU_PROXY_US 1.0
/* In-switch reduction and multicast reach this part of a link's bandwidth: 480 GB/s busbw of 8 H100 are 480 * 9 / 14 =
 * 309 GB/s on the wire in each direction, of 370.8 (NCCL's nvlsEfficiency says 0.85). */
#define HK_GPU_IN_SWITCH 0.83
/* A load of a sum: there, to all GPUs, and back. */
#define HK_GPU_SWITCH_LOAD_US 1.4
enum { HK_GPU_SWITCH_SLOTS = 4 };
/* The bytes of a slot in a switch, if those of other links have `bytes`: at most 64 KiB, and as many as leave the slots
 * of all channels, two for each rank and slot, in 64 MiB (transport/cuda/multicast.c). */
enum { HK_GPU_SWITCH_SLOT_BYTES = 65536, HK_GPU_SWITCH_CHANNELS = 16, HK_GPU_SWITCH_ROOM = 64 << 20 };
static inline size_t hk_gpu_switch_slot(size_t bytes, int nranks) {
  const size_t slots = (size_t)2 * HK_GPU_SWITCH_SLOTS * HK_GPU_SWITCH_CHANNELS * (size_t)nranks;
  size_t slot = bytes < HK_GPU_SWITCH_SLOT_BYTES ? bytes : HK_GPU_SWITCH_SLOT_BYTES;
  while (slot > 4096 && slots * slot >= HK_GPU_SWITCH_ROOM) slot /= 2; /* signals take some of it, too */
  return slot;
}
/* The exponent x between two bounds of a time: lower^(1 - x) upper^x. The lower bound is without contention, the upper
 * one with contention all the time. Fitted to the simulator's event level at 64 ranks. */
#define HK_GPU_SHARED 0.3
/* GB/s that one lane (a thread block) moves, by hk_gpu_info.sm: NCCL's perChMaxRingLL128Bw and perChMaxTreeBw. AMD's
 * (from 900 on) are like the oldest: nothing is published. */
static inline double hk_gpu_lane_gbps(int sm) {
  return sm >= 900 ? 20 : sm >= 100 ? 40 : sm >= 90 ? 36.7 : sm >= 80 ? 24 : 20;
}
#endif
