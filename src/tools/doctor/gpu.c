/* SPDX-License-Identifier: Apache-2.0 */
/* Checks with the CUDA driver: access to each GPU, loading of the kernels, reductions in the switch. */
#include <dlfcn.h>
#include <stdlib.h>
#include "../../device/cuda.h"
#include "../../gpu/code.h"
#include "../../kernels/gpu_image.h"
#include "doctor.h"

enum { GPUS = 64, MODE_PROHIBITED = 2, MODE_EXCLUSIVE_PROCESS = 3, QUEUES_OF_A_RANK = 3, TRIED_BYTES = 2 << 20 };

static void gpu_check_mode(hk_doctor *d, int ordinal) {
  char fix[256];
  CUdevice device;
  if (hk_cu.DeviceGet(&device, ordinal) != CUDA_SUCCESS) return;
  int mode = hk_cuda_attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
  if (mode == MODE_PROHIBITED)
    hk_doctor_say(d, HK_DOC_PROBLEM, hk_doctor_fix(fix, "as root: nvidia-smi -i %d -c DEFAULT", ordinal),
                  "GPU %d is in the compute mode 'prohibited': no process can use it", ordinal);
  if (mode == MODE_EXCLUSIVE_PROCESS)
    hk_doctor_say(d, HK_DOC_NOTE, hk_doctor_fix(fix, "as root: nvidia-smi -i %d -c DEFAULT; or start an MPS", ordinal),
                  "GPU %d is in the compute mode 'exclusive process': a second process, such as another rank, fails",
                  ordinal);
}

/* Loads the kernels and runs them once, as a communicator does. Returns whether that works. */
static bool gpu_check_kernels(hk_doctor *d, int ordinal) {
  hk_gpu_code *code;
  gpu_check_mode(d, ordinal);
  if (hk_gpu_code_get(ordinal, &code) != HK_OK) {
    hk_doctor_say(d, HK_DOC_PROBLEM,
                  "make NVCC=/path/to/nvcc, of a CUDA toolkit that is not newer than the driver; nvidia-smi",
                  "GPU %d does not run the kernels: %.400s", ordinal, hk_last_error());
    return false;
  }
  hk_gpu_code_put(code);
  return true;
}

/* Ranks that are threads of a process need hardware queues; a launcher or framework may have set fewer. */
static void gpu_check_queues(hk_doctor *d) {
  const char *set = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (set && atoi(set) < 8)
    hk_doctor_say(d, HK_DOC_NOTE, "export CUDA_DEVICE_MAX_CONNECTIONS=32, if ranks are threads that share a GPU",
                  "CUDA_DEVICE_MAX_CONNECTIONS=%.20s: enough for one rank in each process; ranks of one process on one "
                  "GPU need %d queues each, or wait for each other for ever",
                  set, QUEUES_OF_A_RANK);
}

void hk_doctor_kernels(hk_doctor *d) {
  int n = 0, loaded = 0;
  if (!d->live || !hk_cuda_here(&n)) return;
  if (!hk_gpu_image_here()) {
    hk_doctor_say(d, HK_DOC_PROBLEM, "make NVCC=yes", "the library has no kernels for GPUs: ranks use host memory");
    return;
  }
  for (int i = 0; i < n; i++) loaded += gpu_check_kernels(d, i);
  if (loaded) hk_doctor_say(d, HK_DOC_OK, NULL, "the kernels run on %d of %d GPU%s", loaded, n, n == 1 ? "" : "s");
  gpu_check_queues(d);
  void *nvml = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
  if (!nvml)
    hk_doctor_say(d, HK_DOC_NOTE, "mount the driver's libnvidia-ml.so.1 into the container (capability 'utility')",
                  "no libnvidia-ml.so.1: NVLinks are not seen, so prices are guesses, and LL128 is not used");
  if (nvml) dlclose(nvml);
}

/* Binds a multicast object over all GPUs, as for allreduce in the switch (NVLS). */
static hk_status gpu_bind_all(hk_device **gpus, int n, uint64_t object, size_t bytes) {
  hk_status rc = HK_OK;
  hk_memory own[GPUS], all[GPUS];
  int bound = 0;
  for (int i = 0; i < n; i++) HK_TRY(gpus[i]->ops->multicast->add(gpus[i], object), out);
  for (; bound < n; bound++)
    HK_TRY(gpus[bound]->ops->multicast->bind(gpus[bound], object, bytes, 0, &own[bound], &all[bound]), out);
out:
  while (bound-- > 0) {
    (void)gpus[bound]->ops->memory->release(gpus[bound], &all[bound]);
    (void)gpus[bound]->ops->memory->release(gpus[bound], &own[bound]);
  }
  return rc;
}

void hk_doctor_nvls(hk_doctor *d) {
  hk_status rc = HK_OK;
  hk_device *gpus[GPUS];
  int n = 0, opened = 0, can = 0;
  size_t bytes = TRIED_BYTES;
  uint64_t object = 0;
  if (!d->live || !hk_cuda_here(&n) || n < 2) return;
  if (n > GPUS) n = GPUS;
  for (; opened < n; opened++) {
    HK_TRY(hk_cuda_open(opened, &gpus[opened]), out);
    can += gpus[opened]->limits.multicast;
  }
  if (can < n) goto out; /* GPUs without such a switch */
  HK_TRY(gpus[0]->ops->multicast->create(gpus[0], (unsigned)n, &bytes, &object), out);
  rc = gpu_bind_all(gpus, n, object, bytes);
  (void)gpus[0]->ops->multicast->free(gpus[0], object);
  if (rc == HK_OK) hk_doctor_say(d, HK_DOC_OK, NULL, "the switch takes a multicast object over all %d GPUs (NVLS)", n);
out:
  if (rc != HK_OK)
    hk_doctor_say(d, HK_DOC_PROBLEM, "systemctl status nvidia-fabricmanager; NCCL_NVLS_ENABLE=0 goes without",
                  "sums in the switch (NVLS) do not work, and other algorithms are used: %.300s", hk_last_error());
  while (opened-- > 0) gpus[opened]->ops->close(gpus[opened]);
}
