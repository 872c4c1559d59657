/* SPDX-License-Identifier: Apache-2.0 */
/* Links whose slots are placed, as the net plugin has them: each message is written from registered memory to
 * registered memory, some of it of a GPU, which sees it after a flush. Both ranks are of this thread. Memory of the
 * "GPU" is of the host, but only a peer memory module may register it, and what a card writes there shows after a
 * flush.
 * check: notsan */
#include <fcntl.h>
#include <sys/mman.h>
#include "../support/ib_ranks.h"
#include "../support/process.h"

enum { SLOT = 65536, MEMORY = 1 << 18 };

typedef struct way {
  net_world *w;
  hk_link *send, *recv;
  unsigned char *from, *to; /* [MEMORY] */
  uint32_t sent, got, offered;
  uint32_t bytes[64];
} way;

static void progress(const way *t) {
  for (int i = 0; i < 2; i++) ck_assert_int_eq(net_progress(&t->w->ranks[i], NULL), HK_OK);
}

static way open_way(int devices) {
  way t = {.w = NULL};
  begin(devices);
  rdma_plenty = true; /* no FIFO is registered before it is needed */
  t.w = net_world_new(2, 8, SLOT);
  make_way(t.w, &t.send, &t.recv);
  t.send->placed = t.recv->placed = hk_net_can_place(t.send) && hk_net_can_place(t.recv);
  ck_assert(t.send->placed);
  t.from = mmap(NULL, 2 * MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ck_assert(t.from != MAP_FAILED);
  t.to = t.from + MEMORY;
  return t;
}

static void close_way(way *t) {
  net_unlink(t->send);
  net_unlink(t->recv);
  net_world_free(t->w);
  munmap(t->from, 2 * MEMORY);
  end();
}

static void put(way *t, size_t at, uint32_t bytes) {
  hk_slot *s = &t->send->slots[(uint32_t)t->send->done & t->send->mask];
  ck_assert(hk_link_can_send(t->send, bytes));
  fill(t->from + at, bytes, t->sent);
  s->ref = (hk_ref){.region = 0, .offset = (uint64_t)(uintptr_t)(t->from + at)};
  hk_link_publish(t->send, bytes, 9, bytes ? HK_SLOT_REF : 0);
  t->bytes[t->sent++ % 64] = bytes;
}
static void offer(way *t, size_t at, uint32_t room) { hk_link_offer(t->recv, t->offered++, t->to + at, room); }

static const hk_slot *await(way *t) {
  for (int i = 0; i < 1000 && !hk_link_can_recv(t->recv); i++) {
    hk_link_set_waiting(t->recv, HK_LINK_WAITS);
    progress(t);
  }
  ck_assert_msg(hk_link_can_recv(t->recv), "message %u does not come", t->got);
  return hk_link_recv_slot(t->recv);
}
/* The next message, at its place; `seen`: the GPU sees it at once. */
static void take(way *t, size_t at, bool seen) {
  const hk_slot *s = await(t);
  const uint32_t bytes = t->bytes[t->got % 64];
  ck_assert_uint_eq(s->bytes, bytes);
  ck_assert_uint_eq(s->signature, 9);
  if (bytes) {
    ck_assert_ptr_eq(hk_link_recv_data(t->recv), t->to + at);
    ck_assert_int_eq(filled(t->to + at, bytes, t->got), seen);
  }
  hk_link_release(t->recv);
  t->got++;
}

static void memory_of(const way *t, int rank, void *at, size_t bytes, bool there) {
  hk_transport_net.memory(t->w->ranks[rank].state, at, bytes, there);
}

/* Messages of any size, smaller than their place as well; one waits until its place is known. */
START_TEST(goes_to_its_place) {
  static const uint32_t sizes[] = {1, 0, 48, 49, 256, 257, 4064, 4065, 65536, 65537, 200000, MEMORY};
  if (_i) rdma_param("NCCL_IB_QPS_PER_CONNECTION", "3"), rdma_param("NCCL_IB_SPLIT_DATA_ON_QPS", "1");
  way t = open_way(1 + _i);
  memory_of(&t, 0, t.from, MEMORY, true);
  memory_of(&t, 1, t.to, MEMORY, true);
  const uint64_t before = verbs->registered;
  for (int round = 0; round < 3; round++)
    for (size_t i = 0; i < HK_ARRAY_LENGTH(sizes); i++) {
      put(&t, MEMORY - sizes[i], sizes[i]);
      if (round == 1)
        for (int k = 0; k < 20; k++) progress(&t);
      ck_assert(!sizes[i] || !hk_link_can_recv(t.recv)); /* an empty one needs no place */
      offer(&t, 0, round ? MEMORY : sizes[i] ? sizes[i] : 1);
      take(&t, 0, true);
      while (!hk_link_drained(t.send)) progress(&t);
    }
  ck_assert_uint_eq(verbs->registered, before + 2); /* each memory once; the connections have one device */
  const hk_ib_conn *c = ((const hk_net_end *)t.recv->priv)->priv;
  ck_assert_uint_eq(c->ctx->placed, 3 * (HK_ARRAY_LENGTH(sizes) - 1));
  ck_assert_uint_eq(c->ctx->copied, 0);
  ck_assert(c->ctx->pinned_most >= c->ctx->pinned && c->ctx->pinned == (uint64_t)c->arena_bytes + MEMORY);
  close_way(&t);
}
END_TEST

static hk_status progress_to_error(way *t, int rank) {
  hk_status rc = HK_OK;
  for (int i = 0; i < 1000 && rc == HK_OK; i++) {
    rc = net_progress(&t->w->ranks[i % 2], NULL);
    if (rc != HK_OK) ck_assert_int_eq(i % 2, rank);
  }
  return rc;
}

/* A place is too small, or memory cannot be registered: an error that says so. */
START_TEST(fails_without_a_place) {
  static const struct {
    uint32_t bytes;
    int rank;
    const char *words;
  } cases[] = {{1001, 0, "1001 bytes does not fit into the 1000 bytes"},
               {900, 0, "to send from cannot be registered"},
               {900, 1, "to receive into cannot be registered"}};
  way t = open_way(1);
  memory_of(&t, 0, t.from, MEMORY, true);
  memory_of(&t, 1, t.to, MEMORY, true);
  if (_i == 2) verbs->lockable = verbs->locked + 1;
  offer(&t, 0, 1000);
  if (_i < 2)
    for (int k = 0; k < 3; k++) progress(&t); /* the place is known */
  if (_i == 1) verbs->lockable = verbs->locked + 1;
  put(&t, 0, cases[_i].bytes);
  t.recv->waiting = HK_LINK_WAITS;
  ck_assert_int_eq(progress_to_error(&t, cases[_i].rank), HK_ERR_REMOTE);
  ck_assert_msg(strstr(hk_last_error(), cases[_i].words), "%s", hk_last_error());
  close_way(&t);
}
END_TEST

/* ---- memory of a GPU ---- */

static void make_gpu(way *t) {
  verbs->gpu = (char *)t->from;
  verbs->gpu_bytes = 2 * MEMORY;
  verbs->peermem = verbs->late = 1;
}

static void await_visible(way *t, const void *at, uint64_t slots) {
  bool yes = false;
  for (int i = 0; i < 1000 && !yes; i++) ck_assert_int_eq(hk_net_gpu_visible(t->recv, at, slots, &yes), HK_OK);
  ck_assert_msg(yes, "%llu messages do not become visible", (unsigned long long)slots);
}

START_TEST(shows_after_a_flush) {
  bool yes;
  way t = open_way(1);
  make_gpu(&t);
  const uint64_t locked = verbs->locked;
  ck_assert_int_eq(hk_net_gpu_memory(t.send, t.from, MEMORY, -1, 0), HK_OK);
  ck_assert_int_eq(hk_net_gpu_memory(t.recv, t.to, MEMORY, -1, 0), HK_OK);
  ck_assert_uint_eq(verbs->locked, locked + 2 * MEMORY); /* at once */
  for (unsigned i = 0; i < 4; i++) offer(&t, i * 50000, 50000);
  progress(&t);
  put(&t, 0, 100); /* inline data would be read by the CPU */
  put(&t, 60000, 20000);
  take(&t, 0, false);
  take(&t, 50000, false);
  const uint64_t reads = verbs->reads;
  ck_assert_int_eq(hk_net_gpu_visible(t.recv, t.to, 1, &yes), HK_OK);
  ck_assert(!yes);                                                    /* the read is under way */
  ck_assert_int_eq(hk_net_gpu_visible(t.recv, t.to, 1, &yes), HK_OK); /* looks for its end */
  await_visible(&t, t.to, 2);
  ck_assert_uint_eq(verbs->reads, reads + 1); /* one is enough for both */
  ck_assert(filled(t.to, 100, 0) && filled(t.to + 50000, 20000, 1));
  put(&t, 100000, 30000);
  take(&t, 100000, false);
  await_visible(&t, t.to + 100000, 3);
  ck_assert_uint_eq(verbs->reads, reads + 2);
  ck_assert(filled(t.to + 100000, 30000, 2));
  ck_assert_uint_ge(verbs->to_gpu, 3);
  ck_assert_uint_ge(verbs->from_gpu, 3);
  ck_assert_int_eq(hk_net_gpu_visible(t.recv, t.from - 4096, 4, &yes), HK_ERR_USAGE); /* unknown memory */
  memory_of(&t, 1, t.to, MEMORY, false);
  ck_assert_uint_eq(verbs->locked, locked + MEMORY);
  verbs->denied = 1; /* a connection that has failed shows nothing any more */
  verbs->skip = 0;
  const hk_ib_conn *c = ((const hk_net_end *)t.recv->priv)->priv;
  hk_ib_mark_failed((hk_ib_conn *)(uintptr_t)c);
  ck_assert_int_eq(hk_net_gpu_visible(t.recv, t.to, 3, &yes), HK_OK);
  ck_assert(yes);
  ck_assert_int_eq(hk_net_gpu_visible(t.recv, t.to, 4, &yes), HK_ERR_REMOTE);
  close_way(&t);
}
END_TEST

/* By dma-buf: the caller closes its descriptor, and one is kept as long as the memory is registered. */
START_TEST(takes_dmabufs) {
  way t = open_way(1);
  const int before = open_fds(), fd = memfd_create("gpu", MFD_CLOEXEC);
  ck_assert_int_eq(ftruncate(fd, 3 * 4096 + 2 * MEMORY), 0);
  const uint64_t locked = verbs->locked;
  ck_assert_int_eq(hk_net_gpu_memory(t.send, t.from, MEMORY, fd, 4096), HK_OK);
  ck_assert_int_eq(hk_net_gpu_memory(t.recv, t.to, MEMORY, fd, 8192 + MEMORY), HK_OK);
  ck_assert_uint_eq(verbs->dmabufs, 2);
  ck_assert_uint_eq(verbs->locked, locked + 2 * MEMORY);
  char *gpu = mmap(NULL, 3 * 4096 + 2 * MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ck_assert(gpu != MAP_FAILED);
  close(fd);
  ck_assert_int_eq(open_fds(), before + 2);
  fill((unsigned char *)gpu + 4096 + 700, 50000, 0);
  offer(&t, 1000, 60000);
  progress(&t);
  put(&t, 700, 50000); /* its contents in this process's memory do not count */
  memset(t.from + 700, 0, 50000);
  await(&t);
  ck_assert(filled((unsigned char *)gpu + 8192 + MEMORY + 1000, 50000, 0));
  hk_link_release(t.recv);
  memory_of(&t, 0, t.from, MEMORY, false);
  memory_of(&t, 1, t.to, MEMORY, false);
  ck_assert_int_eq(open_fds(), before);
  ck_assert_uint_eq(verbs->locked, locked);
  munmap(gpu, 3 * 4096 + 2 * MEMORY);
  close_way(&t);
}
END_TEST

/* A device refuses: the error says which and why, and nothing stays. */
START_TEST(gives_back_what_is_refused) {
  way t = open_way(1);
  make_gpu(&t);
  verbs->peermem = 0;
  const uint64_t locked = verbs->locked;
  const int before = open_fds(), fd = memfd_create("gpu", MFD_CLOEXEC);
  ck_assert_int_eq(hk_net_gpu_memory(t.recv, t.to, MEMORY, -1, 0), HK_ERR_SYSTEM);
  ck_assert_msg(strstr(hk_last_error(), "fake0") && strstr(hk_last_error(), "nvidia-peermem"), "%s", hk_last_error());
  verbs->dmabuf_refusal = ENOMEM;
  ck_assert_int_eq(hk_net_gpu_memory(t.recv, t.to, MEMORY, fd, 0), HK_ERR_SYSTEM);
  ck_assert_msg(strstr(hk_last_error(), "dma-buf"), "%s", hk_last_error());
  close(fd);
  ck_assert_int_eq(open_fds(), before);
  ck_assert_uint_eq(verbs->locked, locked);
  ck_assert(!hk_link_places(t.recv, 20000));
  close_way(&t);
}
END_TEST

int main(void) {
  TCase *t = tcase_create("ib_placed");
  tcase_set_timeout(t, 60);
  tcase_add_loop_test(t, goes_to_its_place, 0, 2);
  tcase_add_loop_test(t, fails_without_a_place, 0, 3);
  tcase_add_test(t, shows_after_a_flush);
  tcase_add_test(t, takes_dmabufs);
  tcase_add_test(t, gives_back_what_is_refused);
  return suite_run_one("ib_placed", t);
}
