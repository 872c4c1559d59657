/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What this library uses of libibverbs' ABI (IBVERBS_1.1), declared here, so that it builds without the headers and
 * loads without the library. test_verbs_abi compares sizes and offsets with the real headers if they are installed.
 *
 * Posting and polling are not exported functions: a context has pointers to the driver's own.
 */
#pragma once
#include <pthread.h>
#include <stdint.h>

enum { HK_IBV_NAME = 64, HK_IBV_PATH = 256 };

typedef union hk_ibv_gid {
  uint8_t raw[16];
  uint64_t words[2]; /* big-endian: prefix, interface */
} hk_ibv_gid;

typedef struct hk_ibv_device {
  void *ops[2];
  int node_type;
  int transport_type;
  char name[HK_IBV_NAME];
  char dev_name[HK_IBV_NAME];
  char dev_path[HK_IBV_PATH];
  char ibdev_path[HK_IBV_PATH]; /* in sysfs */
} hk_ibv_device;

typedef struct hk_ibv_context hk_ibv_context;
typedef struct hk_ibv_pd {
  hk_ibv_context *context;
  uint32_t handle;
} hk_ibv_pd;

typedef struct hk_ibv_mr {
  hk_ibv_context *context;
  hk_ibv_pd *pd;
  void *addr;
  size_t length;
  uint32_t handle;
  uint32_t lkey, rkey;
} hk_ibv_mr;

typedef struct hk_ibv_channel {
  hk_ibv_context *context;
  int fd;
  int references;
} hk_ibv_channel;

typedef struct hk_ibv_cq {
  hk_ibv_context *context;
  hk_ibv_channel *channel;
  void *cq_context;
  uint32_t handle;
  int cqe;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  uint32_t comp_events, async_events;
} hk_ibv_cq;

enum { HK_IBV_QPT_RC = 2 };
enum { HK_IBV_QPS_RESET, HK_IBV_QPS_INIT, HK_IBV_QPS_RTR, HK_IBV_QPS_RTS, HK_IBV_QPS_ERR = 6 };

typedef struct hk_ibv_qp {
  hk_ibv_context *context;
  void *qp_context;
  hk_ibv_pd *pd;
  hk_ibv_cq *send_cq, *recv_cq;
  void *srq;
  uint32_t handle;
  uint32_t qp_num;
  int state;
  int qp_type;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  uint32_t events;
} hk_ibv_qp;

typedef struct hk_ibv_qp_cap {
  uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
} hk_ibv_qp_cap;

typedef struct hk_ibv_qp_init_attr {
  void *qp_context;
  hk_ibv_cq *send_cq, *recv_cq;
  void *srq;
  hk_ibv_qp_cap cap;
  int qp_type;
  int sq_sig_all;
} hk_ibv_qp_init_attr;

/* Enhanced connection establishment: options whose meaning the vendor defines. */
typedef struct hk_ibv_ece {
  uint32_t vendor_id, options, comp_mask;
} hk_ibv_ece;

typedef struct hk_ibv_global_route {
  hk_ibv_gid dgid;
  uint32_t flow_label;
  uint8_t sgid_index, hop_limit, traffic_class;
} hk_ibv_global_route;

typedef struct hk_ibv_ah_attr {
  hk_ibv_global_route grh;
  uint16_t dlid;
  uint8_t sl, src_path_bits, static_rate, is_global, port_num;
} hk_ibv_ah_attr;

typedef struct hk_ibv_qp_attr {
  int qp_state, cur_qp_state, path_mtu, path_mig_state;
  uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
  unsigned qp_access_flags;
  hk_ibv_qp_cap cap;
  hk_ibv_ah_attr ah_attr, alt_ah_attr;
  uint16_t pkey_index, alt_pkey_index;
  uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout,
      retry_cnt, rnr_retry, alt_port_num, alt_timeout;
  uint32_t rate_limit;
} hk_ibv_qp_attr;

enum {
  HK_IBV_QP_STATE = 1 << 0,
  HK_IBV_QP_ACCESS_FLAGS = 1 << 3,
  HK_IBV_QP_PKEY_INDEX = 1 << 4,
  HK_IBV_QP_PORT = 1 << 5,
  HK_IBV_QP_AV = 1 << 7,
  HK_IBV_QP_PATH_MTU = 1 << 8,
  HK_IBV_QP_TIMEOUT = 1 << 9,
  HK_IBV_QP_RETRY_CNT = 1 << 10,
  HK_IBV_QP_RNR_RETRY = 1 << 11,
  HK_IBV_QP_RQ_PSN = 1 << 12,
  HK_IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
  HK_IBV_QP_MIN_RNR_TIMER = 1 << 15,
  HK_IBV_QP_SQ_PSN = 1 << 16,
  HK_IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
  HK_IBV_QP_DEST_QPN = 1 << 20
};

enum {
  HK_IBV_ACCESS_LOCAL_WRITE = 1,
  HK_IBV_ACCESS_REMOTE_WRITE = 2,
  HK_IBV_ACCESS_REMOTE_READ = 4,
  HK_IBV_ACCESS_RELAXED_ORDERING = 1 << 20
};

typedef struct hk_ibv_sge {
  uint64_t addr;
  uint32_t length;
  uint32_t lkey;
} hk_ibv_sge;

enum { HK_IBV_WR_RDMA_WRITE, HK_IBV_WR_RDMA_WRITE_WITH_IMM, HK_IBV_WR_RDMA_READ = 4 };
enum { HK_IBV_SEND_SIGNALED = 1 << 1, HK_IBV_SEND_INLINE = 1 << 3 };

