/* SPDX-License-Identifier: Apache-2.0 */
/* What the bootstrap sends and puts into unique ids: fixed layouts, little-endian, no I/O. docs/bootstrap.md draws
 * them. Every decoder accepts any bytes and returns false for invalid ones. */
#pragma once
#include <nccl.h> /* ncclUniqueId */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/addr.h"
#include "activity.h"

enum {
  HK_SECRET_BYTES = 16,
  HK_NONCE_BYTES = 16,
  HK_MAC_BYTES = 16,
  HK_BOOT_ADDRS = 4, /* addresses that an id or a contact carries */
  HK_CONTACT_BYTES = 96,
  HK_HELLO_BYTES = 192,
  HK_ACK_BYTES = 32,
  HK_ACTIVITY_BYTES = 520,
  HK_REPLY_TEXT = 1536,
  HK_REPLY_BYTES = 144 + HK_REPLY_TEXT,
  HK_FRAME_BYTES = 16, /* a frame's header */
  HK_EVENT_BYTES = 16  /* an event's, before its text */
};

/* ---- keyed hash ---- */
/* SipHash-2-4 with 16 bytes of result: a keyed hash that cannot be predicted without the key. */
void hk_siphash(uint8_t out[16], const uint8_t key[16], const void *data, size_t bytes);
/* The same over a label and data: a result for one label says nothing about that for another. */
void hk_derive(uint8_t out[16], const uint8_t key[16], const char *label, const void *data, size_t bytes);
uint64_t hk_derive64(const uint8_t key[16], const char *label, const void *data, size_t bytes);
/* Takes the same time wherever the bytes differ. */
bool hk_bytes_equal(const void *a, const void *b, size_t bytes);
hk_status hk_random(void *out, size_t bytes);

void hk_put16(uint8_t *p, uint16_t v);
void hk_put32(uint8_t *p, uint32_t v);
void hk_put64(uint8_t *p, uint64_t v);
uint16_t hk_get16(const uint8_t *p);
uint32_t hk_get32(const uint8_t *p);
uint64_t hk_get64(const uint8_t *p);

/* ---- where a process listens ---- */
typedef struct hk_contact {
  uint64_t process; /* equal: the same process, reached through memory */
  uint32_t pid;     /* as its own host knows it: for messages */
  uint32_t n;       /* 1..HK_BOOT_ADDRS, best first */
  hk_addr at[HK_BOOT_ADDRS];
} hk_contact;
void hk_contact_encode(uint8_t out[HK_CONTACT_BYTES], const hk_contact *c);
bool hk_contact_decode(hk_contact *c, const uint8_t in[HK_CONTACT_BYTES]);
uint64_t hk_contact_process(const uint8_t in[HK_CONTACT_BYTES]);

/* ---- unique ids ---- */
typedef struct hk_boot_id {
  uint8_t secret[HK_SECRET_BYTES];
  bool from_env; /* made from an address that all ranks were given: rank 0 may start later than the others */
  uint32_t n;
  hk_addr at[HK_BOOT_ADDRS];
} hk_boot_id;
void hk_boot_id_encode(ncclUniqueId *out, const hk_boot_id *id);
hk_status hk_boot_id_decode(hk_boot_id *id, const ncclUniqueId *in); /* HK_ERR_ARGUMENT with the likely cause */
uint64_t hk_boot_id_key(const hk_boot_id *id); /* names the root on the wire and does not reveal the secret */

