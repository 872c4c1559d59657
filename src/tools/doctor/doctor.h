/* SPDX-License-Identifier: Apache-2.0 */
/**
 * `hocket doctor`: each check is a function and one line of the table in doctor.c. A check looks at the machine below
 * d->root and reports what it finds, once or several times. If there is nothing to look at, it reports nothing.
 */
#pragma once
#include "../../transport/net/ib/ib_port.h"
#include "../tools.h"

struct hk_topo; /* topo/topo.h */

typedef enum hk_health_state {
  HK_DOC_OK,
  HK_DOC_NOTE,   /* may cost speed */
  HK_DOC_PROBLEM /* something will fail or be slow */
} hk_health_state;

typedef struct hk_finding {
  const char *check;
  hk_health_state state;
  char text[512];
  char fix[256]; /* a command, or what to change; may be empty */
} hk_finding;

typedef struct hk_doctor {
  const struct hk_settings *settings;
  const char *root;           /* "": this machine */
  bool live;                  /* the root is this machine, so tests are possible */
  const char *peer;           /* --peer: host[:port], or NULL */
  const struct hk_topo *topo; /* the detected topology; NULL if detection failed */
  const char *check;          /* the check that runs now */
  hk_finding *at;
  int n;
} hk_doctor;

/* `fix` may be NULL. */
void hk_doctor_say(hk_doctor *d, hk_health_state state, const char *fix, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Formats a fix into `text` and returns it. */
const char *hk_doctor_fix(char *text /* 256 bytes */, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* host.c */
void hk_doctor_memlock(hk_doctor *d);
void hk_doctor_files(hk_doctor *d);
void hk_doctor_shm(hk_doctor *d);
void hk_doctor_cma(hk_doctor *d);
void hk_doctor_thp(hk_doctor *d);
/* cpu.c */
void hk_doctor_limits(hk_doctor *d);
void hk_doctor_numa(hk_doctor *d);
void hk_doctor_governor(hk_doctor *d);
/* net.c */
void hk_doctor_interfaces(hk_doctor *d);
void hk_doctor_encryption(hk_doctor *d);
void hk_doctor_peer(hk_doctor *d);
int hk_doctor_listen(const struct hk_settings *settings, int port); /* --listen; runs until it is killed */
/* routes.c: RDMA ports as text, and the paths between those of two hosts */
size_t hk_doctor_ports_text(const struct hk_settings *set, char *text,
                            size_t bytes); /* the lines of this host; returns their length */
/* false: the line is not about a port */
bool hk_doctor_ports_hear(const char *line, hk_ib_port ports[HK_IB_PORTS], int *n);
void hk_doctor_routes(hk_doctor *d, const hk_ib_port *theirs, int ntheirs);
/* verbs.c */
void hk_doctor_gids(hk_doctor *d);
void hk_doctor_verbs(hk_doctor *d);
/* pci.c */
void hk_doctor_topology(hk_doctor *d);
void hk_doctor_links(hk_doctor *d);
void hk_doctor_gpu(hk_doctor *d);
void hk_doctor_gdr(hk_doctor *d);
void hk_doctor_xid(hk_doctor *d);
void hk_doctor_acs(hk_doctor *d);
void hk_doctor_iommu(hk_doctor *d);
/* gpu.c */
void hk_doctor_kernels(hk_doctor *d);
void hk_doctor_nvls(hk_doctor *d);
/* rates.c */
void hk_doctor_copies(hk_doctor *d);
void hk_doctor_p2p(hk_doctor *d);
/* gdr.c */
void hk_doctor_gpu_pairs(hk_doctor *d);
/* env.c */
void hk_doctor_variables(hk_doctor *d);
void hk_doctor_plugins(hk_doctor *d);
/* frameworks.c */
void hk_doctor_frameworks(hk_doctor *d);
