/* SPDX-License-Identifier: Apache-2.0 */
/* Random and nearly right bytes for everything the bootstrap reads: ids, hellos, acks, replies, frames.  No bytes
 * crash it, and what is not proved is not taken.  HOCKET_TEST_SECONDS and HOCKET_TEST_SEED: see scripts/fuzz.sh. */
#include <poll.h>
#include <sys/socket.h>
#include "../../src/base/addr.h"
#include "../../src/boot/internal.h"
#include "../support/boot_ranks.h"
#include "../support/fuzz.h"

/* Changes a few bytes; true where something is different now. */
static bool damage(uint8_t *p, size_t n) {
  uint8_t before[2048];
  memcpy(before, p, n);
  for (uint32_t k = 1 + rnd(4); k; k--) {
    size_t at = rnd((uint32_t)n);
    p[at] = rnd(3) ? (uint8_t)(p[at] ^ 1u << rnd(8)) : (uint8_t)rnd(256);
  }
  return memcmp(before, p, n) != 0;
}

static uint32_t odd_number(void) {
  static const uint32_t odd[] = {0, 1, 2, 3, 7, 64, 255, 256, 65535, 65536, 0x7fffffff, 0x80000000, 0xffffffff};
  return rnd(4) ? odd[rnd(HK_ARRAY_LENGTH(odd))] : rnd(0x7fffffff);
}

static hk_hello any_hello(void) {
  hk_hello h = {.kind = (hk_hello_kind)(1 + rnd(5)), .from = (int32_t)odd_number(), .to = (int32_t)odd_number()};
  h.round = odd_number();
  h.key = rnd(100);
  h.comm = rnd(100);
  h.tag = rnd(2) ? odd_number() : (uint64_t)odd_number() << 32 | odd_number();
  any_bytes(h.nonce, sizeof h.nonce);
  any_bytes(h.contact, sizeof h.contact);
  if (rnd(2)) h.contact[10] = (uint8_t)rnd(6);
  return h;
}

/* ---- the decoders alone ---- */

static void try_hello(const uint8_t secret[16]) {
  uint8_t bytes[HK_HELLO_BYTES];
  hk_hello h = any_hello(), back;
  hk_contact c;
  hk_hello_encode(bytes, &h, secret);
  ck_assert(hk_hello_possible(bytes, rnd(sizeof bytes)) && hk_hello_decode(&back, bytes) &&
            hk_hello_proved(bytes, secret));
  ck_assert(back.kind == h.kind && back.from == h.from && back.to == h.to && back.round == h.round &&
            back.tag == h.tag);
  (void)hk_contact_decode(&c, back.contact);
  if (damage(bytes, sizeof bytes)) {
    ck_assert(!hk_hello_proved(bytes, secret));
    (void)hk_hello_decode(&back, bytes);
  }
}

static void try_answers(const uint8_t secret[16]) {
  uint8_t nonce[16], ack[HK_ACK_BYTES], reply[HK_REPLY_BYTES];
  hk_ack a;
  hk_reply r = {.status = (hk_status)rnd(7), .salt = rnd(1000)}, back;
  any_bytes(nonce, sizeof nonce);
  any_bytes(r.next, sizeof r.next);
  hk_ack_encode(ack, (hk_ack)rnd(3), nonce, secret);
  hk_reply_encode(reply, &r, nonce, secret);
  ck_assert(hk_ack_decode(&a, ack, nonce, secret) && hk_reply_decode(&back, reply, nonce, secret));
  ck_assert(back.status == r.status && !memcmp(back.next, r.next, sizeof r.next));
  if (damage(ack, sizeof ack)) ck_assert(!hk_ack_decode(&a, ack, nonce, secret));
  if (damage(reply, sizeof reply)) ck_assert(!hk_reply_decode(&back, reply, nonce, secret));
}

