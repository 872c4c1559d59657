/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Internal declarations of the shm transport. A state belongs to a rank. The ranks of a process share a process
 * record, found by the communicator's id: the arena's mapping, the socket that answers other processes, and imported
 * regions.
 */
#pragma once
#include <pthread.h>
#include "../../base/facts.h"
#include "shm.h"
#include "shm_arena.h"

enum {
  HK_SHM_NAME = 40,
  /* Below HK_SHM_CMA_LEAST_BYTES two copies cost less than a system call that pins pages, on every machine. From
   * HK_SHM_CMA_MIN_BYTES on they cost more on most machines. */
  HK_SHM_CMA_LEAST_BYTES = 16384,
  HK_SHM_CMA_MIN_BYTES = 65536
};

enum {
  HK_SHM_FACT_SHM_OFF = 1,     /* NCCL_SHM_DISABLE */
  HK_SHM_FACT_P2P_OFF = 2,     /* NCCL_P2P_DISABLE */
  HK_SHM_FACT_CMA_MEASURED = 4 /* HOCKET_CMA is -1 */
};

/* What a rank publishes about itself. */
typedef struct hk_shm_fact {
  uint32_t flags; /* HK_SHM_FACT_* */
  uint32_t nslots;
  uint64_t slot_bytes;
  char name[HK_SHM_NAME]; /* of its process's socket; empty: it has none */
  char problem[96];       /* the reason for that */
  uint64_t probe_at;      /* address of `probe` in its memory, for others to try to read; 0: do not try */
  uint8_t probe[16];
  int32_t cpu; /* on which it is; -1: not known */
} hk_shm_fact;
_Static_assert(sizeof(hk_shm_fact) <= HK_FACT_BYTES, "a fact fits into HK_FACT_BYTES");

struct hk_shm_state;

/* In the process that creates the arena: the state of the agreement with the other processes (shm_server.c). */
typedef struct hk_shm_host {
  enum { HK_SHM_UNDECIDED, HK_SHM_DECIDED_ON, HK_SHM_DECIDED_OFF } verdict;
  int memfd; /* -1 before the first process asks, and after the decision */
  uint32_t processes, mapped, naskers;
  hk_shm_shape shape;
  struct hk_shm_address *askers; /* [processes] */
  char reason[HK_SHM_REASON];
} hk_shm_host;

typedef enum hk_shm_stage { HK_SHM_OPEN, HK_SHM_SETTLED } hk_shm_stage;

typedef struct hk_shm_process {
  /* Under the table's mutex (shm_process.c). */
  struct hk_shm_process *next;
  uint64_t comm_id, process;
  struct hk_shm_state *members; /* one or more; the last one frees the record; changed under `lock` too */
  struct hk_shm_state *server;  /* the member whose service thread serves the socket */
  int socket;                   /* -1: none */
  char name[HK_SHM_NAME];       /* the socket's */
  char problem[96];             /* why there is no socket */
  uint8_t secret[16];

  pthread_mutex_t lock; /* for everything below, until the stage is SETTLED; then it does not change */
  pthread_cond_t settled;
  hk_shm_host host;
  hk_shm_stage stage;
  hk_status rc;               /* of the agreement; all ranks of the process return it */
  char reason[HK_SHM_REASON]; /* why some ranks of this host are not in the group */
  int32_t *index;             /* [nranks] index in the group, -1: not in it */
  uint32_t ngroup;
  bool one_process;           /* all ranks of the group belong to this process */
  hk_shm_arena arena;         /* base NULL: the group has no other rank */
  char (*names)[HK_SHM_NAME]; /* [nranks] of their processes' sockets; NULL if the group is one process */

  pthread_mutex_t imports_lock; /* regions of other processes that are mapped here: shm_region.c */
  struct hk_shm_import *imports;
  size_t nimports, next_listed;
} hk_shm_process;

