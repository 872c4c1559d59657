/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of ids, hellos, acks, replies and frames; the keyed hash. */
#include "wire.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include "bootstrap.h" /* HK_EVENT_TEXT */

/* The first byte is neither ASCII nor a TLS record type, so that other protocols are recognised at their first byte;
 * the last byte is a version. */
static const uint8_t hello_magic[8] = {0x89, 'H', 'o', 'c', 'k', 'e', 't', 4};
static const uint8_t ack_magic[8] = {0x8a, 'H', 'o', 'c', 'k', 'e', 't', 2};
static const uint8_t reply_magic[8] = {0x8b, 'H', 'o', 'c', 'k', 'e', 't', 2};
static const uint8_t id_magic[8] = {0x8c, 'H', 'o', 'c', 'k', 'e', 't', 4};

void hk_put16(uint8_t *p, uint16_t v) {
  p[0] = (uint8_t)v;
  p[1] = (uint8_t)(v >> 8);
}
void hk_put32(uint8_t *p, uint32_t v) {
  hk_put16(p, (uint16_t)v);
  hk_put16(p + 2, (uint16_t)(v >> 16));
}
void hk_put64(uint8_t *p, uint64_t v) {
  hk_put32(p, (uint32_t)v);
  hk_put32(p + 4, (uint32_t)(v >> 32));
}
uint16_t hk_get16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
uint32_t hk_get32(const uint8_t *p) { return hk_get16(p) | (uint32_t)hk_get16(p + 2) << 16; }
uint64_t hk_get64(const uint8_t *p) { return hk_get32(p) | (uint64_t)hk_get32(p + 4) << 32; }

/* ---- SipHash-2-4-128 (Aumasson, Bernstein: SipHash: a fast short-input PRF, 2012) ---- */
static uint64_t wire_rotate(uint64_t x, int by) { return x << by | x >> (64 - by); }