static void try_activity(const uint8_t secret[16]) {
  uint8_t nonce[16], bytes[HK_ACTIVITY_BYTES];
  char text[512];
  hk_activity a, back;
  any_bytes(nonce, sizeof nonce);
  any_bytes(&a, sizeof a);
  if (rnd(2)) a.phase = (uint8_t)rnd(HK_PHASE_COUNT), a.coll = (uint8_t)rnd(9);
  hk_activity_encode(bytes, &a, nonce, secret);
  ck_assert(hk_activity_decode(&back, bytes, nonce, secret));
  ck_assert(back.sequence == a.sequence && back.count == a.count && back.signature == a.signature &&
            back.root == a.root && back.coll == a.coll && back.dtype == a.dtype && back.redop == a.redop &&
            back.p2p == a.p2p && back.phase == a.phase && back.phase_ms == a.phase_ms && back.waits_for == a.waits_for);
  hk_activity_describe(&back, (hk_presence)rnd(7), text, sizeof text);
  ck_assert_uint_lt(strlen(text), sizeof text - 1); /* never cut */
  if (damage(bytes, sizeof bytes)) ck_assert(!hk_activity_decode(&back, bytes, nonce, secret));
}

static void try_frames(void) {
  uint8_t bytes[HK_EVENT_BYTES + HK_EVENT_TEXT + 8];
  hk_frame f;
  hk_event e;
  any_bytes(bytes, sizeof bytes);
  if (rnd(2)) hk_put16(bytes, (uint16_t)rnd(8)), hk_put16(bytes + 2, 3);
  if (hk_frame_decode(&f, bytes, 3)) ck_assert(f.round == 3 && f.bytes <= HK_FRAME_MAX);
  if (rnd(2)) memset(bytes, 0, HK_EVENT_BYTES);
  size_t n = rnd(2) ? rnd(64) : rnd(sizeof bytes);
  if (hk_event_decode(&e, bytes, n, 5)) ck_assert(e.rank >= 0 && e.rank < 5 && memchr(e.text, 0, sizeof e.text));
}

static void try_id(void) {
  ncclUniqueId id;
  hk_boot_id in = {.n = 1 + rnd(HK_BOOT_ADDRS)}, out;
  any_bytes(in.secret, sizeof in.secret);
  for (uint32_t i = 0; i < in.n; i++) {
    in.at[i].sa.sa_family = rnd(2) ? AF_INET : AF_INET6;
    any_bytes(in.at[i].sa.sa_family == AF_INET ? (void *)&in.at[i].v4.sin_addr : (void *)&in.at[i].v6.sin6_addr, 4);
    hk_addr_set_port(&in.at[i], 4242);
  }
  hk_boot_id_encode(&id, &in);
  ck_assert_int_eq(hk_boot_id_decode(&out, &id), HK_OK);
  ck_assert(out.n == in.n && hk_addr_equal(&out.at[0], &in.at[0]));
  if (damage((uint8_t *)id.internal, sizeof id.internal))
    ck_assert_int_eq(hk_boot_id_decode(&out, &id), HK_ERR_ARGUMENT);
}

TEST(decoders) {
  fuzz_begin(10000);
  uint8_t secret[16];
  do {
    any_bytes(secret, sizeof secret);
    try_hello(secret);
    try_answers(secret);
    try_activity(secret);
    try_frames();
    try_id();
  } while (fuzz_goes_on());
}

/* ---- a rank played by hand ---- */

typedef struct player {
  hk_boot_id id;
  int listener, fd, link[2]; /* link: to rank 0, from rank 0 */
  hk_contact own, peer;
  uint8_t family[16];
  uint64_t comm;
  hk_wait_env env;
} player;

static int connect_to(const hk_addr *to) {
  int fd = socket(to->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, &to->sa, hk_addr_len(to))) {
    close(fd);
    return -1;
  }
  return fd;
}

static bool read_all(player *p, int fd, void *out, size_t n) {
  for (size_t have = 0; have < n;) {
    if (hk_wait_fd(&p->env, fd, POLLIN, "bytes for the fuzzer") != HK_OK) return false;
    ssize_t got = recv(fd, (uint8_t *)out + have, n - have, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) continue;
    if (got <= 0) return false;
    have += (size_t)got;
  }
  return true;
}

static void say(int fd, const void *bytes, size_t n) { (void)!send(fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT); }

