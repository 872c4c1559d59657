/* SPDX-License-Identifier: Apache-2.0 */
/* For NVIDIA's nccl.h, on machines without CUDA. */
#pragma once
