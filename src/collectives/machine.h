/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the cost model's machine, from a topology (also of machines that do not exist here) or from facts that ranks
 * exchange. */
#ifndef HK_COLLECTIVES_MACHINE_H
#define HK_COLLECTIVES_MACHINE_H
#include "../topo/search.h"
#include "algorithm.h"

/* The measured constants of ranks on CPUs: the built-in values, or those of `hocket tune`. */
typedef struct hk_constants {
  double memory_alpha_us, tcp_alpha_us;     /* a message through shared memory, through a socket */
  double memory_message_us, tcp_message_us; /* the part of it that is work of each end */
  double tcp_link_us;                       /* work for each socket that is used */
  double tcp_us_per_b;                      /* a byte through a socket, the sender's and the receiver's part together */
  double net_alpha_us, net_message_us, net_us_per_b; /* the same between hosts */
  double copy_us_per_b, gamma_us_per_b, switch_us;
} hk_constants;
extern const hk_constants hk_constants_default;
struct hk_rules; /* rules.h */
/* Reads or writes a file of `hocket tune`. It also has choices, for cases in which the model errs; `choices` may be
 * NULL. */
hk_status hk_constants_read(hk_constants *k, struct hk_rules **choices, const char *path);
hk_status hk_constants_write(const hk_constants *k, const struct hk_rules *choices, FILE *to);
/* The path of the file that `hocket tune` writes and init reads. Returns false if there is no home directory. */
bool hk_constants_path(char *path, size_t bytes);

struct hk_overrides;

/* Makes the machine from a cluster and its ranks' seats. `rings` (may be NULL: the order of ranks) are the channels of
 * the first host, HK_PATTERN_RING; `o` (overrides.h) may be NULL. */
hk_status hk_machine_of(hk_machine *out, const hk_cluster *c, const hk_seat *seats, int nranks,
                        const hk_channels *rings, const struct hk_overrides *o);
/* Which ranks share a host, and the ring orders of `rings` (may be NULL: host after host). */
hk_status hk_layout_of(hk_layout **out, const hk_cluster *c, const hk_seat *seats, int nranks,
                       const hk_channels *rings);

/* What a runtime's ranks on CPUs know about each other: cores, and how they reach each other. */
typedef struct hk_host_facts {
  int nranks, nhosts, ranks_per_host, least_per_host, cores_per_host;
  bool memory;    /* the ranks of one host share memory */
  bool multicast; /* all ranks do */
  size_t slot_bytes;
} hk_host_facts;
/* The prices that a topology gives for ranks on GPUs of one host; of fixed size, so that ranks can exchange them. */
typedef struct hk_gpu_prices {
  hk_level inside;
  hk_traffic traffic[HK_TRAFFICS];
  double gamma_us_per_b, copy_us_per_b;
  uint64_t known; /* 0: nothing, and all else is meaningless */
} hk_gpu_prices;
/* Fills them in. `seats` are of the cluster's first host; `o` may be NULL. */
hk_status hk_gpu_prices_of(hk_gpu_prices *out, const hk_cluster *c, const hk_seat *seats, int nranks,
                           const struct hk_overrides *o);
/* What a runtime's ranks on GPUs know about each other. */
typedef struct hk_gpu_facts {
  int nranks, nhosts, ranks_per_host, least_per_host;
  int ranks_per_gpu, sm; /* the largest number; the oldest generation */
  int max_channels;
  bool wide;      /* all links keep lines of 128 bytes whole */
  bool staged;    /* links between some ranks of a host go through host memory */
  bool in_switch; /* a switch can reduce for them */
  size_t slot_bytes;
  hk_gpu_prices prices;
} hk_gpu_facts;
hk_machine hk_machine_of_gpus(const hk_gpu_facts *f, const hk_constants *constants);
hk_machine hk_machine_of_hosts(const hk_host_facts *f, const hk_constants *constants);
#endif
