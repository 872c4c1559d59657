/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Datagrams between the processes of a host, over unix sockets in the abstract namespace: the only way to pass a file
 * descriptor to a process that is no relative.  Each process has one socket, served by a service thread
 * (shm_server.c); who asks makes a socket for the question.  There are no connections, hence nothing to accept, bound
 * or clean up.
 *
 * A datagram counts only with the communicator's secret in it and from a process of the same user, which the kernel
 * vouches for.
 */
#ifndef HK_TRANSPORT_SHM_SOCKET_H
#define HK_TRANSPORT_SHM_SOCKET_H
#include <sys/socket.h>
#include <sys/un.h>
#include "shm_state.h"

typedef enum hk_shm_verb {
  /* To the leader, whose process makes the arena. */
  HK_SHM_ASK_ARENA, /* shape, processes: answered with GRANT or REFUSE, later with ON or OFF */
  HK_SHM_MAPPED,    /* the sender has it */
  HK_SHM_FAILED,    /* the sender cannot map it; reason */
  /* To any process. */
  HK_SHM_ASK_REGION, /* region: answered with REGION or GONE */
  HK_SHM_ASK_RANK,   /* processes: of whom, payload, perhaps a file: answered with RANK or REFUSE */
  HK_SHM_PING,       /* not answered: sending it fails where the process has ended */
  /* Answers. */
  HK_SHM_GRANT,     /* with the arena's file descriptor */
  HK_SHM_REFUSE,    /* reason */
  HK_SHM_ON,        /* all processes have mapped the arena: it is used */
  HK_SHM_OFF,       /* it is not; reason */
  HK_SHM_REGION,    /* region, bytes, with its file descriptor */
  HK_SHM_GONE,      /* no such region (any more) */
  HK_SHM_RANK,      /* payload */
  HK_SHM_OTHER_USER /* never sent: what any but REFUSE becomes where the kernel says that the sender is another user */
} hk_shm_verb;

enum { HK_SHM_FREED_MAX = 24 };

typedef struct hk_shm_message {
  uint8_t secret[16];
  uint32_t verb; /* hk_shm_verb */
  uint32_t processes;
  hk_shm_shape shape;
  uint64_t region, bytes;
  char reason[HK_SHM_REASON];
  /* ASK_REGION: regions of the asked that the asker has; REGION: those of them that are gone. */
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

/* A nonblocking socket with a random name, which `name` (HK_SHM_NAME) gets; -1 with errno. */
int hk_shm_listen(char *name);
/* A nonblocking socket that hears only from the one called `name`; -1 with errno. */
int hk_shm_dial(const char *name);
/* `fd` is -1 or goes with the message; `to` is NULL on a dialled socket.  False with errno; EAGAIN: later. */
bool hk_shm_send(int socket, const hk_shm_address *to, const hk_shm_message *m, int fd);
/* Reads one datagram.  False where none is there (errno EAGAIN) or it does not count (EPROTO).  *fd is -1 or the
 * caller's. */
bool hk_shm_receive(int socket, const uint8_t *secret, hk_shm_message *m, hk_shm_address *from, int *fd);
/* On a dialled socket: sends, with `fd` unless it is -1; waits until it can. */
hk_status hk_shm_send_wait(int socket, const hk_wait_env *wait, const hk_shm_message *m, int fd);
/* On a dialled socket: waits for the next message of rank `peer`'s process.  `look(arg)`, where given, is called now
 * and then meanwhile. */
hk_status hk_shm_receive_wait(int socket, const hk_transport_env *env, int peer, void (*look)(void *), void *arg,
                              hk_shm_message *m, int *fd);
#endif
