/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Datagrams between the processes of a host, over unix sockets in the abstract namespace: the only way to pass a file
 * descriptor to a process that is not a child or parent. Each process has one socket, served by a service thread
 * (shm_server.c). A process that asks makes a socket for the question. There are no connections, so none have to be
 * accepted, limited or cleaned up.
 *
 * A datagram is valid only if it contains the communicator's secret and comes from a process of the same user, as the
 * kernel confirms.
 */
#pragma once
#include <sys/socket.h>
#include <sys/un.h>
#include "shm_state.h"

typedef enum hk_shm_verb {
  /* To the leader, whose process makes the arena. */
  HK_SHM_ASK_ARENA, /* shape, processes: answered with GRANT or REFUSE, later with ON or OFF */
  HK_SHM_MAPPED,    /* the sender has mapped it */
  HK_SHM_FAILED,    /* the sender cannot map it; reason */
  /* To any process. */
  HK_SHM_ASK_REGION, /* region: answered with REGION or GONE */
  HK_SHM_ASK_RANK,   /* processes: the rank, payload, perhaps a file: answered with RANK or REFUSE */
  HK_SHM_PING,       /* not answered: sending it fails if the process has ended */
  /* Answers. */
  HK_SHM_GRANT,     /* with the arena's file descriptor */
  HK_SHM_REFUSE,    /* reason */
  HK_SHM_ON,        /* all processes have mapped the arena: it is used */
  HK_SHM_OFF,       /* it is not; reason */
  HK_SHM_REGION,    /* region, bytes, with its file descriptor */
  HK_SHM_GONE,      /* no such region (any more) */
  HK_SHM_RANK,      /* payload */
  HK_SHM_OTHER_USER /* never sent: replaces every verb but REFUSE if the kernel reports another user as the sender */
} hk_shm_verb;

enum { HK_SHM_FREED_MAX = 24 };

typedef struct hk_shm_message {
  uint8_t secret[16];
  uint32_t verb; /* hk_shm_verb */
  uint32_t processes;
  hk_shm_shape shape;
  uint64_t region, bytes;
  char reason[HK_SHM_REASON];
  /* ASK_REGION: regions of the receiver that the sender has mapped; REGION: the freed ones among these. */
  uint32_t nregions, reserved;
  union {
    uint64_t regions[HK_SHM_FREED_MAX];
    unsigned char payload[HK_SHM_PAYLOAD];
  };
} hk_shm_message;

typedef struct hk_shm_address {
  struct sockaddr_un un;
  socklen_t bytes;
} hk_shm_address;

/* Makes a nonblocking socket with a random name, which is written to `name` (HK_SHM_NAME bytes), for messages with the
 * secret. Returns -1 with errno. */
int hk_shm_listen(char *name, const uint8_t *secret);
/* Makes a nonblocking socket that receives only from the socket called `name`. Returns -1 with errno. */
int hk_shm_dial(const char *name);
/* Sends a datagram without waiting, with `fd` unless it is -1. `to` is NULL on a dialled socket. Returns false with
 * errno; EAGAIN: try again later. */
bool hk_shm_send(int socket, const hk_shm_address *to, const hk_shm_message *m, int fd);
/* Reads one datagram without waiting. Returns false with errno: EAGAIN if there is none, EPROTO if it is not valid. *fd
 * is -1, or a descriptor that the caller closes. */
bool hk_shm_receive(int socket, const uint8_t *secret, hk_shm_message *m, hk_shm_address *from, int *fd);
/* On a dialled socket: sends as hk_shm_send does, and waits for room. HK_ERR_REMOTE if the process has ended. */
hk_status hk_shm_send_wait(int socket, const hk_wait_env *wait, const hk_shm_message *m, int fd);
/* On a dialled socket: waits for the next message of rank `peer`'s process. Calls `look(arg)` every 20 ms meanwhile,
 * unless it is NULL. HK_ERR_REMOTE if the process has ended. */
hk_status hk_shm_receive_wait(int socket, const hk_transport_env *env, int peer, void (*look)(void *), void *arg,
                              hk_shm_message *m, int *fd);
