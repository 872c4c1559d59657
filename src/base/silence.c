/* SPDX-License-Identifier: Apache-2.0 */
/* Evidence that a host is gone, from what the kernel knows of a TCP connection. */
#include "silence.h"
#include <linux/sockios.h> /* SIOCOUTQ */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44 /* Linux 6.15; older headers lack it */
#endif

enum { LOOK_COUNTS_MS = 2000, RTO_MAX_LEAST_MS = 1000, RTO_MAX_MOST_MS = 120000 };

void hk_silence_watch(int fd, unsigned limit_s, int probes) {
  int one = 1, idle = limit_s / 4 ? (int)(limit_s / 4) : 1;
  uint64_t half_ms = (uint64_t)limit_s * 500;
  int rto_ms = half_ms < RTO_MAX_LEAST_MS  ? RTO_MAX_LEAST_MS
               : half_ms > RTO_MAX_MOST_MS ? RTO_MAX_MOST_MS
                                           : (int)half_ms;
  /* If a network stack lacks these options, a silent host is only noticed later. TCP_USER_TIMEOUT is not used: it also
   * ends a connection whose window is closed though each probe is answered, for example to a process that is only
   * stopped. */
  (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof idle);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  /* Half, not a quarter: if the window was closed while data was in flight, the kernel gives up after twice this
   * time. */
  (void)setsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &rto_ms, sizeof rto_ms);
}

static bool silence_info_of(int fd, struct tcp_info *info) {
  socklen_t n = sizeof *info;
  memset(info, 0, sizeof *info);
  return getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &n) == 0; /* else not TCP: a test's socket pair */
}

bool hk_silence_broken(hk_silence *s, int fd, unsigned limit_s, uint64_t now_ns, unsigned *quiet_s) {
  struct tcp_info info;
  if (!silence_info_of(fd, &info)) return false;
  uint64_t since_ms = (now_ns - s->looked_ns) / 1000000u;
  /* Data counts too: while data arrives, the kernel does not record acknowledgements that say nothing new. */
  uint32_t quiet_ms = info.tcpi_last_ack_recv < info.tcpi_last_data_recv ? info.tcpi_last_ack_recv
                                                                         : info.tcpi_last_data_recv;
  /* An answer that acknowledges nothing, for example to data that arrived while the window was closed, does not end the
   * retransmissions. */
  bool again = info.tcpi_unacked > 0 && (info.tcpi_retransmits > 0 || info.tcpi_backoff > 0);
  bool open = info.tcpi_probes > 0 || (again && info.tcpi_last_data_sent < quiet_ms);
  bool still = s->open && open && quiet_ms > since_ms;
  if (!still)
    s->unanswered_ms = 0;
  else
    s->unanswered_ms += since_ms < LOOK_COUNTS_MS ? (uint32_t)since_ms : LOOK_COUNTS_MS;
  s->open = open;
  s->looked_ns = now_ns;
  *quiet_s = quiet_ms / 1000;
  return quiet_ms >= (uint64_t)limit_s * 1250 && s->unanswered_ms >= (uint64_t)limit_s * 750;
}

bool hk_silence_pending(int fd) {
  int bytes = 0;
  return ioctl(fd, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}
