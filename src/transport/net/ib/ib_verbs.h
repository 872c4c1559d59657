/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of libibverbs, which is loaded when it is first needed. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "../../../base/verbs_abi.h"

/* MAY: those that older libraries lack, which are NULL then. */
#define HK_IBV_CALLS(NEED, MAY)                                                                                        \
  NEED(hk_ibv_device **, get_device_list, (int *n))                                                                    \
  NEED(void, free_device_list, (hk_ibv_device * *list))                                                                \
  NEED(hk_ibv_context *, open_device, (hk_ibv_device * device))                                                        \
  NEED(int, close_device, (hk_ibv_context * context))                                                                  \
  NEED(int, query_device, (hk_ibv_context * context, hk_ibv_device_attr * attr))                                       \
  NEED(int, query_port, (hk_ibv_context * context, uint8_t port, hk_ibv_port_attr * attr))                             \
  NEED(int, query_gid, (hk_ibv_context * context, uint8_t port, int index, hk_ibv_gid *gid))                           \
  NEED(int, get_async_event, (hk_ibv_context * context, hk_ibv_async_event * event))                                   \
  NEED(void, ack_async_event, (hk_ibv_async_event * event))                                                            \
  NEED(hk_ibv_pd *, alloc_pd, (hk_ibv_context * context))                                                              \
  NEED(int, dealloc_pd, (hk_ibv_pd * pd))                                                                              \
  NEED(hk_ibv_mr *, reg_mr, (hk_ibv_pd * pd, void *addr, size_t bytes, int access))                                    \
  MAY(hk_ibv_mr *, reg_mr_iova2, (hk_ibv_pd * pd, void *addr, size_t bytes, uint64_t iova, unsigned access))           \
  MAY(hk_ibv_mr *, reg_dmabuf_mr, (hk_ibv_pd * pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access))  \
  NEED(int, dereg_mr, (hk_ibv_mr * mr))                                                                                \
  NEED(hk_ibv_channel *, create_comp_channel, (hk_ibv_context * context))                                              \
  NEED(int, destroy_comp_channel, (hk_ibv_channel * channel))                                                          \
  NEED(int, get_cq_event, (hk_ibv_channel * channel, hk_ibv_cq * *cq, void **cq_context))                              \
  NEED(void, ack_cq_events, (hk_ibv_cq * cq, unsigned n))                                                              \
  NEED(hk_ibv_cq *, create_cq,                                                                                         \
       (hk_ibv_context * context, int cqe, void *cq_context, hk_ibv_channel *channel, int vector))                     \
  NEED(int, destroy_cq, (hk_ibv_cq * cq))                                                                              \
  NEED(hk_ibv_qp *, create_qp, (hk_ibv_pd * pd, hk_ibv_qp_init_attr * attr))                                           \
  NEED(int, modify_qp, (hk_ibv_qp * qp, hk_ibv_qp_attr * attr, int mask))                                              \
  NEED(int, destroy_qp, (hk_ibv_qp * qp))                                                                              \
  MAY(int, query_ece, (hk_ibv_qp * qp, hk_ibv_ece * ece))                                                              \
  MAY(int, set_ece, (hk_ibv_qp * qp, hk_ibv_ece * ece))                                                                \
  MAY(int, fork_init, (void))
#define HK_IBV_MEMBER(type, member, arguments) type(*member) arguments;
typedef struct hk_ibv {
  HK_IBV_CALLS(HK_IBV_MEMBER, HK_IBV_MEMBER)
} hk_ibv;

/* Loads the library, once. Returns NULL with the reason in `why` if it is not there. From any thread. */
const hk_ibv *hk_ibv_load(char *why, size_t why_bytes);
/* Tries to open a device, and closes it. Returns false with the reason. `api`: what hk_ibv_load returned. */
bool hk_ibv_opens(void *api, const char *device, char *why, size_t why_bytes);
/* The text of a completion's status: "RETRY_EXC_ERR (transport retry counter exceeded)". */
const char *hk_ibv_status_words(int status);
