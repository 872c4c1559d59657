/* SPDX-License-Identifier: Apache-2.0 */
/* The times that software adds to a GPU's links. The cost model and the simulator share them: they price the same
 * library. */
#pragma once
#include <math.h>
#include "../program/limits.h"

/* From a call to the first instruction, and from the last one to the end that a stream sees: the part of NCCL's latency
 * model (src/graph/tuning.cc, baseLat of a ring with LL) that does not depend on the steps. */
#define HK_GPU_LAUNCH_US 6.6
/* The same on AMD's GPUs: RCCL takes 13.1 us for 1 KiB on 8 MI300X, 7.6 us for 4 KiB in a graph
 * (rocm.blogs.amd.com/software-tools-optimization/mi300x-rccl-xgmi). */
#define HK_GPU_AMD_LAUNCH_US 10.6
static inline double hk_gpu_launch_us(int sm) { return sm >= 900 ? HK_GPU_AMD_LAUNCH_US : HK_GPU_LAUNCH_US; }
/* Time that the kernel of small messages saves (docs/results/sass.md): three round trips of 0.15 us, and about 130
 * instructions of 1 to 4 cycles.  It runs one-shot programs with LL, of at most HK_GPU_SMALL_SOURCES ranks and
 * HK_GPU_LL_MAX bytes a channel. */
#define HK_GPU_SMALL_SAVES_US 0.6
/* Time that a replayed graph saves when it launches the kernel. NCCL's kernel for small messages takes 2.3 us in all on
 * 8 H800 or H200 (github.com/NVIDIA/nccl/issues/1940). Before its first line it needs about 50 instructions and one
 * round trip more than Hocket's. Its instructions and the way over NVLink take at least 1.2 us of that, so at most 1.1
 * us remain for launch and end. HK_GPU_LAUNCH_US contains at most 5.9 us for these (docs/results/sass.md). */
#define HK_GPU_GRAPH_SAVES_US 4.8
/* The proxies' time for a byte in LL's lines, which carry HK_GPU_LL_NET_MAX bytes to another host. Measured for 4 KiB:
 * 0.4 us to take them out of lines at the sender, 0.2 us to put them into lines at the receiver. With any protocol, a
 * message that does not fit the lines waits for Simple's fence. Flags do not go over the network, but LL's and LL128's
 * slots are shorter than Simple's, and the model has no other term for a proxy's time for each slot. So bytes between
 * hosts have the protocol's extra cost as well. */
#define HK_GPU_FAR_LINES_US 0.00015
/* The time of a message with Simple in addition to the links' latency (fences, flags, the block's barrier). LL has none
 * of it, LL128 a part. With this value a ring's step over NVSwitch takes 3.4, 1.9 and 0.6 us, as in NCCL's hwLat. */
#define HK_GPU_SYNC_US 2.7
/* The part of HK_GPU_SYNC_US during which the lane is busy, and the time of an instruction. */
#define HK_GPU_SYNC_LANE 0.3
#define HK_GPU_INSTR_US 0.15
/* The launch of another channel's blocks. */
#define HK_GPU_CHANNEL_US 0.05
/* The delay between the beginnings of two channels. Without it all channels would wait at the same times and leave the
 * links idle; real channels drift apart. */
#define HK_GPU_STAGGER_US 0.25
/* A proxy's time for a message between hosts: the trigger, the work request, the completion. The lane does not wait for
 * it. */
#define HK_GPU_PROXY_US 1.0
/* In-switch reduction and multicast reach this part of a link's bandwidth, by hk_gpu_info.sm. Hopper: 480 GB/s busbw of
 * 8 H100 are 480 * 9 / 14 = 309 GB/s on the wire in each direction, of 370.8 (NCCL's nvlsEfficiency says 0.85).
 * Blackwell: NCCL's nvlsEfficiency. */
static inline double hk_gpu_in_switch(int sm) { return sm >= 100 ? 0.74 : 0.83; }
/* A load of a sum: to the switch, to all GPUs, and back. */
#define HK_GPU_SWITCH_LOAD_US 1.4
/* The exponent x that combines two bounds of a time: lower^(1 - x) upper^x. The lower bound assumes no contention, the
 * upper bound permanent contention. Fitted to the simulator's event level at 64 ranks. */
#define HK_GPU_SHARED 0.3
/* Channels begin HK_GPU_STAGGER_US apart. A port that they need for `one_us` each is shared equally, so when the k-th
 * comes, the first has had 1 + 1/2 + ... + 1/k of these times, about ln(k + 1/2) + 0.577. Returns the time until the
 * first of many is through. */
static inline double hk_gpu_first_us(double one_us) {
  return fmax(one_us, (exp(one_us / HK_GPU_STAGGER_US - 0.577) - 0.5) * HK_GPU_STAGGER_US);
}
/* Channels that send over several links in turn, all in the same order, meet on each, and all other links are idle.
 * Then a step takes `together`, the time of all channels' messages on its link. The n channels move apart, so that only
 * a part of the difference to `apart`, that of links that are never idle, remains, n^-x. x grows with the time between
 * two channels' beginnings, in messages that take `message_us` alone, and with the `times` that each uses a link.
 * HK_GPU_SPREAD is the limit, fitted to the simulator's event level on MI300X, DGX-1 and a mesh of 4 V100, 4 to 28
 * channels, 1 to 40 times. In the first HK_GPU_AHEAD times messages move apart further, the shorter they are; later,
 * lanes that are ahead wait for others. Those that are shorter than the time between two beginnings do not meet. */
#define HK_GPU_SPREAD 0.35
#define HK_GPU_AHEAD 8
static inline double hk_gpu_spread(double channels, double message_us, double times, double together, double apart) {
  const double begin = HK_GPU_STAGGER_US / message_us, x = begin * times;
  if (begin >= 1) return apart;
  const double further = pow(fmax(1, fmin(x, begin * HK_GPU_AHEAD)), -2 * begin * begin);
  return apart + fmax(0, together - apart) * pow(channels, -fmin(HK_GPU_SPREAD, x)) * further;
}
/* GB/s that one lane (a thread block) moves, by hk_gpu_info.sm: NCCL's perChMaxRingLL128Bw (from 100 on: of its version
 * 2.30), of Ampere perChMaxTreeBw. AMD's (from 900 on): with it 8 MI355X nearly reach the 407 GB/s that Oracle
 * measured. */
static inline double hk_gpu_lane_gbps(int sm) {
  return sm >= 900 ? 30 : sm >= 100 ? 40 : sm >= 90 ? 36.7 : sm >= 80 ? 24 : 20;
}
