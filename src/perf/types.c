/* SPDX-License-Identifier: Apache-2.0 */
/* Data types and operators by their names on the command line and in the table. */
#include <math.h>
#include <string.h>
#include "perf.h"

const char *const perf_type_names[ncclNumTypes] = {
    [ncclInt8] = "int8",      [ncclUint8] = "uint8",       [ncclInt32] = "int32",       [ncclUint32] = "uint32",
    [ncclInt64] = "int64",    [ncclUint64] = "uint64",     [ncclFloat16] = "half",      [ncclFloat32] = "float",
    [ncclFloat64] = "double", [ncclBfloat16] = "bfloat16", [ncclFloat8e4m3] = "f8e4m3", [ncclFloat8e5m2] = "f8e5m2",
};
const char *const perf_op_names[PERF_NUM_OPS] = {"sum", "prod", "max", "min", "avg", "mulsum"};

size_t perf_type_size(ncclDataType_t type) {
  switch (type) {
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 1;
  }
}

/* Any float of exponent_bits and mantissa_bits, also e4m3, which has no infinity (its largest exponent is ordinary). */
static double types_decode_small(unsigned bits, int exponent_bits, int mantissa_bits) {
  int width = exponent_bits + mantissa_bits;
  unsigned exponent = bits >> mantissa_bits & ((1u << exponent_bits) - 1), top = (1u << exponent_bits) - 1;
  unsigned mantissa = bits & ((1u << mantissa_bits) - 1);
  int bias = (1 << (exponent_bits - 1)) - 1;
  double value;
  if (exponent == top && exponent_bits == 4)
    value = mantissa == 7 ? NAN : ldexp(8 + mantissa, (int)exponent - bias - 3);
  else if (exponent == top)
    value = mantissa ? NAN : INFINITY;
  else if (exponent == 0)
    value = ldexp(mantissa, 1 - bias - mantissa_bits);
  else
    value = ldexp((1u << mantissa_bits) + mantissa, (int)exponent - bias - mantissa_bits);
  return bits >> width & 1 ? -value : value;
}

double perf_type_decode(ncclDataType_t type, const void *data, size_t i) {
  size_t size = perf_type_size(type);
  uint64_t bits = 0;
  float f;
  double d;
  memcpy(&bits, (const char *)data + i * size, size);
  switch (type) {
    case ncclInt8: return (int8_t)bits;
    case ncclInt32: return (int32_t)bits;
    case ncclInt64: return (double)(int64_t)bits;
    case ncclFloat16: return types_decode_small((unsigned)bits, 5, 10);
    case ncclBfloat16: return types_decode_small((unsigned)bits, 8, 7);
    case ncclFloat8e4m3: return types_decode_small((unsigned)bits, 4, 3);
    case ncclFloat8e5m2: return types_decode_small((unsigned)bits, 5, 2);
    case ncclFloat32: memcpy(&f, &bits, sizeof f); return (double)f;
    case ncclFloat64: memcpy(&d, &bits, sizeof d); return d;
    default: return (double)bits;
  }
}

uint64_t perf_type_small(ncclDataType_t type, unsigned value) {
  int mantissa_bits = 0, bias = 0;
  switch (type) {
    case ncclFloat16: mantissa_bits = 10, bias = 15; break;
    case ncclBfloat16: mantissa_bits = 7, bias = 127; break;
    case ncclFloat8e4m3: mantissa_bits = 3, bias = 7; break;
    case ncclFloat8e5m2: mantissa_bits = 2, bias = 15; break;
    case ncclFloat32: mantissa_bits = 23, bias = 127; break;
    case ncclFloat64: mantissa_bits = 52, bias = 1023; break;
    default: return value;
  }
  /* Powers of two only: the exponent alone. */
  int exponent = 0;
  while (value >>= 1) exponent++;
  return (uint64_t)(exponent + bias) << mantissa_bits;
}
