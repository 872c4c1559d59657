/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* What the bootstrap puts on the wire: every field of every message comes back, what is not valid is refused, and the
 * bytes are the same as ever. */
#include <sys/random.h>
#include "../../src/boot/bootstrap.h"
#include "../../src/boot/wire.h"
#include "../support/suite.h"

static const uint8_t secret[HK_SECRET_BYTES] = "a job's secret", other_secret[HK_SECRET_BYTES] = {1};
static const uint8_t nonce[HK_NONCE_BYTES] = "a fresh nonce", other_nonce[HK_NONCE_BYTES] = {2};

/* A change of these bytes needs another version in the messages' first 8 bytes. */
static void expect_sum(const void *message, size_t bytes, uint64_t sum) {
  uint64_t now = hk_derive64(secret, "wire", message, bytes);
  ck_assert_msg(now == sum, "%016llx", (unsigned long long)now);
}

/* ---- numbers, the keyed hash, randomness ---- */

TEST(numbers) {
  static const uint8_t bytes[8] = {1, 2, 3, 4, 0xf5, 0xf6, 0xf7, 0xf8};
  uint8_t out[8];
  ck_assert_uint_eq(hk_get16(bytes), 0x0201);
  ck_assert_uint_eq(hk_get32(bytes + 4), 0xf8f7f6f5u);
  ck_assert_uint_eq(hk_get64(bytes), 0xf8f7f6f504030201u);
  hk_put64(out, hk_get64(bytes));
  ck_assert_mem_eq(out, bytes, 8);
}

/* Made with another implementation of SipHash-2-4-128: keys and data are 0, 1, 2, ... */
static const struct {
  size_t bytes;
  uint8_t sum[16];
} vectors[] = {
    {0, {0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93}},
    {1, {0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc, 0x45}},
    {7, {0xa1, 0xf1, 0xeb, 0xbe, 0xd8, 0xdb, 0xc1, 0x53, 0xc0, 0xb8, 0x4a, 0xa6, 0x1f, 0xf0, 0x82, 0x39}},
    {8, {0x3b, 0x62, 0xa9, 0xba, 0x62, 0x58, 0xf5, 0x61, 0x0f, 0x83, 0xe2, 0x64, 0xf3, 0x14, 0x97, 0xb4}},
    {9, {0x26, 0x44, 0x99, 0x06, 0x0a, 0xd9, 0xba, 0xab, 0xc4, 0x7f, 0x8b, 0x02, 0xbb, 0x6d, 0x71, 0xed}},
    {16, {0x6e, 0xe2, 0xa4, 0xca, 0x67, 0xb0, 0x54, 0xbb, 0xfd, 0x33, 0x15, 0xbf, 0x85, 0x23, 0x05, 0x77}},
    {63, {0x51, 0x50, 0xd1, 0x77, 0x2f, 0x50, 0x83, 0x4a, 0x50, 0x3e, 0x06, 0x9a, 0x97, 0x3f, 0xbd, 0x7c}},
};

TEST(keyed_hash) {
  uint8_t key[16], in[64], out[16];
  for (int i = 0; i < 64; i++) in[i] = (uint8_t)i;
  memcpy(key, in, sizeof key);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(vectors); i++) {
    hk_siphash(out, key, in, vectors[i].bytes);
    ck_assert_mem_eq(out, vectors[i].sum, 16);
  }
  ck_assert_uint_ne(hk_derive64(key, "a", in, 8), hk_derive64(key, "b", in, 8));
  for (int i = 0; i < 16; i++) {
    memcpy(out, key, 16);
    ck_assert(hk_bytes_equal(out, key, 16));
    out[i] ^= 0x80;
    ck_assert(!hk_bytes_equal(out, key, 16) && hk_bytes_equal(out, key, (size_t)i));
  }
}

/* The kernel may give less than is asked for, or nothing because of a signal. */
static int calls, error;
ssize_t getrandom(void *out, size_t bytes, unsigned flags) {
  (void)flags;
  errno = calls++ ? error : EINTR;
  if (errno) return -1;
  size_t n = bytes < 5 ? bytes : 5;
  memset(out, calls, n);
  return (ssize_t)n;
}

TEST(randomness) {
  uint8_t out[16];
  memset(out, 0xff, sizeof out);
  ck_assert_int_eq(hk_random(out, 12), HK_OK);
  ck_assert_mem_eq(out, "\2\2\2\2\2\3\3\3\3\3\4\4\xff\xff\xff\xff", 16);
  error = ENOSYS;
  ck_assert_int_eq(hk_random(out, 1), HK_ERR_SYSTEM);
}

/* ---- contacts and ids ---- */

