/* SPDX-License-Identifier: Apache-2.0 */
/* What PyTorch's libraries import of CUDA 13's runtime and the emulated driver has nothing for: libraries of kernels,
 * memory pools, managed memory, nodes added by hand, events of other processes.  Their parameters
 * are not looked at.  CUDA's header declares them otherwise, so it is not included. */
#define REFUSE(name)                                                                                                   \
  int name(void);                                                                                                      \
  int name(void) { return cudart_note(NOT_SUPPORTED); }
enum { NOT_SUPPORTED = 801 };
int cudart_note(int code);

REFUSE(cudaKernelSetAttributeForDevice)
REFUSE(cudaLibraryLoadData)
REFUSE(cudaLibraryLoadFromFile)
REFUSE(cudaLibraryUnload)
REFUSE(cudaLibraryGetKernel)
REFUSE(cudaLibraryGetKernelCount)
REFUSE(cudaLibraryGetGlobal)
REFUSE(cudaLibraryGetManaged)
REFUSE(cudaLibraryGetUnifiedFunction)
REFUSE(cudaMallocManaged)
REFUSE(cudaMallocAsync)
REFUSE(cudaFreeAsync)
REFUSE(cudaDeviceGetDefaultMemPool)
REFUSE(cudaMemPoolGetAttribute)
REFUSE(cudaMemPoolSetAttribute)
REFUSE(cudaMemPoolSetAccess)
REFUSE(cudaMemPoolTrimTo)
REFUSE(cudaDeviceGetGraphMemAttribute)
REFUSE(cudaDeviceSetGraphMemAttribute)
REFUSE(cudaGraphAddNode)
REFUSE(cudaGraphConditionalHandleCreate)
REFUSE(cudaGraphNodeGetDependencies)
REFUSE(cudaStreamBeginCaptureToGraph)
REFUSE(cudaIpcGetEventHandle)
REFUSE(cudaIpcOpenEventHandle)
