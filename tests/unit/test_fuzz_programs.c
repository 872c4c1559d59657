/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Files of programs of every form with random damage are read or refused. What is read is proved or refused. Nothing
 * crashes.  HOCKET_TEST_SECONDS and HOCKET_TEST_SEED: see scripts/fuzz.sh. */
#include "../../src/formats/file.h"
#include "../support/fuzz.h"
#include "../support/msccl_files.h"
#include "../support/mscclpp_files.h"
#include "../support/suite.h"

static char *file(uint32_t kind, int n, int parts) {
  switch (kind) {
    case 0: return mscclpp_packets(n, parts);
    case 1: return mscclpp_puts(n, parts, (int)rnd(3));
    case 2: return mscclpp_reads(n, parts, (int)rnd(2));
    case 3: return mscclpp_direct(n, parts, (int)rnd(2), (int)rnd(2));
    case 4: return msccl_ring(n, parts, "");
    case 5: return msccl_direct(n, parts, "alltoall");
    case 6: return msccl_pairs_by(n, (int)rnd(2));
    default: break;
  }
  char *text = msccl_direct(n, parts, "allgather"), *other = NULL;
  size_t size;
  hk_program_file f;
  FILE *to = open_memstream(&other, &size);
  ck_assert_ptr_nonnull(to);
  if (hk_program_file_read(&f, "file", text, 8) == HK_OK)
    (kind == 7 ? hk_program_set_json : hk_program_set_text)(f.sets, to);
  fclose(to);
  hk_program_file_free(&f);
  free(text);
  return other;
}

/* Changes numbers and characters, and moves lines. */
static void damage(char *text) {
  static const char likely[] = "0123456789 \"{}[]:,-<>=+bjios";
  for (uint32_t k = 1 + rnd(4); k; k--) {
    const uint32_t n = (uint32_t)strlen(text);
    if (!n) return;
    char *at = text + rnd(n);
    const uint32_t what = rnd(8);
    if (what < 5) { /* most changes get past the parser */
      at += strcspn(at, "0123456789");
      if (*at) *at = (char)('0' + rnd(10));
    } else if (what == 5) {
      *at = likely[rnd(sizeof likely - 1)];
    } else if (what == 6) { /* a line is lost */
      at += strcspn(at, "\n");
      if (*at) memmove(at, at + 1 + strcspn(at + 1, "\n"), strlen(at + 1 + strcspn(at + 1, "\n")) + 1);
    } else {
      *at = 0; /* the end is lost */
    }
  }
}

TEST(damaged_files) {
  int read = 0;
  fuzz_begin(3000);
  do {
    const uint32_t kind = rnd(9);
    char *text = file(kind, 2 + (int)rnd(3), 1 + (int)rnd(3));
    hk_program_file f;
    damage(text);
    if (hk_program_file_read(&f, "file", text, 2 + rnd(7)) == HK_OK) {
      read++;
      for (int i = 0; i < f.nsets; i++) (void)hk_program_set_prove(&f.sets[i], "file", 2 + rnd(7));
    }
    hk_program_file_free(&f);
    free(text);
  } while (fuzz_goes_on());
  printf("%d damaged files are well-formed\n", read);
}

int main(void) {
  setenv("NCCL_DEBUG", "NONE", 0);
  return suite_main("fuzz_programs", .timeout = 3600);
}
