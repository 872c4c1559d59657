/* SPDX-License-Identifier: Apache-2.0 */
/* Multicast objects are not emulated; the devices say that they have none. */
#include "emu.h"

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop) {
  (void)handle, (void)prop;
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device) {
  (void)handle, (void)device;
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset, CUmemGenericAllocationHandle memory,
                            size_t at, size_t bytes, unsigned long long flags) {
  (void)handle, (void)offset, (void)memory, (void)at, (void)bytes, (void)flags;
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t bytes) {
  (void)handle, (void)device, (void)offset, (void)bytes;
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuMulticastGetGranularity(size_t *bytes, const CUmulticastObjectProp *prop, int option) {
  (void)bytes, (void)prop, (void)option;
  return CUDA_ERROR_NOT_SUPPORTED;
}
