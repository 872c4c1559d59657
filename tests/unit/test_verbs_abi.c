/* SPDX-License-Identifier: Apache-2.0 */
/* check: noasan notsan */
/* Our declarations of libibverbs' and librdmacm's ABI against their headers, where they are installed. */
#include <stddef.h>
#include <stdio.h>
#include "../../src/base/rdmacm_abi.h"
#include "../../src/base/verbs_abi.h"
#if __has_include(<infiniband/verbs.h>)
#include <infiniband/verbs.h>

#define SAME_SIZE(type) _Static_assert(sizeof(struct hk_##type) == sizeof(struct type), #type)
#define SAME(type, ours, theirs)                                                                                       \
  _Static_assert(offsetof(struct hk_##type, ours) == offsetof(struct type, theirs), #type "." #theirs)
_Static_assert(sizeof(union ibv_gid) == sizeof(hk_ibv_gid), "gid");
SAME_SIZE(ibv_device);
SAME(ibv_device, name, name);
SAME(ibv_device, ibdev_path, ibdev_path);
SAME(ibv_device, transport_type, transport_type);
SAME_SIZE(ibv_pd);
SAME_SIZE(ibv_mr);
SAME(ibv_mr, lkey, lkey);
SAME(ibv_mr, rkey, rkey);
SAME_SIZE(ibv_cq);
SAME_SIZE(ibv_qp);
SAME(ibv_qp, qp_num, qp_num);
SAME_SIZE(ibv_qp_init_attr);
SAME(ibv_qp_init_attr, cap, cap);
SAME(ibv_qp_init_attr, sq_sig_all, sq_sig_all);
SAME_SIZE(ibv_ece);
SAME(ibv_ece, options, options);
SAME_SIZE(ibv_qp_attr);
SAME(ibv_qp_attr, ah_attr, ah_attr);
SAME(ibv_qp_attr, pkey_index, pkey_index);
SAME(ibv_qp_attr, timeout, timeout);
SAME(ibv_qp_attr, rnr_retry, rnr_retry);
SAME(ibv_qp_attr, min_rnr_timer, min_rnr_timer);
SAME(ibv_qp_attr, max_dest_rd_atomic, max_dest_rd_atomic);
SAME(ibv_qp_attr, port_num, port_num);
SAME_SIZE(ibv_ah_attr);
SAME(ibv_ah_attr, is_global, is_global);
SAME(ibv_ah_attr, port_num, port_num);
SAME_SIZE(ibv_sge);
SAME_SIZE(ibv_send_wr);
SAME(ibv_send_wr, imm_data, imm_data);
SAME(ibv_send_wr, wr, wr);
SAME(ibv_send_wr, qp_type, qp_type);
SAME_SIZE(ibv_recv_wr);
SAME_SIZE(ibv_wc);
SAME(ibv_wc, imm_data, imm_data);
SAME(ibv_wc, qp_num, qp_num);
SAME_SIZE(ibv_context);
SAME(ibv_context, ops.poll_cq, ops.poll_cq);
SAME(ibv_context, ops.req_notify_cq, ops.req_notify_cq);
SAME(ibv_context, ops.post_send, ops.post_send);
SAME(ibv_context, ops.post_recv, ops.post_recv);
SAME(ibv_context, async_fd, async_fd);
SAME_SIZE(ibv_device_attr);
SAME(ibv_device_attr, max_pd, max_pd);
SAME(ibv_device_attr, phys_port_cnt, phys_port_cnt);
/* Newer versions have more at its end: the function ibv_query_port writes no more than the first version had. */
_Static_assert(sizeof(hk_ibv_port_attr) <= sizeof(struct ibv_port_attr), "ibv_port_attr");
SAME(ibv_port_attr, lid, lid);
SAME(ibv_port_attr, link_layer, link_layer);
SAME(ibv_port_attr, port_cap_flags2, port_cap_flags2);
SAME_SIZE(ibv_async_event);
SAME(ibv_async_event, event_type, event_type);
_Static_assert((int)HK_IBV_WC_RETRY_EXC_ERR == (int)IBV_WC_RETRY_EXC_ERR, "status");
_Static_assert((int)HK_IBV_WC_GENERAL_ERR == (int)IBV_WC_GENERAL_ERR, "status");
_Static_assert((int)HK_IBV_WC_RECV_RDMA_WITH_IMM == (int)IBV_WC_RECV_RDMA_WITH_IMM, "opcode");
_Static_assert((int)HK_IBV_WR_RDMA_READ == (int)IBV_WR_RDMA_READ, "opcode");
_Static_assert((int)HK_IBV_ACCESS_RELAXED_ORDERING == (int)IBV_ACCESS_RELAXED_ORDERING, "access");
_Static_assert((int)HK_IBV_QP_DEST_QPN == (int)IBV_QP_DEST_QPN, "mask");
_Static_assert((int)HK_IBV_QP_MAX_DEST_RD_ATOMIC == (int)IBV_QP_MAX_DEST_RD_ATOMIC, "mask");
_Static_assert((int)HK_IBV_EVENT_GID_CHANGE == (int)IBV_EVENT_GID_CHANGE, "event");
_Static_assert((int)HK_IBV_EVENT_PORT_ERR == (int)IBV_EVENT_PORT_ERR, "event");

#if __has_include(<infiniband/mlx5dv.h>)
#include <infiniband/mlx5dv.h>
_Static_assert(__builtin_types_compatible_p(__typeof__(&mlx5dv_is_supported), bool (*)(struct ibv_device *)),
               "mlx5dv_is_supported"); /* the other two functions that are used are not in all versions */
#endif

#if __has_include(<rdma/rdma_cma.h>)
#include <rdma/rdma_cma.h>
SAME_SIZE(rdma_event_channel);
SAME(rdma_cm_id, verbs, verbs);
SAME(rdma_cm_id, route.to, route.addr.dst_addr);
SAME(rdma_cm_id, route.npaths, route.num_paths);
SAME(rdma_cm_id, port_space, ps);
SAME(rdma_cm_id, port_num, port_num);
SAME(rdma_cm_event, event, event);
SAME(rdma_cm_event, status, status);
_Static_assert((int)HK_RDMA_CM_ROUTE_ERROR == (int)RDMA_CM_EVENT_ROUTE_ERROR, "event");
_Static_assert((int)HK_RDMA_PS_TCP == (int)RDMA_PS_TCP, "port space");
#endif

int main(void) {
  puts("the declarations agree with infiniband/verbs.h");
  return 0;
}
#else
int main(void) {
  puts("SKIP: infiniband/verbs.h is not installed (package libibverbs-dev)");
  return 77;
}
#endif