static void set_addresses(hk_addr *at, unsigned port) {
  memset(at, 0, HK_BOOT_ADDRS * sizeof *at);
  for (int i = 0; i < HK_BOOT_ADDRS; i++) {
    at[i].sa.sa_family = i % 2 ? AF_INET : AF_INET6;
    memset(i % 2 ? (void *)&at[i].v4.sin_addr : (void *)&at[i].v6.sin6_addr, 0x11 * (i + 1), i % 2 ? 4 : 16);
    if (i % 2 == 0) at[i].v6.sin6_scope_id = 0x01020304u * (unsigned)(i + 1);
    hk_addr_set_port(&at[i], port);
  }
}

static void expect_addresses(const hk_addr *at, const hk_addr *want, uint32_t n) {
  for (uint32_t i = 0; i < HK_BOOT_ADDRS; i++) {
    hk_addr none = {.bytes = {0}};
    ck_assert_mem_eq(&at[i], i < n ? &want[i] : &none, sizeof *at);
  }
}

TEST(contacts) {
  hk_contact c = {.process = 0x0102030405060708u, .pid = 0x11223344}, back;
  uint8_t bytes[HK_CONTACT_BYTES + 1];
  set_addresses(c.at, 0xabcd);
  for (c.n = 1; c.n <= HK_BOOT_ADDRS; c.n++) {
    memset(bytes, 0xee, sizeof bytes);
    hk_contact_encode(bytes, &c);
    memset(&back, 0xff, sizeof back);
    ck_assert(hk_contact_decode(&back, bytes) && bytes[HK_CONTACT_BYTES] == 0xee);
    ck_assert(back.process == c.process && back.pid == c.pid && back.n == c.n);
    ck_assert_uint_eq(hk_contact_process(bytes), c.process);
    expect_addresses(back.at, c.at, c.n);
  }
  expect_sum(bytes, HK_CONTACT_BYTES, 0x50dbbc206fad613fu);
  for (int n = 0; n <= HK_BOOT_ADDRS + 1; n++) {
    bytes[10] = (uint8_t)n;
    ck_assert_int_eq(hk_contact_decode(&back, bytes), n >= 1 && n <= HK_BOOT_ADDRS);
  }
}

/* An id with this byte in that place, and the right checksum. */
static hk_status decode_with(const ncclUniqueId *id, int at, uint8_t byte, hk_boot_id *out) {
  ncclUniqueId changed = *id;
  uint8_t *p = (uint8_t *)changed.internal;
  p[at] = byte;
  hk_put64(p + 120, hk_derive64((const uint8_t *)"Hocket unique id", "sum", p, 120));
  return hk_boot_id_decode(out, &changed);
}

TEST(ids) {
  static const char *const words[] = {"all zeros", "not made by this library", "another version", "damaged"};
  hk_boot_id id = {.n = 0}, back;
  ncclUniqueId bytes = {{0}};
  memcpy(id.secret, secret, sizeof secret);
  set_addresses(id.at, 4321);
  for (id.n = 1; id.n <= HK_BOOT_ADDRS; id.n++) {
    id.from_env = id.n % 2;
    hk_boot_id_encode(&bytes, &id);
    memset(&back, 0xff, sizeof back);
    ck_assert_int_eq(hk_boot_id_decode(&back, &bytes), HK_OK);
    ck_assert(back.n == id.n && back.from_env == id.from_env && !memcmp(back.secret, secret, sizeof secret));
    ck_assert_uint_eq(hk_boot_id_key(&back), hk_boot_id_key(&id));
    expect_addresses(back.at, id.at, id.n);
  }
  expect_sum(&bytes, sizeof bytes, 0x1b41d381380a072cu);
  for (int n = 0; n <= HK_BOOT_ADDRS + 1; n++)
    ck_assert_int_eq(decode_with(&bytes, 9, (uint8_t)n, &back), n >= 1 && n <= HK_BOOT_ADDRS ? HK_OK : HK_ERR_ARGUMENT);
  for (int i = 0; i < 4; i++) {
    ncclUniqueId wrong = bytes;
    if (i == 0) memset(&wrong, 0, sizeof wrong);
    if (i > 0) wrong.internal[i == 1 ? 6 : i == 2 ? 7 : 127] ^= 1;
    ck_assert_int_eq(hk_boot_id_decode(&back, &wrong), HK_ERR_ARGUMENT);
    ck_assert_msg(strstr(hk_last_error(), words[i]), "%d: %s", i, hk_last_error());
  }
}

/* ---- hellos and answers ---- */

