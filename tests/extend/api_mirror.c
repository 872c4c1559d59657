/* SPDX-License-Identifier: Apache-2.0 */
/* The API of the collective that only tests/suites/extend.sh adds: like ncclAllGather, with the last rank's message
 * first. */
#include "../core/api.h"
#include "../core/call.h"

ncclResult_t ncclMirrorGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                              ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclMirrorGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                               ncclComm_t comm, cudaStream_t stream);

HK_API(ncclResult_t, ncclMirrorGather,
       (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,
        cudaStream_t stream)) {
  return (ncclResult_t)hk_coll_call(HK_MIRROR_GATHER, sendbuff, recvbuff, sendcount, datatype, -1, 0, comm, stream);
}