/* ---- hello: the first bytes of every connection ---- */
typedef enum hk_hello_kind {
  HK_HELLO_JOIN = 1, /* to a root: a rank, its contact; the answer is the next rank's contact */
  HK_HELLO_CONTACT,  /* to a root: only the contact of the first rank after the root's share; no answer */
  HK_HELLO_OVERLAY,  /* a link of the overlay */
  HK_HELLO_DATA,     /* a connection for a transport */
  HK_HELLO_ASK,      /* what does the rank `to` do? The answer is an activity; then the connection ends */
  HK_HELLO_FAILED    /* to a root: the rank cannot join. The cause follows as text; after the ack the connection ends */
} hk_hello_kind;
typedef struct hk_hello {
  hk_hello_kind kind;
  int32_t from;   /* rank that connects */
  int32_t to;     /* OVERLAY, DATA, ASK: the rank that is addressed. Else: number of ranks */
  uint32_t round; /* OVERLAY: distance 2^round.  To a root: number of roots */
  uint64_t key;   /* names the secret: hk_boot_id_key, or a family's */
  uint64_t comm;  /* OVERLAY, DATA, ASK: the communicator */
  uint64_t tag;   /* DATA: the transport's. To a root: number of this root */
  uint8_t nonce[HK_NONCE_BYTES];
  uint8_t contact[HK_CONTACT_BYTES]; /* JOIN, CONTACT */
  /* To a root: the token of hk_boot_job; 0 if the id is not made from NCCL_COMM_ID */
  uint64_t job;
  /* OVERLAY, DATA, ASK: the process of the rank that is addressed (hk_contact.process): in a separate network an
   * address of another host may also be an address of this host, and this process has the secret, too */
  uint64_t process;
} hk_hello;
void hk_hello_encode(uint8_t out[HK_HELLO_BYTES], const hk_hello *h, const uint8_t secret[HK_SECRET_BYTES]);
/* False if these first `have` bytes cannot begin a hello: the connection is dropped at its first wrong byte. */
bool hk_hello_possible(const uint8_t *in, size_t have);
/* Reads the fields, which are not to be trusted before hk_hello_proved. */
bool hk_hello_decode(hk_hello *h, const uint8_t in[HK_HELLO_BYTES]);
bool hk_hello_proved(const uint8_t in[HK_HELLO_BYTES], const uint8_t secret[HK_SECRET_BYTES]);

/* ---- ack: the listener proves that it has the secret, too, and accepts or refuses ---- */
typedef enum hk_ack {
  HK_ACK_OK,
  HK_ACK_GONE,    /* the rank `to` has left the communicator */
  HK_ACK_UNKNOWN, /* ASK: the rank is not in the communicator, not yet or no longer */
  HK_ACK_NO_ROOM  /* its process has no descriptor or no memory for this connection */
} hk_ack;
void hk_ack_encode(uint8_t out[HK_ACK_BYTES], hk_ack ack, const uint8_t nonce[HK_NONCE_BYTES],
                   const uint8_t secret[HK_SECRET_BYTES]);
bool hk_ack_decode(hk_ack *ack, const uint8_t in[HK_ACK_BYTES], const uint8_t nonce[HK_NONCE_BYTES],
                   const uint8_t secret[HK_SECRET_BYTES]);

/* ---- activity: after the ack, the answer to HK_HELLO_ASK ---- */
void hk_activity_encode(uint8_t out[HK_ACTIVITY_BYTES], const hk_activity *a, const uint8_t nonce[HK_NONCE_BYTES],
                        const uint8_t secret[HK_SECRET_BYTES]);
bool hk_activity_decode(hk_activity *a, const uint8_t in[HK_ACTIVITY_BYTES], const uint8_t nonce[HK_NONCE_BYTES],
                        const uint8_t secret[HK_SECRET_BYTES]);

/* ---- reply: the root's answer once all ranks have joined, or after an error ---- */
typedef struct hk_reply {
  hk_status status;
  bool other_job; /* the root belongs to another job; `text` names it */
  uint64_t salt;  /* random, equal for all ranks of the root: part of the communicator's id */
  uint8_t next[HK_CONTACT_BYTES];
  char text[HK_REPLY_TEXT]; /* with an error */
} hk_reply;
void hk_reply_encode(uint8_t out[HK_REPLY_BYTES], const hk_reply *r, const uint8_t nonce[HK_NONCE_BYTES],
                     const uint8_t secret[HK_SECRET_BYTES]);
bool hk_reply_decode(hk_reply *r, const uint8_t in[HK_REPLY_BYTES], const uint8_t nonce[HK_NONCE_BYTES],
                     const uint8_t secret[HK_SECRET_BYTES]);

/* ---- frames: what the overlay's links carry after the ack ---- */
typedef enum hk_frame_type {
  HK_FRAME_OPEN = 1, /* in memory only; on a socket the hello does this */
  HK_FRAME_CONTACT,  /* pointer doubling */
  HK_FRAME_GATHER,   /* rows of an allgather (gather.c) */
  HK_FRAME_BARRIER,
  HK_FRAME_EVENT,
  HK_FRAME_GOODBYE
} hk_frame_type;
enum { HK_FRAME_MAX = 1 << 30 }; /* bytes of a payload */
typedef struct hk_frame {
  uint16_t type, round;
  uint32_t bytes; /* of the payload that follows */
  uint64_t seq;   /* number of the collective */
} hk_frame;
void hk_frame_encode(uint8_t out[HK_FRAME_BYTES], const hk_frame *f);
/* False if the header is not one of a frame on a link at distance 2^round. */
bool hk_frame_decode(hk_frame *f, const uint8_t in[HK_FRAME_BYTES], uint32_t round);