typedef struct hk_shm_state {
  hk_transport_state base; /* first */
  hk_shm_process *process;
  struct hk_shm_state *next_member;
  hk_shm_fact fact;
  uint8_t probe[16]; /* others try to read this */
  hk_answer *answer; /* to questions for the rank; under the process's lock, like `next_member` */
  void *answer_arg;
} hk_shm_state;

/* ---- shm_process.c ---- */
/* Joins the record of this rank's process, or makes it; fills the socket's part of the fact. */
hk_status hk_shm_process_enter(hk_shm_state *s);
/* What another communicator of this process has in its hk_shm_cma_times; *time is 0 if none has measured. */
void hk_shm_process_measured(const hk_shm_process *p, uint32_t *from, uint32_t *time);
void hk_shm_process_leave(hk_shm_state *s);
/* Closes the socket, once it is known that no other process will send to it. */
void hk_shm_process_close_socket(hk_shm_process *p);

/* ---- shm_server.c ---- */
/* Answers other processes: a callback of the service thread; `arg` is the process record. */
void hk_shm_serve(void *arg, int socket, uint32_t events);
/* Decides that the arena is not used, and answers all processes that ask, now and later. The caller holds the lock. */
void hk_shm_refuse_all(hk_shm_process *p, const char *reason);
void hk_shm_host_dispose(hk_shm_host *h);

/* ---- shm_join.c ---- */
/* The transport's `join`: agrees with the other processes of the host on the group and its arena. */
hk_status hk_shm_join(hk_transport_state *state, const hk_facts *facts);

/* ---- shm_region.c ---- */
hk_status hk_shm_region_open(hk_link *link); /* for links that carry references to regions */
void hk_shm_region_close(hk_link *link);     /* for any link */
/* The transport's `refer` and `resolve`. */
bool hk_shm_refer(hk_transport_state *state, hk_link *link, const void *data, size_t bytes, hk_ref *out);
const void *hk_shm_resolve(hk_transport_state *state, hk_link *link, const hk_ref *ref, size_t bytes);
void hk_shm_regions_dispose(hk_shm_process *p);

/* ---- shm_cma.c: memory of other processes outside regions ---- */
void hk_shm_cma_prepare(hk_shm_state *s); /* publishes a word for others to try to read */
/* Tries to read all others' words, and publishes success. */
void hk_shm_cma_try(hk_shm_state *s, const hk_facts *facts);
/* Reads all of [from, from + bytes) of the process. Returns 0, or -1 with errno. */
int hk_shm_cma_read(pid_t pid, uint64_t from, void *to, size_t bytes);
/* The least size in bytes from which the link's reader reads this process's memory directly. 0: it cannot, slots are
 * faster, or the link has several readers: a slot is filled once for all. */
uint32_t hk_shm_cma_from(const hk_shm_state *s, const hk_link *link);
/* The transport's `reads`, `writable`, `write` and `fetch`. */
double hk_shm_reads(hk_transport_state *state);
bool hk_shm_writable(hk_transport_state *state, int peer, uint64_t at, const void *expected, size_t bytes);
hk_status hk_shm_write(hk_transport_state *state, int peer, uint64_t at, const void *from, size_t bytes);
bool hk_shm_export_target(hk_transport_state *state, hk_link *link, const void *data, size_t bytes, hk_ref *out);
hk_status hk_shm_map_target(hk_transport_state *state, hk_link *link, unsigned reader, const hk_ref *ref, size_t bytes,
                            char **at);
hk_status hk_shm_fetch(hk_transport_state *state, hk_link *link, const hk_ref *ref, void *to, size_t bytes);

/* ---- shm_measure.c ---- */
/* Fills the arena's hk_shm_cma_times; for the first communicator of a process by a measurement of 1 to 2 ms. It uses
 * the slots to the peer, which are not in use yet, and `cpu`, the processor on which the peer was. If slots are very
 * small, or there is one processor, it has defaults. */
void hk_shm_cma_measure(const hk_shm_state *s, int peer, int cpu);

static inline const hk_shm_fact *hk_shm_fact_of(const hk_facts *facts, int rank) { return hk_fact_of(facts, rank); }
