/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Is the host at the other end of a TCP connection still there?
 *
 * A process may be late, stopped, in a debugger or swapped out for any length of time: its kernel answers meanwhile, and that is
 * what counts.  So the evidence is a question of our kernel that the other kernel has not answered: a keepalive, a probe of a
 * closed window, data that is sent again.  Time without a packet is no evidence: where the window is closed, the kernel asks at
 * growing intervals.
 */
#ifndef HK_BASE_SILENCE_H
#define HK_BASE_SILENCE_H
#include <stdbool.h>
#include <stdint.h>

typedef struct hk_silence {
  uint64_t looked_ns;     /* the last look */
  uint32_t unanswered_ms; /* for so long a question was open at every look, and nothing came */
  bool open;              /* at the last look */
} hk_silence;

/* Has the kernel ask: every quarter of `limit_s` while nothing is under way, and every half of it where the window is closed
 * (Linux 6.15; before that it may take two minutes).  After `probes` keepalives without an answer the kernel ends the connection
 * by itself, with ETIMEDOUT. */
void hk_silence_watch(int fd, unsigned limit_s, int probes);

/* To be called about once a second.  True: nothing came for 5/4 of `limit_s`, and for at least 3/4 of `limit_s` of that a
 * question was open; *quiet_s is the time for which nothing came.  The time in which this process itself did not look,
 * because it was stopped or its machine was, does not count. */
bool hk_silence_broken(hk_silence *s, int fd, unsigned limit_s, uint64_t now_ns, unsigned *quiet_s);

/* Is anything sent, or to be sent, that the other kernel has not acknowledged? */
bool hk_silence_pending(int fd);
#endif