/* Registers as rank 1 of 2, properly, and learns where rank 0 listens. */
static bool register_by_hand(player *p) {
  uint8_t bytes[HK_HELLO_BYTES], ack[HK_ACK_BYTES], reply[HK_REPLY_BYTES];
  hk_hello h = {.kind = HK_HELLO_JOIN, .from = 1, .to = 2, .round = 1, .key = hk_boot_id_key(&p->id)};
  hk_ack a;
  hk_reply r;
  any_bytes(h.nonce, sizeof h.nonce);
  hk_contact_encode(h.contact, &p->own);
  hk_hello_encode(bytes, &h, p->id.secret);
  say(p->fd, bytes, sizeof bytes);
  if (!read_all(p, p->fd, ack, sizeof ack) || !hk_ack_decode(&a, ack, h.nonce, p->id.secret)) return false;
  if (!read_all(p, p->fd, reply, sizeof reply) || !hk_reply_decode(&r, reply, h.nonce, p->id.secret)) return false;
  uint8_t salt[8], zero[16] = {0};
  hk_put64(salt, r.salt);
  hk_derive(p->family, p->id.secret, "family", zero, sizeof zero);
  p->comm = hk_derive64(p->family, "communicator", salt, sizeof salt);
  return r.status == HK_OK && hk_contact_decode(&p->peer, r.next);
}

/* Opens the link to rank 0; sometimes not quite as it should be. */
static bool open_by_hand(player *p) {
  uint8_t bytes[HK_HELLO_BYTES], ack[HK_ACK_BYTES];
  hk_hello h = {.kind = HK_HELLO_OVERLAY, .from = 1, .to = 0, .key = hk_derive64(p->family, "family", NULL, 0)};
  h.comm = p->comm;
  h.process = rnd(8) ? p->peer.process : odd_number();
  if (!rnd(8)) h.from = (int32_t)odd_number();
  if (!rnd(8)) h.round = odd_number();
  if (!rnd(8)) h.kind = HK_HELLO_DATA;
  any_bytes(h.nonce, sizeof h.nonce);
  hk_hello_encode(bytes, &h, p->family);
  p->link[0] = connect_to(&p->peer.at[0]);
  if (p->link[0] < 0) return false;
  say(p->link[0], bytes, sizeof bytes);
  return read_all(p, p->link[0], ack, sizeof ack);
}

/* Takes the link that rank 0 opens, proving ourselves or not. */
static bool accept_by_hand(player *p) {
  uint8_t bytes[HK_HELLO_BYTES], ack[HK_ACK_BYTES];
  hk_hello h;
  if (hk_wait_fd(&p->env, p->listener, POLLIN, "rank 0") != HK_OK) return false;
  p->link[1] = accept(p->listener, NULL, NULL);
  if (p->link[1] < 0 || !read_all(p, p->link[1], bytes, sizeof bytes) || !hk_hello_decode(&h, bytes)) return false;
  hk_ack_encode(ack, rnd(16) ? HK_ACK_OK : HK_ACK_GONE, h.nonce, p->family);
  if (!rnd(40)) damage(ack, sizeof ack);
  say(p->link[1], ack, sizeof ack);
  return true;
}

static void random_frames(player *p) {
  for (uint32_t k = rnd(6); k; k--) {
    uint8_t bytes[HK_FRAME_BYTES + 512];
    static const uint32_t right[] = {0, 0, HK_CONTACT_BYTES, HK_CONTACT_BYTES, 0, HK_EVENT_BYTES, 0};
    hk_frame f = {.type = (uint16_t)rnd(7), .seq = rnd(3)};
    f.bytes = rnd(4) ? right[f.type] : rnd(600);
    if (!rnd(30)) f.bytes = odd_number();
    if (!rnd(10)) f.round = (uint16_t)odd_number();
    any_bytes(bytes, sizeof bytes);
    hk_frame_encode(bytes, &f);
    if (f.type == HK_FRAME_EVENT && rnd(2)) memset(bytes + HK_FRAME_BYTES, 0, 8), bytes[HK_FRAME_BYTES + rnd(5)] = 1;
    size_t n = HK_FRAME_BYTES + (f.bytes < 512 ? f.bytes : rnd(512));
    if (!rnd(10)) n = rnd((uint32_t)n);
    for (size_t at = 0; at < n;) { /* in pieces */
      size_t piece = rnd(4) ? n - at : 1 + rnd((uint32_t)(n - at));
      say(p->link[rnd(2)], bytes + at, piece);
      at += piece;
    }
  }
}

