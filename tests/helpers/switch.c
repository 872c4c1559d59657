/* SPDX-License-Identifier: Apache-2.0 */
/* A network switch in user space, with delay and loss (tc's netem is missing from many kernels):
 *   switch DELAY_MS LOSS_PERCENT INTERFACE...
 * Passes each frame that comes in on one of the interfaces to the one at which its destination was last seen, to
 * all others where that is unknown; DELAY_MS later, and LOSS_PERCENT of them not at all.  Runs until killed. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PORTS = 16, HOSTS = 64, FRAME = 66000 + sizeof(struct virtio_net_hdr), QUEUE_BYTES = 64 << 20 };

typedef struct frame {
  struct frame *next;
  uint64_t due;
  int from;
  size_t bytes;
  unsigned char data[]; /* virtio_net_hdr, then the frame: keeps unfinished checksums and large segments as they are */
} frame;

static int ports[PORTS], nports;
static struct {
  unsigned char mac[6];
  int port;
} hosts[HOSTS];
static int nhosts;
static frame *first, **last = &first;
static size_t queued;

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int open_port(const char *name) {
  int one = 1, fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, htons(ETH_P_ALL));
  struct sockaddr_ll a = {
      .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = (int)if_nametoindex(name)};
  struct packet_mreq all = {.mr_ifindex = a.sll_ifindex, .mr_type = PACKET_MR_PROMISC};
  if (fd < 0 || a.sll_ifindex == 0 || bind(fd, (struct sockaddr *)&a, sizeof a) != 0 ||
      setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one) != 0 ||
      setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one) != 0 ||
      setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all) != 0) {
    fprintf(stderr, "switch: %s: %s\n", name, strerror(errno));
    exit(1);
  }
  return fd;
}

static int port_of(const unsigned char *mac) {
  for (int i = 0; i < nhosts; i++)
    if (memcmp(hosts[i].mac, mac, 6) == 0) return hosts[i].port;
  return -1;
}

static void learn(const unsigned char *mac, int port) {
  int i = 0;
  while (i < nhosts && memcmp(hosts[i].mac, mac, 6) != 0) i++;
  if (i == HOSTS || (mac[0] & 1)) return;
  if (i == nhosts) nhosts++;
  memcpy(hosts[i].mac, mac, 6);
  hosts[i].port = port;
}

static void deliver(const frame *f) {
  const unsigned char *ether = f->data + sizeof(struct virtio_net_hdr);
  int to = port_of(ether);
  for (int p = 0; p < nports; p++) {
    if (p == f->from || (to >= 0 && p != to)) continue;
    if (write(ports[p], f->data, f->bytes) < 0 && errno != EAGAIN && errno != ENOBUFS && errno != ENETDOWN)
      fprintf(stderr, "switch: a frame of %zu bytes: %s\n", f->bytes, strerror(errno));
  }
}

static void receive(int port, uint64_t delay, double loss) {
  static unsigned char buffer[FRAME];
  for (int k = 0; k < 64; k++) {
    ssize_t n = read(ports[port], buffer, sizeof buffer);
    if (n < (ssize_t)(sizeof(struct virtio_net_hdr) + ETH_HLEN)) return;
    learn(buffer + sizeof(struct virtio_net_hdr) + 6, port);
    if (drand48() * 100 < loss || queued + (size_t)n > QUEUE_BYTES) continue;
    frame *f = malloc(sizeof *f + (size_t)n);
    if (!f) continue;
    *f = (frame){.due = now() + delay, .from = port, .bytes = (size_t)n};
    memcpy(f->data, buffer, (size_t)n);
    *last = f;
    last = &f->next;
    queued += (size_t)n;
  }
}

int main(int argc, char **argv) {
  if (argc < 5 || argc - 3 > PORTS) {
    fprintf(stderr, "usage: switch DELAY_MS LOSS_PERCENT INTERFACE INTERFACE...\n");
    return 2;
  }
  uint64_t delay = (uint64_t)(atof(argv[1]) * 1e6);
  double loss = atof(argv[2]);
  srand48(getpid());
  struct pollfd wait[PORTS];
  for (; nports < argc - 3; nports++) {
    ports[nports] = open_port(argv[3 + nports]);
    wait[nports] = (struct pollfd){.fd = ports[nports], .events = POLLIN};
  }
  printf("switching\n");
  fflush(stdout);
  for (;;) {
    uint64_t t = now();
    struct timespec nap = {.tv_sec = 1};
    if (first)
      nap = first->due > t ? (struct timespec){.tv_nsec = (long)(first->due - t) % 1000000000} : (struct timespec){0};
    if (ppoll(wait, (nfds_t)nports, &nap, NULL) < 0 && errno != EINTR) return 1;
    for (int p = 0; p < nports; p++)
      if (wait[p].revents) receive(p, delay, loss);
    t = now();
    while (first && first->due <= t) {
      frame *f = first;
      first = f->next;
      if (!first) last = &first;
      queued -= f->bytes;
      deliver(f);
      free(f);
    }
  }
}
