/* SPDX-License-Identifier: Apache-2.0 */
/* Types of NVIDIA's headers, on machines without CUDA. */
#pragma once
struct half {
  unsigned short x;
};
