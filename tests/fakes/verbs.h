/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a test says to the fake libibverbs.so.1 and learns from it: devices with one port each, whose queue pairs reach
 * each other within the process.  The library exports one `fake_verbs`; hold its lock around what is read or written
 * while ranks run.
 *
 * For programs that are started with the fakes in LD_LIBRARY_PATH: HOCKET_TEST_VERBS=name,name makes the devices,
 * HOCKET_TEST_LOCKABLE=bytes bounds the memory that they take.
 */
#ifndef HK_TEST_FAKE_VERBS_H
#define HK_TEST_FAKE_VERBS_H
#include <pthread.h>
#include <stdint.h>

enum { FAKE_VERBS_DEVICES = 4, FAKE_VERBS_GIDS = 8 };

typedef struct fake_verbs_device {
  char name[32];
  int down;             /* its port */
  int dead;             /* neither answers nor fails, and does not open */
  int returns;          /* when it has refused so often to be opened, it is no longer dead; 0: never */
  int refuses_open;     /* errno */
  int rail;             /* what is sent to devices of other rails never arrives */
  unsigned silent;      /* a bit for each GID index over which nothing comes through */
  int full;             /* it takes no memory */
  int max_cqe, max_wr;  /* what it says that queues may have at most; 0: 1 << 20, 16384 */
  int state;            /* of its port, as verbs encodes it; 0: DOWN or ACTIVE */
  int unreadable;       /* errno of a question about its port */
  int mtu;              /* as verbs encodes it; 0: 5 */
  unsigned inline_most; /* bytes of inline data that its queue pairs take; 0: 512 */
  uint64_t writes;      /* that it sent */
  uint64_t to_gpu;      /* writes to a GPU that it received */
  unsigned ece;         /* its options of connections; 0: it knows none */
  unsigned agreed;      /* those of its queue pair that was joined last */
  int mlx5;             /* libmlx5 supports it */
  const char *second;   /* the path of its data-direct function below /sys; NULL: it has none */
  int no_direct;        /* errno with which that refuses memory */
  int directs;          /* registrations for it, so far */
} fake_verbs_device;

typedef struct fake_verbs_state {
  pthread_mutex_t lock;
  int ndevices;
  int (*closed)(int device); /* errno with which this thread may not open the device, or 0; NULL: all may */
  uint64_t crossed;          /* what was sent to other rails */
  fake_verbs_device device[FAKE_VERBS_DEVICES];
  /* memory */
  uint64_t lockable, locked; /* bytes; lockable 0: without bound */
  int dmabuf_refusal;        /* errno; 0: taken */
  uint64_t dmabuf_most;      /* so many are taken, and no more; 0: without bound */
  char *gpu;                 /* memory that only a peer memory module may register, and not without it */
  uint64_t gpu_bytes;
  int (*of_host)(const void *at); /* what lies among it and is the host's all the same; NULL: nothing */
  int peermem;
  const char *fixed; /* memory of the host that may only be read */
  uint64_t fixed_bytes;
  uint64_t relaxed; /* bytes that are registered with relaxed ordering */
  /* Writes to GPU memory, that of dma-bufs and of `gpu`, wait for a flush: fake_verbs_flush, or a read from there by
   * the device that wrote. */
  int late;
  uint64_t flushes;          /* with something to flush */
  uint64_t from_gpu, to_gpu; /* writes */
  /* Requests wait: at each so-manieth poll of a completion queue, one is carried out. 0: at once. */
  unsigned lazy, polls;
  int addressed;    /* GIDs are those of rdma_port(): a queue pair reaches only the device whose GID it sends to */
  uint64_t starved; /* writes that found no receive posted, which costs a card a timeout */
  /* Faults of the next writes with immediate data: so many are... */
  int lost, doubled, broken, denied; /* `broken`: never answered, `denied`: the key is wrong */
  int skip;                          /* ...after so many that go through */
  /* Faults of the next writes without immediate data, after so many that go through: they never arrive, or they arrive
   * and the sender gets no error. */
  int passing, severed, unanswered;
  int overrun; /* the next so many completions find their queue full */
  int fatal;   /* the device of the next so many reports that it fails, and answers no more */
  /* what there is */
  int nmrs, nqps, ncqs, nchannels, ncontexts, npds, nlists;
  int forks;                                   /* calls of ibv_fork_init */
  int without_channels;                        /* devices have no completion channels, which cost descriptors */
  uint64_t opened;                             /* times that a device was, so far */
  uint64_t writes, reads, dmabufs, registered; /* so far; `registered`: times that memory was taken */
  char *watched;                               /* memory of which it is counted... */
  uint64_t watched_bytes, landed;              /* ...how many writes go there */
  uint64_t by_class[256];                      /* writes with each traffic class */
  uint64_t reports, heard; /* completions of sends, and events on completion channels, that were asked for */
  unsigned timeout, retries, traffic_class, service_level; /* of the queue pair that was joined last */
  unsigned dlid, global;                                   /* its destination; 1: with a global header */
  unsigned flags;                                          /* of all ports */
  /* Gets each call that a card sees, in words, under the lock; of a write also what it carries, if the CPU can read
   * that. */
  void (*trace)(const char *call, const void *data, size_t bytes);
} fake_verbs_state;
/* The library also exports void fake_verbs_port(int device, int up): the port's link comes or goes, and the device's
 * users hear of it. */
#endif
