/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the two ends of an RDMA connection send each other: the messages of the control socket, and what cards write
 * into the peer's memory. ib_conn.h says how it is used.
 */
#pragma once
#include "../../link.h" /* HK_LINK_AHEAD */
#include "ib_port.h"

enum {
  HK_IB_QPS = 128, /* of a connection, on all paths together: as many as NCCL's net_ib */
  HK_IB_PATHS = 4,
  HK_IB_ENTRY = 4096, /* bytes of an entry of the rings for small messages: header and payload */
  HK_IB_HEADER = 32,
  HK_IB_SMALL = HK_IB_ENTRY - HK_IB_HEADER,
  HK_IB_SPLIT_MIN = 65536,  /* smaller messages go over one queue pair */
  HK_IB_RUN = 4,            /* slots of a GPU that go as one message ... */
  HK_IB_RUN_BYTES = 524288, /* ... of so many bytes, at most */
  HK_IB_INLINE = 256,       /* inline bytes that a queue pair is asked for */
  HK_IB_CQ_DEPTH = 8192,
  HK_IB_CQS = 64,
  HK_IB_PLACES = HK_LINK_AHEAD,
  HK_IB_TICK_MS = 100,
  HK_IB_KERNEL_TEXT = 180, /* bytes of hk_ib_kernel_reason */
  HK_IB_REMOTE = 255,      /* the channel of connections for one-sided operations */
  HK_IB_STAGES = 8,        /* ib_remote.c: pieces that are copied before they are sent */
  HK_IB_WINDOWS = 16,      /* whose keys are kept */
  HK_IB_MAGIC = 0x686b6962
};
#define HK_IB_HAS_HEADER 0x80000000u /* flag of an immediate */
#define HK_IB_WANTS_RING 0x7fffffffu /* an immediate without data: the sender has a message for the FIFO */

/* ---- messages of the control socket ---- */
typedef enum hk_ib_kind {
  HK_IB_HELLO = 1,
  HK_IB_EPOCH,
  HK_IB_READY,
  HK_IB_RING,
  HK_IB_BROKEN,
  HK_IB_BYE,
  HK_IB_CEDE,
  HK_IB_END, /* the connection has failed and ends */
  HK_IB_ASK, /* a put's origin, for the keys of a window */
  HK_IB_KEYS
} hk_ib_kind;

enum {
  HK_IB_ON_GPU = 1, /* the CPU cannot access it: payloads of every size are to be written there */
  HK_IB_OPEN = 2    /* there is a receiver, whether its FIFO is registered or not */
};
typedef struct hk_ib_memory {
  uint64_t addr; /* 0: not known yet */
  uint32_t rkey, flags;
} hk_ib_memory;

typedef struct hk_ib_epoch {
  uint8_t npaths, nqps; /* queue pair q uses path q % npaths, but for one of credits alone */
  uint8_t reserved[2];
  uint32_t psn;
  struct {
    uint8_t port[2], gid[2]; /* indices of the lower rank's and of the higher rank's, as offered */
    uint8_t mtu;
    uint8_t reserved[3];
  } paths[HK_IB_PATHS];
  uint32_t qp[HK_IB_QPS];
  uint64_t received, consumed;     /* slots of the direction towards the sender of this message */
  hk_ib_memory arena[HK_IB_PATHS]; /* for each path: its device's key */
  hk_ibv_ece ece[HK_IB_QPS];       /* hk_ib_fill_ece; all 0: none */
} hk_ib_epoch;

typedef struct hk_ib_keys {
  uint64_t window, addr, bytes; /* a hk_remote_window; bytes 0: the signal alone is asked for */
  uint64_t value;               /* of the signal */
  uint32_t signal;
  uint32_t registered; /* 0: a card takes no such memory */
  uint32_t rkeys[HK_IB_PATHS];
} hk_ib_keys;

typedef struct hk_ib_msg {
  uint32_t magic, kind;
  uint32_t epoch;
  uint32_t nslots, slot_bytes;
  hk_ib_memory ring[HK_IB_PATHS]; /* the FIFO's payloads, for each path: HK_IB_EPOCH, HK_IB_RING */
  union {
    struct {
      uint32_t nports, nqps, apart; /* apart: see hk_ib_conn */
      hk_ib_port ports[HK_IB_OFFERED];
    } hello;
    hk_ib_epoch epoch_info;
    uint64_t received; /* HK_IB_BYE */
    struct {
      uint32_t bad; /* paths, one bit each */
      char text[156];
    } broken; /* HK_IB_BROKEN */
    struct {
      uint32_t directions;
      char cause[156];
    } cede;          /* HK_IB_CEDE */
    hk_ib_keys keys; /* HK_IB_ASK, HK_IB_KEYS */
  };
} hk_ib_msg;

/* The place of a message's payload: after its header, in the FIFO, or in the place that the receiver has offered. */
typedef enum hk_ib_where { HK_IB_BEHIND, HK_IB_IN_FIFO, HK_IB_IN_PLACE } hk_ib_where;

/* A place for one slot, as the receiver writes it into the sender's memory. */
typedef struct hk_ib_place {
  _Atomic uint64_t addr, bytes, keys[HK_IB_PATHS / 2],
      check; /* a word has the keys of two paths, the first in its low half */
} hk_ib_place;
_Static_assert(HK_IB_PATHS == 4, "check_of() covers two words of keys");

/* The destination of a large message. */
typedef struct hk_ib_target {
  uint64_t addr;
  uint32_t rkeys[HK_IB_PATHS];
} hk_ib_target;

/* The header before a payload in a ring. A large message's write with immediate consists of it alone. */
typedef struct hk_ib_header {
  uint32_t seq, bytes, signature;
  uint16_t parts, where; /* number of immediates without a header that belong to it; hk_ib_where */
  uint64_t consumed;     /* slots of the other direction: the credit */
  uint32_t more;         /* slots after this one that have come with it, and are like it */
  uint32_t reserved;
} hk_ib_header;
_Static_assert(sizeof(hk_ib_header) == HK_IB_HEADER, "the payload after it is aligned");