static void wire_sip_rounds(uint64_t v[4], int n) {
  for (int i = 0; i < n; i++) {
    v[0] += v[1], v[1] = wire_rotate(v[1], 13) ^ v[0], v[0] = wire_rotate(v[0], 32);
    v[2] += v[3], v[3] = wire_rotate(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = wire_rotate(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = wire_rotate(v[1], 17) ^ v[2], v[2] = wire_rotate(v[2], 32);
  }
}

static void wire_sip_word(uint64_t v[4], uint64_t m) {
  v[3] ^= m;
  wire_sip_rounds(v, 2);
  v[0] ^= m;
}

void hk_siphash(uint8_t out[16], const uint8_t key[16], const void *data, size_t bytes) {
  const uint8_t *p = data;
  uint64_t k0 = hk_get64(key), k1 = hk_get64(key + 8);
  uint64_t v[4] = {k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du ^ 0xee, k0 ^ 0x6c7967656e657261u,
                   k1 ^ 0x7465646279746573u};
  uint64_t last = (uint64_t)bytes << 56;
  for (; bytes >= 8; bytes -= 8, p += 8) wire_sip_word(v, hk_get64(p));
  for (size_t i = 0; i < bytes; i++) last |= (uint64_t)p[i] << (8 * i);
  wire_sip_word(v, last);
  v[2] ^= 0xee;
  wire_sip_rounds(v, 4);
  hk_put64(out, v[0] ^ v[1] ^ v[2] ^ v[3]);
  v[1] ^= 0xdd;
  wire_sip_rounds(v, 4);
  hk_put64(out + 8, v[0] ^ v[1] ^ v[2] ^ v[3]);
}

void hk_derive(uint8_t out[16], const uint8_t key[16], const char *label, const void *data, size_t bytes) {
  /* A separate key for each label; then the data under it. */
  uint8_t own[16];
  hk_siphash(own, key, label, strlen(label));
  hk_siphash(out, own, data, bytes);
}

uint64_t hk_derive64(const uint8_t key[16], const char *label, const void *data, size_t bytes) {
  uint8_t out[16];
  hk_derive(out, key, label, data, bytes);
  return hk_get64(out);
}

bool hk_bytes_equal(const void *a, const void *b, size_t bytes) {
  const volatile uint8_t *x = a, *y = b;
  uint8_t difference = 0;
  for (size_t i = 0; i < bytes; i++) difference |= (uint8_t)(x[i] ^ y[i]);
  return !difference;
}

hk_status hk_random(void *out, size_t bytes) {
  uint8_t *p = out;
  while (bytes) {
    ssize_t n = getrandom(p, bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return HK_FAIL_ERRNO("getrandom gives no random bytes for a secret");
    p += n;
    bytes -= (size_t)n;
  }
  return HK_OK;
}

/* ---- addresses: 16 bytes (IPv4 as ::ffff:a.b.c.d) and a scope; the common port comes before them ---- */
enum { ADDR_BYTES = 20 };
static const uint8_t v4_mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

/* These two functions set only the fields of the address's family; the caller has zeroed the output. */
static void wire_addr_encode(uint8_t out[ADDR_BYTES], const hk_addr *a) {
  if (a->sa.sa_family == AF_INET) {
    memcpy(out, v4_mapped, sizeof v4_mapped);
    memcpy(out + 12, &a->v4.sin_addr, 4);
  } else {
    memcpy(out, &a->v6.sin6_addr, 16);
    hk_put32(out + 16, a->v6.sin6_scope_id);
  }
}

static void wire_addr_decode(hk_addr *a, const uint8_t in[ADDR_BYTES], unsigned port) {
  if (!memcmp(in, v4_mapped, sizeof v4_mapped)) {
    a->v4.sin_family = AF_INET;
    memcpy(&a->v4.sin_addr, in + 12, 4);
  } else {
    a->v6.sin6_family = AF_INET6;
    memcpy(&a->v6.sin6_addr, in, 16);
    a->v6.sin6_scope_id = hk_get32(in + 16);
  }
  hk_addr_set_port(a, port);
}

/* process 8, port 2, n 1, zero 1, pid 4, addresses 4 x 20 */
void hk_contact_encode(uint8_t out[HK_CONTACT_BYTES], const hk_contact *c) {
  memset(out, 0, HK_CONTACT_BYTES);
  hk_put64(out, c->process);
  hk_put16(out + 8, (uint16_t)hk_addr_port(&c->at[0]));
  out[10] = (uint8_t)c->n;
  hk_put32(out + 12, c->pid);
  for (uint32_t i = 0; i < c->n; i++) wire_addr_encode(out + 16 + i * ADDR_BYTES, &c->at[i]);
}

bool hk_contact_decode(hk_contact *c, const uint8_t in[HK_CONTACT_BYTES]) {
  memset(c, 0, sizeof *c);
  c->process = hk_get64(in);
  c->n = in[10];
  c->pid = hk_get32(in + 12);
  if (c->n < 1 || c->n > HK_BOOT_ADDRS) return false;
  for (uint32_t i = 0; i < c->n; i++) wire_addr_decode(&c->at[i], in + 16 + i * ADDR_BYTES, hk_get16(in + 8));
  return true;
}

uint64_t hk_contact_process(const uint8_t in[HK_CONTACT_BYTES]) { return hk_get64(in); }

/* ---- ids: magic 8, flags 1, n 1, port 2, zero 4, secret 16, addresses 4 x 20, zero 8, checksum 8 ---- */
enum { ID_FROM_ENV = 1, ID_SUM_AT = NCCL_UNIQUE_ID_BYTES - 8 };

/* A checksum against accidents (an id cut short or mixed up on its way), not against attacks: its key is public. */
static uint64_t wire_id_sum(const uint8_t *id) {
  static const uint8_t key[] = "Hocket unique id"; /* 16 bytes and a zero */
  return hk_derive64(key, "sum", id, ID_SUM_AT);
}

void hk_boot_id_encode(ncclUniqueId *out, const hk_boot_id *id) {
  uint8_t *p = (uint8_t *)out->internal;
  memset(p, 0, NCCL_UNIQUE_ID_BYTES);
  memcpy(p, id_magic, 8);
  p[8] = id->from_env ? ID_FROM_ENV : 0;
  p[9] = (uint8_t)id->n;
  hk_put16(p + 10, (uint16_t)hk_addr_port(&id->at[0]));
  memcpy(p + 16, id->secret, HK_SECRET_BYTES);
  for (uint32_t i = 0; i < id->n; i++) wire_addr_encode(p + 32 + i * ADDR_BYTES, &id->at[i]);
  hk_put64(p + ID_SUM_AT, wire_id_sum(p));
}

hk_status hk_boot_id_decode(hk_boot_id *id, const ncclUniqueId *in) {
  static const uint8_t zero[NCCL_UNIQUE_ID_BYTES];
  const uint8_t *p = (const uint8_t *)in->internal;
  memset(id, 0, sizeof *id);
  if (!memcmp(p, zero, sizeof zero))
    return HK_FAIL(HK_ERR_ARGUMENT,
                   "the unique id is all zeros: call ncclGetUniqueId on one rank and give its 128 bytes to "
                   "all others");
  if (memcmp(p, id_magic, 7))
    return HK_FAIL(HK_ERR_ARGUMENT, "the unique id was not made by this library: all ranks must load the same one, and "
                                    "all 128 bytes of the id must reach every rank");
  if (p[7] != id_magic[7])
    return HK_FAIL(HK_ERR_ARGUMENT,
                   "the unique id was made by another version of Hocket (format %d, here %d): all ranks "
                   "must load the same library",
                   p[7], id_magic[7]);
  if (hk_get64(p + ID_SUM_AT) != wire_id_sum(p) || p[9] < 1 || p[9] > HK_BOOT_ADDRS)
    return HK_FAIL(HK_ERR_ARGUMENT, "the unique id was damaged on its way to this rank (wrong checksum): all 128 bytes "
                                    "must arrive unchanged");
  id->from_env = p[8] & ID_FROM_ENV;
  id->n = p[9];
  memcpy(id->secret, p + 16, HK_SECRET_BYTES);
  for (uint32_t i = 0; i < id->n; i++) wire_addr_decode(&id->at[i], p + 32 + i * ADDR_BYTES, hk_get16(p + 10));
  return HK_OK;
}

uint64_t hk_boot_id_key(const hk_boot_id *id) { return hk_derive64(id->secret, "root", NULL, 0); }

/* ---- hello: magic 8, kind 1, zero 3, from 4, to 4, round 4, key 8, comm 8, tag 8, nonce 16, contact 96, job 8,
 * process 8, mac 16 ---- */
enum { HELLO_MAC_AT = HK_HELLO_BYTES - HK_MAC_BYTES };

void hk_hello_encode(uint8_t out[HK_HELLO_BYTES], const hk_hello *h, const uint8_t secret[HK_SECRET_BYTES]) {
  memset(out, 0, HK_HELLO_BYTES);
  memcpy(out, hello_magic, 8);
  out[8] = (uint8_t)h->kind;
  hk_put32(out + 12, (uint32_t)h->from);
  hk_put32(out + 16, (uint32_t)h->to);
  hk_put32(out + 20, h->round);
  hk_put64(out + 24, h->key);
  hk_put64(out + 32, h->comm);
  hk_put64(out + 40, h->tag);
  memcpy(out + 48, h->nonce, HK_NONCE_BYTES);
  memcpy(out + 64, h->contact, HK_CONTACT_BYTES);
  hk_put64(out + 64 + HK_CONTACT_BYTES, h->job);
  hk_put64(out + 72 + HK_CONTACT_BYTES, h->process);
  hk_derive(out + HELLO_MAC_AT, secret, "hello", out, HELLO_MAC_AT);
}

bool hk_hello_possible(const uint8_t *in, size_t have) { return !memcmp(in, hello_magic, have < 8 ? have : 8); }

bool hk_hello_decode(hk_hello *h, const uint8_t in[HK_HELLO_BYTES]) {
  if (memcmp(in, hello_magic, 8) || in[8] < HK_HELLO_JOIN || in[8] > HK_HELLO_FAILED) return false;
  h->kind = (hk_hello_kind)in[8];
  h->from = (int32_t)hk_get32(in + 12);
  h->to = (int32_t)hk_get32(in + 16);
  h->round = hk_get32(in + 20);
  h->key = hk_get64(in + 24);
  h->comm = hk_get64(in + 32);
  h->tag = hk_get64(in + 40);
  memcpy(h->nonce, in + 48, HK_NONCE_BYTES);
  memcpy(h->contact, in + 64, HK_CONTACT_BYTES);
  h->job = hk_get64(in + 64 + HK_CONTACT_BYTES);
  h->process = hk_get64(in + 72 + HK_CONTACT_BYTES);
  return true;
}

bool hk_hello_proved(const uint8_t in[HK_HELLO_BYTES], const uint8_t secret[HK_SECRET_BYTES]) {
  uint8_t mac[HK_MAC_BYTES];
  hk_derive(mac, secret, "hello", in, HELLO_MAC_AT);
  return hk_bytes_equal(mac, in + HELLO_MAC_AT, HK_MAC_BYTES);
}

/* The proof in an answer covers the nonce of the question, so that a recorded answer does not pass for a new one. */
static void wire_answer_mac(uint8_t mac[HK_MAC_BYTES], const char *label, const uint8_t *message, size_t bytes,
                            const uint8_t nonce[HK_NONCE_BYTES], const uint8_t secret[HK_SECRET_BYTES]) {
  uint8_t own[16];
  hk_derive(own, secret, label, nonce, HK_NONCE_BYTES);
  hk_siphash(mac, own, message, bytes);
}

/* ---- ack: magic 8, ack 4, zero 4, mac 16 ---- */
void hk_ack_encode(uint8_t out[HK_ACK_BYTES], hk_ack ack, const uint8_t nonce[HK_NONCE_BYTES],
                   const uint8_t secret[HK_SECRET_BYTES]) {
  memset(out, 0, HK_ACK_BYTES);
  memcpy(out, ack_magic, 8);
  hk_put32(out + 8, (uint32_t)ack);
  wire_answer_mac(out + 16, "ack", out, 16, nonce, secret);
}

bool hk_ack_decode(hk_ack *ack, const uint8_t in[HK_ACK_BYTES], const uint8_t nonce[HK_NONCE_BYTES],
                   const uint8_t secret[HK_SECRET_BYTES]) {
  uint8_t mac[HK_MAC_BYTES];
  wire_answer_mac(mac, "ack", in, 16, nonce, secret);
  uint32_t value = hk_get32(in + 8);
  if (memcmp(in, ack_magic, 8) || value > HK_ACK_NO_ROOM || !hk_bytes_equal(mac, in + 16, HK_MAC_BYTES)) return false;
  *ack = (hk_ack)value;
  return true;
}

/* ---- activity: sequence 8, count 8, signature 4, root 4, coll 1, dtype 1, redop 1, p2p 1, phase 1, failure 1,
 * ended 1, zero 1, phase_ms 8, waits_for 4, past 15 * 4, moves 8, calls 16 * 8, device 4, zero 4, long waits 8, their
 * nanoseconds 8, recent ones 30 * 8, mac 16 ---- */
enum {
  ACTIVITY_MOVES_AT = 44 + 4 * HK_ACTIVITY_PAST,
  ACTIVITY_CALLS_AT = ACTIVITY_MOVES_AT + 8,
  ACTIVITY_DEVICE_AT = ACTIVITY_CALLS_AT + 8 * HK_ACTIVITY_CALLS,
  ACTIVITY_WAITS_AT = ACTIVITY_DEVICE_AT + 8,
  ACTIVITY_MAC_AT = ACTIVITY_WAITS_AT + 16 + 8 * HK_ACTIVITY_WAITS
};
_Static_assert(ACTIVITY_MAC_AT + HK_MAC_BYTES == HK_ACTIVITY_BYTES, "an activity ends with its mac");

void hk_activity_encode(uint8_t out[HK_ACTIVITY_BYTES], const hk_activity *a, const uint8_t nonce[HK_NONCE_BYTES],
                        const uint8_t secret[HK_SECRET_BYTES]) {
  memset(out, 0, HK_ACTIVITY_BYTES);
  hk_put64(out, a->sequence);
  hk_put64(out + 8, a->count);
  hk_put32(out + 16, a->signature);
  hk_put32(out + 20, (uint32_t)a->root);
  out[24] = a->coll;
  out[25] = a->dtype;
  out[26] = a->redop;
  out[27] = a->p2p;
  out[28] = a->phase;
  out[29] = a->failure;
  out[30] = a->ended;
  hk_put64(out + 32, a->phase_ms);
  hk_put32(out + 40, (uint32_t)a->waits_for);
  for (int i = 0; i < HK_ACTIVITY_PAST; i++) hk_put32(out + 44 + 4 * i, a->past[i]);
  hk_put64(out + ACTIVITY_MOVES_AT, a->moves);
  for (int i = 0; i < HK_ACTIVITY_CALLS; i++) hk_put64(out + ACTIVITY_CALLS_AT + 8 * i, a->calls[i]);
  hk_put32(out + ACTIVITY_DEVICE_AT, (uint32_t)a->device);
  hk_put64(out + ACTIVITY_WAITS_AT, a->long_waits);
  hk_put64(out + ACTIVITY_WAITS_AT + 8, a->long_wait_ns);
  for (int i = 0; i < HK_ACTIVITY_WAITS; i++) hk_put64(out + ACTIVITY_WAITS_AT + 16 + 8 * i, a->recent_waits[i]);
  wire_answer_mac(out + ACTIVITY_MAC_AT, "activity", out, ACTIVITY_MAC_AT, nonce, secret);
}

bool hk_activity_decode(hk_activity *a, const uint8_t in[HK_ACTIVITY_BYTES], const uint8_t nonce[HK_NONCE_BYTES],
                        const uint8_t secret[HK_SECRET_BYTES]) {
  uint8_t mac[HK_MAC_BYTES];
  wire_answer_mac(mac, "activity", in, ACTIVITY_MAC_AT, nonce, secret);
  if (!hk_bytes_equal(mac, in + ACTIVITY_MAC_AT, HK_MAC_BYTES)) return false;
  *a = (hk_activity){.sequence = hk_get64(in),
                     .count = hk_get64(in + 8),
                     .signature = hk_get32(in + 16),
                     .root = (int32_t)hk_get32(in + 20),
                     .coll = in[24],
                     .dtype = in[25],
                     .redop = in[26],
                     .p2p = in[27],
                     .phase = in[28],
                     .failure = in[29],
                     .ended = in[30],
                     .device = (int32_t)hk_get32(in + ACTIVITY_DEVICE_AT),
                     .phase_ms = hk_get64(in + 32),
                     .waits_for = (int32_t)hk_get32(in + 40)};
  for (int i = 0; i < HK_ACTIVITY_PAST; i++) a->past[i] = hk_get32(in + 44 + 4 * i);
  a->moves = hk_get64(in + ACTIVITY_MOVES_AT);
  for (int i = 0; i < HK_ACTIVITY_CALLS; i++) a->calls[i] = hk_get64(in + ACTIVITY_CALLS_AT + 8 * i);
  a->long_waits = hk_get64(in + ACTIVITY_WAITS_AT);
  a->long_wait_ns = hk_get64(in + ACTIVITY_WAITS_AT + 8);
  for (int i = 0; i < HK_ACTIVITY_WAITS; i++) a->recent_waits[i] = hk_get64(in + ACTIVITY_WAITS_AT + 16 + 8 * i);
  return true;
}

/* ---- reply: magic 8, status 4, another job 1, zero 3, salt 8, next 96, text 1536, zero 8, mac 16 ---- */
enum { REPLY_TEXT_AT = 24 + HK_CONTACT_BYTES, REPLY_MAC_AT = HK_REPLY_BYTES - HK_MAC_BYTES };
_Static_assert(REPLY_TEXT_AT + HK_REPLY_TEXT <= REPLY_MAC_AT, "a reply holds its text");

void hk_reply_encode(uint8_t out[HK_REPLY_BYTES], const hk_reply *r, const uint8_t nonce[HK_NONCE_BYTES],
                     const uint8_t secret[HK_SECRET_BYTES]) {
  memset(out, 0, HK_REPLY_BYTES);
  memcpy(out, reply_magic, 8);
  hk_put32(out + 8, (uint32_t)r->status);
  out[12] = r->other_job;
  hk_put64(out + 16, r->salt);
  memcpy(out + 24, r->next, HK_CONTACT_BYTES);
  snprintf((char *)out + REPLY_TEXT_AT, HK_REPLY_TEXT, "%s", r->text);
  wire_answer_mac(out + REPLY_MAC_AT, "reply", out, REPLY_MAC_AT, nonce, secret);
}

bool hk_reply_decode(hk_reply *r, const uint8_t in[HK_REPLY_BYTES], const uint8_t nonce[HK_NONCE_BYTES],
                     const uint8_t secret[HK_SECRET_BYTES]) {
  uint8_t mac[HK_MAC_BYTES];
  wire_answer_mac(mac, "reply", in, REPLY_MAC_AT, nonce, secret);
  uint32_t status = hk_get32(in + 8);
  if (memcmp(in, reply_magic, 8) || status > HK_ERR_REMOTE || !hk_bytes_equal(mac, in + REPLY_MAC_AT, HK_MAC_BYTES))
    return false;
  r->status = (hk_status)status;
  r->other_job = in[12];
  r->salt = hk_get64(in + 16);
  memcpy(r->next, in + 24, HK_CONTACT_BYTES);
  memcpy(r->text, in + REPLY_TEXT_AT, HK_REPLY_TEXT);
  r->text[HK_REPLY_TEXT - 1] = 0;
  return true;
}

/* ---- frame header: type 2, round 2, bytes 4, seq 8 ---- */
void hk_frame_encode(uint8_t out[HK_FRAME_BYTES], const hk_frame *f) {
  hk_put16(out, f->type);
  hk_put16(out + 2, f->round);
  hk_put32(out + 4, f->bytes);
  hk_put64(out + 8, f->seq);
}

bool hk_frame_decode(hk_frame *f, const uint8_t in[HK_FRAME_BYTES], uint32_t round) {
  f->type = hk_get16(in);
  f->round = hk_get16(in + 2);
  f->bytes = hk_get32(in + 4);
  f->seq = hk_get64(in + 8);
  if (f->round != round) return false;
  switch (f->type) {
    case HK_FRAME_CONTACT: return f->bytes == HK_CONTACT_BYTES;
    case HK_FRAME_GATHER: return f->bytes <= HK_FRAME_MAX;
    case HK_FRAME_BARRIER:
    case HK_FRAME_GOODBYE: return f->bytes == 0;
    case HK_FRAME_EVENT: return f->bytes >= HK_EVENT_BYTES && f->bytes < HK_EVENT_BYTES + HK_EVENT_TEXT;
    default: return false;
  }
}
