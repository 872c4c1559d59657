/* SPDX-License-Identifier: Apache-2.0 */
/* What a user of an installed library compiles: prints the result and the version. */
#include <nccl.h>
#include <stdio.h>
int main(void) {
  int version = 0;
  ncclResult_t result = ncclGetVersion(&version);
  printf("%d %d\n", result, version);
  return 0;
}
