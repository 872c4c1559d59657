/* SPDX-License-Identifier: Apache-2.0 */
/* Loads the library's kernels on each GPU and runs them once, as init does: whether the driver is new enough for them,
 * and whether this process may use the GPU at all. */
#include "../../device/cuda.h"
#include "../../gpu/code.h"
#include "../../kernels/gpu_image.h"
#include "doctor.h"

void hk_doctor_kernels(hk_doctor *d) {
  int n = 0, good = 0;
  if (!d->live || !hk_cuda_here(&n)) return;
  if (!hk_gpu_image_here()) {
    hk_doctor_say(d, HK_DOC_PROBLEM, "make NVCC=yes (or a path)",
                  "the library has no GPU kernels: communicators work on host memory");
    return;
  }
  for (int i = 0; i < n; i++) {
    hk_gpu_code *k;
    if (hk_gpu_code_get(i, &k) != HK_OK) {
      hk_doctor_say(d, HK_DOC_PROBLEM, "nvidia-smi -q -d COMPUTE; CUDA_VISIBLE_DEVICES leaves the GPU out",
                    "GPU %d does not run the kernels: %.440s", i, hk_last_error());
      continue;
    }
    hk_gpu_code_put(k);
    good++;
  }
  if (good) hk_doctor_say(d, HK_DOC_OK, NULL, "%d GPU%s the kernels", good, good > 1 ? "s run" : " runs");
}
