/* SPDX-License-Identifier: Apache-2.0 */
/* A machine's file (NCCL_TOPO_FILE) for the emulated driver's GPUs: who has NVLinks to whom. */
#ifndef HK_TESTS_GPU_MACHINE_H
#define HK_TESTS_GPU_MACHINE_H
#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { MACHINE_GPUS = 4 };
/* GPUs at the emulated driver's places, each below its own root port. */
static inline void gpu_machine_write(const char *path, const bool (*joined)[MACHINE_GPUS]) {
  FILE *f = fopen(path, "w");
  ck_assert_ptr_nonnull(f);
  fputs("<system version=\"1\"><cpu numaid=\"0\" affinity=\"0000ffff\" arch=\"x86_64\" vendor=\"GenuineIntel\" "
        "familyid=\"6\" modelid=\"143\">\n",
        f);
  for (int g = 0; g < MACHINE_GPUS; g++) {
    fprintf(f,
            "<pci busid=\"0000:%x:00.0\" class=\"0x030200\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\"><gpu "
            "dev=\"%d\" sm=\"90\" rank=\"%d\" gdr=\"1\">",
            0x10 + g, g, g);
    for (int k = 0; k < MACHINE_GPUS; k++)
      if (joined[g][k]) fprintf(f, "<nvlink target=\"0000:%x:00.0\" count=\"6\" tclass=\"0x030200\"/>", 0x10 + k);
    fputs("</gpu></pci>\n", f);
  }
  fputs("</cpu></system>\n", f);
  ck_assert_int_eq(fclose(f), 0);
  setenv("NCCL_TOPO_FILE", path, 1);
}
#endif
