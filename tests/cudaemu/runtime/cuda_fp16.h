/* SPDX-License-Identifier: Apache-2.0 */
/* nccl.h includes CUDA's header of this name next to cuda_runtime.h; the examples need nothing of it. */