static void close_all(player *p) {
  if (p->listener >= 0) close(p->listener);
  if (p->fd >= 0) close(p->fd);
  for (int i = 0; i < 2; i++)
    if (p->link[i] >= 0) close(p->link[i]);
}

static void rank_zero(rank_state *r) {
  uint64_t table[2] = {1, 2};
  if (join_rank(r) == HK_OK && hk_bootstrap_allgather(r->b, table, sizeof table[0]) == HK_OK)
    r->status = hk_bootstrap_barrier(r->b);
  leave_rank(r);
}

static void play(const ncclUniqueId *id) {
  player p = {.listener = -1, .fd = -1, .link = {-1, -1}, .env = {.deadline_ns = hk_now_ns() + 20000000000u}};
  hk_addr at = {.v4 = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}}};
  rank_state *r = new_ranks(2, id, 1, rank_zero, NULL);
  start_threads(r, 1);
  ck_assert_int_eq(hk_boot_id_decode(&p.id, id), HK_OK);
  ck_assert_int_eq(hk_listen(hk_settings_now(), &at, 8, &p.listener), HK_OK);
  p.own = (hk_contact){.process = 0x1234, .n = 1, .at = {at}};
  p.fd = connect_to(&p.id.at[0]);
  ck_assert_int_ge(p.fd, 0);
  if (register_by_hand(&p)) {
    bool opened = rnd(60) && open_by_hand(&p), accepted = rnd(60) && accept_by_hand(&p);
    if (opened && accepted) random_frames(&p);
  }
  close_all(&p);
  end_threads(r, 1); /* ends by itself: whatever it received, its peer is gone now */
  free(r);
}

/* Somebody with the secret sends nonsense to the root. */
static void pester_root(const ncclUniqueId *id, bool in_use) {
  hk_boot_id in;
  uint8_t bytes[HK_HELLO_BYTES];
  ck_assert_int_eq(hk_boot_id_decode(&in, id), HK_OK);
  for (uint32_t k = rnd(20); k; k--) {
    hk_hello h = any_hello();
    h.key = hk_boot_id_key(&in);
    if (rnd(2)) h.kind = HK_HELLO_CONTACT;
    /* Not a rank of the communicator that is about to form: that would be no nonsense. */
    if (in_use && h.to >= 1 && h.to <= 1 << 20) h.to = (int32_t)odd_number() | 1 << 30;
    if (!in_use && rnd(4)) {
      h.to = 1 + (int32_t)rnd(4);
      h.from = (int32_t)rnd(5) - (int32_t)rnd(2);
      h.round = 1 + rnd(3);
      h.tag = rnd(4);
      h.contact[10] = 1;
    }
    hk_hello_encode(bytes, &h, in.secret);
    if (!rnd(4)) damage(bytes, sizeof bytes);
    int fd = connect_to(&in.at[0]);
    if (fd < 0) continue;
    say(fd, bytes, rnd(8) ? sizeof bytes : rnd(sizeof bytes));
    close(fd);
  }
}

static void join_and_leave(rank_state *r) {
  join_rank(r);
  leave_rank(r);
}

TEST(connections) {
  fuzz_begin(8);
  set_param("HOCKET_BOOTSTRAP_TIMEOUT", "3");
  do {
    ncclUniqueId id;
    ck_assert_int_eq(hk_bootstrap_new_id(&id), HK_OK);
    pester_root(&id, false);
    ck_assert_int_eq(hk_bootstrap_new_id(&id), HK_OK);
    pester_root(&id, true);
    play(&id);
    /* Right next to it a communicator forms. */
    ck_assert_int_eq(hk_bootstrap_new_id(&id), HK_OK);
    pester_root(&id, true);
    rank_state *r = run_threads(2, &id, 1, join_and_leave, NULL);
    ck_assert_msg(r[0].status == HK_OK && r[1].status == HK_OK, "seed %llu: %s", (unsigned long long)fuzz_seed,
                  hk_last_error());
    free(r);
  } while (fuzz_goes_on());
}

int main(void) {
  const char *seconds = getenv("HOCKET_TEST_SECONDS");
  setenv("NCCL_DEBUG", "NONE", 0); /* errors are what this test is made of */
  return suite_main("fuzz_bootstrap", .timeout = 120 + (seconds ? atof(seconds) : 0));
}
