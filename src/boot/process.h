/* SPDX-License-Identifier: Apache-2.0 */
/* What the bootstrap keeps once for each process: its name, its care about fork, the limit of open files. */
#ifndef HK_BOOT_PROCESS_H
#define HK_BOOT_PROCESS_H
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "../base/status.h"
#include "../base/wait.h"

/* A forked child that lives on with copies of our sockets would hide our death from the peers: their connections would
 * stay open.  So descriptors that peers watch are closed in every forked child. */
void hk_fork_closes(int fd);
/* Before close(fd), and before the descriptor is given to somebody else. */
void hk_fork_forget(int fd);
/* forget and close; -1 is ignored. */
void hk_boot_close(int fd);

/* A random number for this process, another one in a forked child; 0 only where there is no randomness. */
uint64_t hk_process_nonce(void);

/* Sees to it that `wanted` descriptors may be open, as far as the hard limit allows. */
void hk_want_files(unsigned wanted);
/* After EMFILE: doubles the limit.  False where it cannot be raised. */
bool hk_more_files(void);

/* Has the kernel probe the other end, so that a connection on which nothing is under way fails with ETIMEDOUT when its host or link has
 * been silent for PEER_TIMEOUT. */
void hk_watch_silence(int fd);

/* How many forks this process is away from the one that first used the bootstrap: what was made at another count is a
 * parent's.  Changes only in a forked child, while that has one thread. */
extern unsigned hk_forks;

/* Called in a forked child, by way of pthread_atfork; set once, before the first hk_fork_closes. */
typedef struct hk_fork_hooks {
  void (*prepare)(void), (*parent)(void), (*child)(void);
} hk_fork_hooks;
void hk_on_fork(const hk_fork_hooks *hooks);
#endif
