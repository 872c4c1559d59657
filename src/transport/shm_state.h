/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Inside the shm transport.  A state belongs to a rank; what the ranks of a process have in common (the arena's
 * mapping, the socket that answers other processes, imported regions) hangs on a process record, found by the
 * communicator's id.
 */
#ifndef HK_TRANSPORT_SHM_STATE_H
#define HK_TRANSPORT_SHM_STATE_H
#include <pthread.h>
#include "shm.h"
#include "shm_arena.h"

enum { HK_SHM_NAME = 40 };

enum {
  HK_SHM_FACT_SHM_OFF = 1, /* NCCL_SHM_DISABLE */
  HK_SHM_FACT_P2P_OFF = 2  /* NCCL_P2P_DISABLE */
};

/* What a rank tells the others. */
typedef struct hk_shm_fact {
  uint32_t flags;
  uint32_t nslots;
  uint64_t slot_bytes;
  char name[HK_SHM_NAME]; /* of its process's socket; empty where there is none */
  char problem[96];       /* then: why */
  uint64_t probe_at;      /* address of `probe` in its memory, for others to try to read; 0: do not try */
  uint8_t probe[16];
} hk_shm_fact;
_Static_assert(sizeof(hk_shm_fact) <= HK_FACT_BYTES, "a fact travels in HK_FACT_BYTES");

struct hk_shm_state;

/* What the process that makes the arena keeps of the others until all have it: shm_server.c. */
typedef struct hk_shm_host {
  enum { HK_SHM_UNDECIDED, HK_SHM_DECIDED_ON, HK_SHM_DECIDED_OFF } verdict;
  int memfd; /* -1 before the first asks, and when it is decided */
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
  struct hk_shm_state *members; /* one or more; with the last one the record goes; changed under `lock` too */
  struct hk_shm_state *server;  /* the member whose service serves the socket */
  int socket;                   /* -1: none */
  char name[HK_SHM_NAME];       /* the socket's */
  char problem[96];             /* why there is no socket */
  uint8_t secret[16];

  pthread_mutex_t lock; /* all below, until the stage is SETTLED; then they stay as they are */
  pthread_cond_t settled;
  hk_shm_host host;
  hk_shm_stage stage;
  hk_status rc;               /* of settling: the other ranks of the process share it */
  char reason[HK_SHM_REASON]; /* why some ranks of this host are not in the group */
  int32_t *index;             /* [nranks] place in the group, -1: not in it */
  uint32_t ngroup;
  bool one_process;           /* the group is this process's ranks */
  hk_shm_arena arena;         /* base NULL: this rank's group is itself alone */
  char (*names)[HK_SHM_NAME]; /* [nranks] of their processes' sockets; NULL where the group is one process */

  pthread_mutex_t imports_lock; /* regions of other processes that are mapped here: shm_region.c */
  struct hk_shm_import *imports;
  size_t nimports, next_listed;
} hk_shm_process;

typedef struct hk_shm_state {
  hk_transport_state base; /* first */
  hk_shm_process *process;
  struct hk_shm_state *next_member;
  hk_shm_fact fact;
  uint8_t probe[16]; /* what others read to see whether they can */
  hk_answer *answer; /* to questions for the rank; under the process's lock, as `next_member` is too */
  void *answer_arg;
} hk_shm_state;

/* shm_process.c: joins the record of this rank's process, or makes it. */
hk_status hk_shm_process_enter(hk_shm_state *s);
void hk_shm_process_leave(hk_shm_state *s);
/* Nobody will ask this process anything. */
void hk_shm_process_close_socket(hk_shm_process *p);

/* shm_server.c: answers other processes; a service's callback, `arg` is the process record. */
void hk_shm_serve(void *arg, int socket, uint32_t events);
/* Under the process's lock: tells all who have asked, and who will, that the arena is not used. */
void hk_shm_refuse_all(hk_shm_process *p, const char *reason);
void hk_shm_host_dispose(hk_shm_host *h);

/* shm_join.c: agrees with the other processes of the host on the group and its arena. */
hk_status hk_shm_join(hk_transport_state *state, const void *facts);

/* shm_region.c */
hk_status hk_shm_region_open(hk_link *link); /* for links over which references to regions go */
void hk_shm_region_close(hk_link *link);     /* any link */
bool hk_shm_refer(hk_transport_state *state, hk_link *link, const void *data, size_t bytes, hk_ref *out);
const void *hk_shm_resolve(hk_transport_state *state, hk_link *link, const hk_ref *ref, size_t bytes);
void hk_shm_regions_dispose(hk_shm_process *p);

/* shm_cma.c: memory of other processes that is not a region. */
void hk_shm_cma_prepare(hk_shm_state *s);
void hk_shm_cma_try(hk_shm_state *s, const void *facts);
bool hk_shm_cma_allowed(const hk_shm_state *s, const hk_link *link);
hk_status hk_shm_fetch(hk_transport_state *state, hk_link *link, const hk_ref *ref, void *to, size_t bytes);

static inline const hk_shm_fact *hk_shm_fact_of(const void *facts, int rank) {
  return (const hk_shm_fact *)((const char *)facts + (size_t)rank * HK_FACT_BYTES);
}
#endif