TEST(hellos) {
  hk_hello h = {.kind = HK_HELLO_DATA,
                .from = -0x01020304,
                .to = 0x15161718,
                .round = 0x25262728,
                .key = 0x3132333435363738u,
                .comm = 0x4142434445464748u,
                .tag = 0x5152535455565758u,
                .job = 0x6162636465666768u,
                .process = 0x7172737475767778u},
           back;
  uint8_t bytes[HK_HELLO_BYTES];
  memcpy(h.nonce, nonce, sizeof nonce);
  for (int i = 0; i < HK_CONTACT_BYTES; i++) h.contact[i] = (uint8_t)(i + 100);
  memset(&back, 0xff, sizeof back);
  hk_hello_encode(bytes, &h, secret);
  ck_assert(hk_hello_decode(&back, bytes));
  ck_assert_mem_eq(&back, &h, sizeof h);
  expect_sum(bytes, sizeof bytes, 0x9931cc3d279ec63eu);
  ck_assert(hk_hello_proved(bytes, secret) && !hk_hello_proved(bytes, other_secret));
  for (size_t i = 0; i < sizeof bytes; i++) {
    bytes[i] ^= 0x40;
    ck_assert_msg(!hk_hello_proved(bytes, secret), "byte %zu", i);
    for (size_t have = 0; have <= 10; have++)
      ck_assert_msg(hk_hello_possible(bytes, have) == (i >= 8 || have <= i), "byte %zu of %zu", i, have);
    if (i < 8) ck_assert(!hk_hello_decode(&back, bytes));
    bytes[i] ^= 0x40;
  }
  for (int kind = 0; kind <= HK_HELLO_FAILED + 1; kind++) {
    bytes[8] = (uint8_t)kind;
    ck_assert_int_eq(hk_hello_decode(&back, bytes), kind >= HK_HELLO_JOIN && kind <= HK_HELLO_FAILED);
  }
}

/* An answer is valid with the question's nonce and the secret, and not with one bit changed. */
#define EXPECT_PROVED(decode, bytes)                                                                                   \
  do {                                                                                                                 \
    ck_assert(decode(bytes, nonce, secret));                                                                           \
    ck_assert(!decode(bytes, other_nonce, secret) && !decode(bytes, nonce, other_secret));                             \
    for (size_t i = 0; i < sizeof bytes; i++) {                                                                        \
      bytes[i] ^= 0x20;                                                                                                \
      ck_assert_msg(!decode(bytes, nonce, secret), "byte %zu", i);                                                     \
      bytes[i] ^= 0x20;                                                                                                \
    }                                                                                                                  \
  } while (0)

TEST(acks) {
  uint8_t bytes[HK_ACK_BYTES];
  hk_ack back;
#define DECODE(in, n, s) hk_ack_decode(&back, in, n, s)
  for (int ack = HK_ACK_OK; ack <= HK_ACK_NO_ROOM + 1; ack++) {
    hk_ack_encode(bytes, (hk_ack)ack, nonce, secret);
    if (ack <= HK_ACK_NO_ROOM) EXPECT_PROVED(DECODE, bytes);
    ck_assert_int_eq(DECODE(bytes, nonce, secret), ack <= HK_ACK_NO_ROOM);
    if (ack <= HK_ACK_NO_ROOM) ck_assert_int_eq(back, ack);
    if (ack == HK_ACK_GONE) expect_sum(bytes, sizeof bytes, 0x71aea9d5d5f66ef9u);
  }
#undef DECODE
}

TEST(activities) {
  uint8_t bytes[HK_ACTIVITY_BYTES];
  hk_activity a = {.sequence = 0x0102030405060708u,
                   .count = 0x1112131415161718u,
                   .signature = 0x21222324,
                   .root = -0x31323334,
                   .coll = 1,
                   .dtype = 2,
                   .redop = 3,
                   .p2p = 4,
                   .phase = 5,
                   .failure = 6,
                   .ended = 7,
                   .device = 8,
                   .phase_ms = 0x4142434445464748u,
                   .waits_for = -1,
                   .moves = 0x5152535455565758u,
                   .long_waits = 0x8182838485868788u,
                   .long_wait_ns = 0x9192939495969798u},
              back;
  for (int i = 0; i < HK_ACTIVITY_PAST; i++) a.past[i] = 0x61626364u * (unsigned)(i + 1);
  for (int i = 0; i < HK_ACTIVITY_CALLS; i++) a.calls[i] = 0x7172737475767778u * (unsigned)(i + 1);
  for (int i = 0; i < HK_ACTIVITY_WAITS; i++) a.recent_waits[i] = 0xa1a2a3a4a5a6a7a8u * (unsigned)(i + 1);
  hk_activity_encode(bytes, &a, nonce, secret);
#define DECODE(in, n, s) hk_activity_decode(&back, in, n, s)
  EXPECT_PROVED(DECODE, bytes);
#undef DECODE
  expect_sum(bytes, sizeof bytes, 0xee995f2896bcf82du);
  ck_assert(hk_activity_decode(&back, bytes, nonce, secret));
  ck_assert(back.sequence == a.sequence && back.count == a.count && back.signature == a.signature &&
            back.root == a.root && back.coll == 1 && back.dtype == 2 && back.redop == 3 && back.p2p == 4 &&
            back.phase == 5 && back.phase_ms == a.phase_ms && back.waits_for == -1 && back.moves == a.moves &&
            back.failure == 6 && back.ended == 7 && back.device == 8 && !memcmp(back.past, a.past, sizeof a.past) &&
            !memcmp(back.calls, a.calls, sizeof a.calls) && back.long_waits == a.long_waits &&
            back.long_wait_ns == a.long_wait_ns && !memcmp(back.recent_waits, a.recent_waits, sizeof a.recent_waits));
}

