/* SPDX-License-Identifier: Apache-2.0 */
/* Process-wide state of the bootstrap: its random number, descriptors that a fork closes, the limit of open files. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "../base/status.h"
#include "../base/wait.h"

struct hk_settings; /* base/param.h */

/* A forked child that keeps copies of our sockets would hide our death from the peers: their connections would stay
 * open. So descriptors that peers watch are closed in every forked child. */
void hk_fork_closes(int fd);
/* A connection that came in, and a TCP socket, neither blocking; -1: errno. Forked children close them, even if the
 * fork is at this moment. */
int hk_boot_accept(int socket_fd);
int hk_boot_socket(int family);
/* Call it before close(fd), and before another part of the process owns the descriptor. */
void hk_fork_forget(int fd);
/* hk_fork_forget and close; -1 is ignored. */
void hk_boot_close(int fd);

/* A random number for this process, another one in a forked child; 0 only without a source of randomness. */
uint64_t hk_process_nonce(void);

/* The state of a process as /proc shows it: 'R', 'S', 'T', ...; 0 if it shows nothing. */
char hk_process_state(int pid);
/* True of a state in which a signal or a debugger has stopped the process. */
static inline bool hk_process_stopped(char state) { return state == 'T' || state == 't'; }

/* Raises the limit of open files to `wanted`, or to the hard limit if that is lower. */
void hk_want_files(unsigned wanted);
/* After EMFILE: doubles the limit. False if it cannot be raised. */
bool hk_more_files(void);

/* Makes the kernel probe the other end, so that an idle connection fails with ETIMEDOUT after its host or network has
 * been silent for HOCKET_PEER_TIMEOUT. */
void hk_watch_silence(const struct hk_settings *settings, int fd);

/* Number of forks between this process and the one that first used the bootstrap: an object made at another count
 * belongs to a parent process. Changes only in a forked child, while that has one thread. */
extern unsigned hk_forks;

/* Called in each forked child, while it has one thread; set before the first hk_fork_closes. */
void hk_on_fork(void (*in_child)(void));
