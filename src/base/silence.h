/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Detects that the host at the other end of a TCP connection no longer answers.
 *
 * A process may be late, stopped, in a debugger or swapped out for any length of time. Its kernel answers meanwhile,
 * and this is what counts. So the evidence is a question of this kernel that the other kernel has not answered: a
 * keepalive, a probe of a closed window, data that is sent again since the last answer. Time without a packet is no
 * evidence: if the window is closed, the kernel asks at growing intervals.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

typedef struct hk_silence {
  uint64_t looked_ns;     /* time of the latest check */
  uint32_t unanswered_ms; /* for this long a question was open at every check, and nothing arrived */
  bool open;              /* at the latest check */
} hk_silence;

/* Makes the kernel ask: every quarter of `limit_s` while nothing is under way, and every half of it while the window is
 * closed (Linux 6.15; on older kernels it may take two minutes). After `probes` keepalives without an answer the kernel
 * ends the connection itself, with ETIMEDOUT. */
void hk_silence_watch(int fd, unsigned limit_s, int probes);

/* Call this about once a second. True: nothing arrived for 5/4 of `limit_s`, and a question was open for at least 3/4
 * of `limit_s` of that; *quiet_s is the time for which nothing arrived. Time in which this process did not check,
 * because it or its machine was stopped, does not count. */
bool hk_silence_broken(hk_silence *s, int fd, unsigned limit_s, uint64_t now_ns, unsigned *quiet_s);

/* True if data that was sent, or is still to be sent, is not acknowledged by the other kernel. */
bool hk_silence_pending(int fd);