TEST(replies) {
  static hk_reply r = {.other_job = true, .salt = 0x0102030405060708u}, back;
  static uint8_t bytes[HK_REPLY_BYTES];
  memset(r.text, 't', sizeof r.text - 1);
  for (int i = 0; i < HK_CONTACT_BYTES; i++) r.next[i] = (uint8_t)(i + 50);
#define DECODE(in, n, s) hk_reply_decode(&back, in, n, s)
  for (int status = HK_OK; status <= HK_ERR_REMOTE + 1; status++) {
    r.status = (hk_status)status;
    hk_reply_encode(bytes, &r, nonce, secret);
    ck_assert_int_eq(DECODE(bytes, nonce, secret), status <= HK_ERR_REMOTE);
    if (status > HK_ERR_REMOTE) continue;
    ck_assert(back.status == r.status && back.other_job && back.salt == r.salt);
    ck_assert(!memcmp(back.next, r.next, sizeof r.next) && !strcmp(back.text, r.text));
    if (status == HK_ERR_REMOTE) EXPECT_PROVED(DECODE, bytes);
    if (status == HK_ERR_REMOTE) expect_sum(bytes, sizeof bytes, 0xc4f23553448385ecu);
  }
#undef DECODE
}

/* ---- frames ---- */

static const struct {
  int type;
  uint32_t bytes;
  bool valid;
} frames[] = {
    {HK_FRAME_OPEN, 0, false}, /* in memory only */
    {HK_FRAME_CONTACT, HK_CONTACT_BYTES, true},
    {HK_FRAME_CONTACT, HK_CONTACT_BYTES - 1, false},
    {HK_FRAME_CONTACT, HK_CONTACT_BYTES + 1, false},
    {HK_FRAME_GATHER, 0, true},
    {HK_FRAME_GATHER, HK_FRAME_MAX, true},
    {HK_FRAME_GATHER, HK_FRAME_MAX + 1u, false},
    {HK_FRAME_BARRIER, 0, true},
    {HK_FRAME_BARRIER, 1, false},
    {HK_FRAME_GOODBYE, 0, true},
    {HK_FRAME_GOODBYE, 1, false},
    {HK_FRAME_EVENT, HK_EVENT_BYTES, true},
    {HK_FRAME_EVENT, HK_EVENT_BYTES - 1, false},
    {HK_FRAME_EVENT, HK_EVENT_BYTES + HK_EVENT_TEXT - 1, true},
    {HK_FRAME_EVENT, HK_EVENT_BYTES + HK_EVENT_TEXT, false},
    {0, 0, false},
    {HK_FRAME_GOODBYE + 1, 0, false},
};

TEST(frames_are_checked) {
  uint8_t bytes[HK_FRAME_BYTES];
  for (size_t i = 0; i < HK_ARRAY_LENGTH(frames); i++) {
    hk_frame f = {.type = (uint16_t)frames[i].type,
                  .round = 0x0304,
                  .bytes = frames[i].bytes,
                  .seq = 0x1112131415161718u},
             back;
    hk_frame_encode(bytes, &f);
    ck_assert_msg(hk_frame_decode(&back, bytes, 0x0304) == frames[i].valid, "row %zu", i);
    ck_assert(!hk_frame_decode(&back, bytes, 0x0404) && !hk_frame_decode(&back, bytes, 0x0305));
    ck_assert(back.type == f.type && back.round == f.round && back.bytes == f.bytes && back.seq == f.seq);
    if (i == 1) expect_sum(bytes, sizeof bytes, 0x4a59c06be7da32dfu);
  }
}

int main(void) { return suite_main("wire"); }
