/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file hocket.h
 * What Hocket offers beyond NCCL's API.
 *
 * Host streams.  Where buffers are host memory, the stream argument of a collective is either NULL, and the call (or the
 * end of its group) returns when the operation is complete, or a hocketStream_t, cast to cudaStream_t: the call returns
 * after enqueue, and operations of one stream run in order on the stream's own thread.
 */
#ifndef HOCKET_H_
#define HOCKET_H_

#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A host stream; convert with hocketStreamAsCuda for the API's stream arguments. */
typedef struct hocketStream *hocketStream_t;

/** Makes a stream and its thread. ncclSystemError when no thread can be had. */
ncclResult_t hocketStreamCreate(hocketStream_t *stream);
/** Waits for all that was enqueued; gives the first failure since the last call, or ncclSuccess. */
ncclResult_t hocketStreamSynchronize(hocketStream_t stream);
/** ncclSuccess when all that was enqueued is complete, ncclInProgress when not, or the first failure. */
ncclResult_t hocketStreamQuery(hocketStream_t stream);
/** Runs fn(arg) on the stream's thread after all that was enqueued before.  fn must not call the API. */
ncclResult_t hocketStreamLaunch(hocketStream_t stream, void (*fn)(void *arg), void *arg);
/** Waits for all that was enqueued, then frees. */
ncclResult_t hocketStreamDestroy(hocketStream_t stream);

/** The stream in the form that the API takes. Any thread. */
static inline cudaStream_t hocketStreamAsCuda(hocketStream_t stream) { return (cudaStream_t)(void *)stream; }

/**
 * GPUs that communicators can work on.  0: there is no CUDA driver or device, HOCKET_DEVICE=host is set, or the library was
 * built without kernels; communicators then work on host memory.
 */
int hocketDeviceCount(void);

/** Hocket's own version: major * 10000 + minor * 100 + patch. */
int hocketVersion(void);

#ifdef __cplusplus
}
#endif
#endif /* HOCKET_H_ */
