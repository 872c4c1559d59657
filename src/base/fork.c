/* SPDX-License-Identifier: Apache-2.0 */
#include "fork.h"
#include "wait.h"

/* The linker joins the entries of all files, and names the ends. */
extern const hk_fork_lock __start_hk_fork_locks[] __attribute__((visibility("hidden")));
extern const hk_fork_lock __stop_hk_fork_locks[] __attribute__((visibility("hidden")));

enum { NAP_NS = 50 * 1000, PATIENCE_NS = 1000 * 1000 * 1000 };

/* true between the handlers of one fork; the C library never runs the handlers of two forks at the same time */
bool hk_fork_held;

static size_t fork_count(void) { return (size_t)(__stop_hk_fork_locks - __start_hk_fork_locks); }

static void fork_unlock(size_t n) {
  while (n-- > 0) pthread_mutex_unlock(__start_hk_fork_locks[n].lock);
}

static bool fork_try_all(void) {
  for (size_t n = 0; n < fork_count(); n++) {
    if (pthread_mutex_trylock(__start_hk_fork_locks[n].lock) == 0) continue;
    fork_unlock(n);
    return false;
  }
  return true;
}

/* All or none at a time, because other threads take these locks in orders that nothing here knows. A lock may be held
 * for long (a plugin is loaded, kernels are compiled): then the child makes the locks anew. */
static void fork_before(void) {
  hk_wait_env env = {.spins = 0};
  hk_waiter w;
  const uint64_t begin_ns = hk_now_ns();
  hk_wait_begin(&w, &env);
  while (!(hk_fork_held = fork_try_all()) && hk_now_ns() - begin_ns < PATIENCE_NS) (void)hk_wait_nap(&w, -1, NAP_NS);
}

static void fork_in_parent(void) {
  if (hk_fork_held) fork_unlock(fork_count());
}

static void fork_in_child(void) {
  if (hk_fork_held)
    fork_unlock(fork_count());
  else
    for (size_t n = 0; n < fork_count(); n++) pthread_mutex_init(__start_hk_fork_locks[n].lock, NULL);
}

/* Runs before the library registers any other handler, so these locks are taken last and released first. */
static __attribute__((constructor(101))) void fork_watch(void) {
  pthread_atfork(fork_before, fork_in_parent, fork_in_child);
}
