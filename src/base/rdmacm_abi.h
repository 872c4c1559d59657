/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What this library uses of librdmacm's ABI (RDMACM_1.0), declared here for the reasons of verbs_abi.h. test_verbs_abi
 * compares it with the real header if that is installed.
 */
#pragma once
#include <sys/socket.h>
#include "verbs_abi.h"

typedef struct hk_rdma_event_channel {
  int fd;
} hk_rdma_event_channel;

/* Only its beginning, because librdmacm allocates them. */
typedef struct hk_rdma_cm_id {
  hk_ibv_context *verbs;
  hk_rdma_event_channel *channel;
  void *context;
  hk_ibv_qp *qp;
  struct {
    struct sockaddr_storage from, to;
    hk_ibv_gid sgid, dgid;
    uint16_t pkey; /* big-endian */
    void *paths;
    int npaths;
  } route;
  int port_space;
  uint8_t port_num;
} hk_rdma_cm_id;

typedef struct hk_rdma_cm_event {
  hk_rdma_cm_id *id, *listen_id;
  int event;
  int status; /* 0 or -errno */
} hk_rdma_cm_event;

enum { HK_RDMA_CM_ADDR_RESOLVED = 0, HK_RDMA_CM_ADDR_ERROR, HK_RDMA_CM_ROUTE_RESOLVED, HK_RDMA_CM_ROUTE_ERROR };
enum { HK_RDMA_PS_TCP = 0x0106 };