typedef struct hk_ibv_send_wr {
  uint64_t wr_id;
  struct hk_ibv_send_wr *next;
  hk_ibv_sge *sg_list;
  int num_sge;
  int opcode;
  unsigned send_flags;
  uint32_t imm_data; /* big-endian */
  union {
    struct {
      uint64_t remote_addr;
      uint32_t rkey;
    } rdma;
    uint64_t atomic[4];
  } wr;
  uint64_t qp_type;
  uint64_t bind[6];
} hk_ibv_send_wr;

typedef struct hk_ibv_recv_wr {
  uint64_t wr_id;
  struct hk_ibv_recv_wr *next;
  hk_ibv_sge *sg_list;
  int num_sge;
} hk_ibv_recv_wr;

/* Status values of a completion: HK_IBV_STATUS(name, text). */
#define HK_IBV_STATUSES(S)                                                                                             \
  S(SUCCESS, "success")                                                                                                \
  S(LOC_LEN_ERR, "local length error")                                                                                 \
  S(LOC_QP_OP_ERR, "local queue pair operation error")                                                                 \
  S(LOC_EEC_OP_ERR, "local EE context operation error")                                                                \
  S(LOC_PROT_ERR, "local protection error")                                                                            \
  S(WR_FLUSH_ERR, "flushed, because the queue pair is in error")                                                       \
  S(MW_BIND_ERR, "memory window bind error")                                                                           \
  S(BAD_RESP_ERR, "bad response")                                                                                      \
  S(LOC_ACCESS_ERR, "local access error")                                                                              \
  S(REM_INV_REQ_ERR, "remote invalid request")                                                                         \
  S(REM_ACCESS_ERR, "remote access error")                                                                             \
  S(REM_OP_ERR, "remote operation error")                                                                              \
  S(RETRY_EXC_ERR, "transport retry counter exceeded")                                                                 \
  S(RNR_RETRY_EXC_ERR, "receiver-not-ready retry counter exceeded")                                                    \
  S(LOC_RDD_VIOL_ERR, "local RDD violation")                                                                           \
  S(REM_INV_RD_REQ_ERR, "remote invalid RD request")                                                                   \
  S(REM_ABORT_ERR, "remote abort")                                                                                     \
  S(INV_EECN_ERR, "invalid EE context number")                                                                         \
  S(INV_EEC_STATE_ERR, "invalid EE context state")                                                                     \
  S(FATAL_ERR, "fatal error")                                                                                          \
  S(RESP_TIMEOUT_ERR, "response timeout")                                                                              \
  S(GENERAL_ERR, "general error")
typedef enum hk_ibv_status {
#define HK_IBV_STATUS(name, words) HK_IBV_WC_##name,
  HK_IBV_STATUSES(HK_IBV_STATUS)
#undef HK_IBV_STATUS
      HK_IBV_WC_STATUSES
} hk_ibv_status;
enum { HK_IBV_WC_RECV = 1 << 7, HK_IBV_WC_RECV_RDMA_WITH_IMM };

typedef struct hk_ibv_wc {
  uint64_t wr_id;
  int status;
  int opcode;
  uint32_t vendor_err, byte_len;
  uint32_t imm_data; /* big-endian */
  uint32_t qp_num, src_qp;
  unsigned wc_flags;
  uint16_t pkey_index, slid;
  uint8_t sl, dlid_path_bits;
} hk_ibv_wc;

struct hk_ibv_context {
  hk_ibv_device *device;
  struct {
    void *before_poll[11];
    int (*poll_cq)(hk_ibv_cq *cq, int n, hk_ibv_wc *wc);
    int (*req_notify_cq)(hk_ibv_cq *cq, int solicited_only);
    void *before_post_send[12];
    int (*post_send)(hk_ibv_qp *qp, hk_ibv_send_wr *wr, hk_ibv_send_wr **bad);
    int (*post_recv)(hk_ibv_qp *qp, hk_ibv_recv_wr *wr, hk_ibv_recv_wr **bad);
    void *after[5];
  } ops;
  int cmd_fd;
  int async_fd;
  int num_comp_vectors;
  pthread_mutex_t mutex;
  void *abi_compat;
};

typedef struct hk_ibv_device_attr {
  char fw_ver[64];
  uint64_t node_guid, sys_image_guid; /* big-endian */
  uint64_t max_mr_size, page_size_cap;
  uint32_t vendor_id, vendor_part_id, hw_ver;
  int max_qp, max_qp_wr;
  unsigned device_cap_flags;
  int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd;
  int others[20];
  uint16_t max_pkeys;
  uint8_t local_ca_ack_delay, phys_port_cnt;
} hk_ibv_device_attr;

enum { HK_IBV_PORT_GRH_REQUIRED = 1 }; /* a port's `flags` */
enum { HK_IBV_PORT_DOWN = 1, HK_IBV_PORT_ACTIVE = 4, HK_IBV_LAYER_INFINIBAND = 1, HK_IBV_LAYER_ETHERNET = 2 };
typedef struct hk_ibv_port_attr {
  int state, max_mtu, active_mtu, gid_tbl_len;
  uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
  uint16_t pkey_tbl_len, lid, sm_lid;
  uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer,
      flags;
  uint16_t port_cap_flags2;
} hk_ibv_port_attr;

typedef struct hk_ibv_async_event {
  union {
    void *object;
    int port_num;
  } element;
  int event_type;
} hk_ibv_async_event;
enum {
  HK_IBV_EVENT_CQ_ERR = 0,
  HK_IBV_EVENT_DEVICE_FATAL = 8,
  HK_IBV_EVENT_PORT_ACTIVE = 9,
  HK_IBV_EVENT_PORT_ERR = 10,
  HK_IBV_EVENT_GID_CHANGE = 18
};
