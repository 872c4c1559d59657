/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file hocket.h
 * What Hocket offers beyond NCCL's API.
 *
 * Host streams. If buffers are host memory, the stream argument of a collective is NULL or a hocketStream_t, cast to
 * cudaStream_t. With NULL the call, or the end of its group, returns when the operation is complete. With a
 * hocketStream_t the call returns after enqueue, and the stream's operations run in order. They run on the stream's own
 * thread, or on a thread that waits for them (hocketStreamSynchronize, hocketStreamWait) before they have begun.
 */
#ifndef HOCKET_H_
#define HOCKET_H_

#include <nccl.h>

#define HOCKET_MAJOR 0
#define HOCKET_MINOR 1
#define HOCKET_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/** A host stream; convert with hocketStreamAsCuda for the API's stream arguments. */
typedef struct hocketStream *hocketStream_t;

/** Makes a stream and its thread. ncclSystemError if no thread can be created. */
ncclResult_t hocketStreamCreate(hocketStream_t *stream);
/** Waits for all enqueued work; returns the first failure since the last call, or ncclSuccess. */
ncclResult_t hocketStreamSynchronize(hocketStream_t stream);
/** ncclSuccess if all enqueued work is complete, ncclInProgress if not, or the first failure. */
ncclResult_t hocketStreamQuery(hocketStream_t stream);
/**
 * Sets *position to the number of items enqueued so far, for hocketStreamWait. A call, a group's calls for this stream,
 * and a function count 1 each. A call that moves nothing is not enqueued.
 */
ncclResult_t hocketStreamPosition(hocketStream_t stream, uint64_t *position);
/**
 * Waits until all items up to a position are complete, for at most `nanoseconds`; -1: no limit, 0: does not wait.
 * ncclInProgress after that time, else ncclSuccess or the first failure. hocketStreamSynchronize still returns that
 * failure later.
 */
ncclResult_t hocketStreamWait(hocketStream_t stream, uint64_t position, int64_t nanoseconds);
/**
 * Runs fn(arg) after all work enqueued before it, on the stream's thread or on a thread that waits for the stream. fn
 * must not call the API.
 */
ncclResult_t hocketStreamLaunch(hocketStream_t stream, void (*fn)(void *arg), void *arg);
/** Waits for all enqueued work, then frees the stream. */
ncclResult_t hocketStreamDestroy(hocketStream_t stream);

/** The stream in the form that the API takes. Any thread. */
static inline cudaStream_t hocketStreamAsCuda(hocketStream_t stream) { return (cudaStream_t)(void *)stream; }

/**
 * Makes the communicator of all processes of a job, one rank a process. Every process of the job calls it; it returns
 * when all have come. No id has to be passed on: the variables of the launcher say which rank this process is, and
 * where it finds the others.
 *
 * Rank and number of ranks come from Open MPI, MPICH or another launcher with PMI, torchrun, or Slurm, in this order;
 * without any of them the process is the only rank. The ranks meet at the first of these that is given:
 *   NCCL_COMM_ID                   host:port, as for ncclCommInitRank
 *   address                        the argument
 *   MASTER_ADDR and MASTER_PORT    the next port under torchrun, whose own store has this one
 *   Slurm's list of nodes          the first node, and a port that follows from the job
 *   a file                         that rank 0 writes for its user alone, in HOCKET_JOB_DIR, else /tmp on one host,
 *                                  else in the current folder, which the hosts must then share
 *
 * @param comm     the communicator
 * @param address  "host:port" of rank 0's host, with a port that is free there; the same on all ranks. NULL: as above
 * @param nranks   the number of ranks; -1: as the launcher says
 * @param rank     this process's rank; -1: as the launcher says
 * @param config   as of ncclCommInitRankConfig; NULL: the defaults. With blocking = 0 the call may return
 *                 ncclInProgress, but not before rank 0 has come
 *
 * ncclInvalidUsage: a variable is wrong or missing, and ncclGetLastError says which; or the ranks belong to two jobs
 * (HOCKET_JOB). ncclInvalidArgument: the address or the rank is wrong. ncclRemoteError: ranks are missing after
 * HOCKET_BOOTSTRAP_TIMEOUT seconds; the text says which. On a GPU it is on the current device, which the caller sets
 * first. Any process that knows the address can take a rank's place, unless there is an encryption key
 * (docs/security.md).
 */
ncclResult_t hocketCommFromEnvironment(ncclComm_t *comm, const char *address, int nranks, int rank,
                                       ncclConfig_t *config);
/**
 * Only what the launcher's variables say: this process's rank, the number of ranks, the number on this host (0: not
 * known), and the launcher: "ompi", "pmi", "torchrun", "slurm", or "none". Each pointer may be NULL.
 */
ncclResult_t hocketRankFromEnvironment(int *rank, int *nranks, int *localRanks, const char **launcher);

/**
 * The number of GPUs that communicators can use. 0: there is no CUDA driver or device, HOCKET_DEVICE=host is set, or
 * the library was built without kernels. Communicators then work on host memory.
 */
int hocketDeviceCount(void);

/**
 * 1: from the next call on the communicator is batch-invariant. Allreduce, reduce and reduce-scatter then reduce in the
 * order of ranks. So the bits of an element of the result depend only on the ranks' values of that element, on the
 * operator and on the number of ranks. They do not depend on the count, the element's position, the root, the number of
 * channels, or the location of ranks. docs/numerics.md explains the meaning and the cost. 0: the fastest algorithm
 * runs.
 *
 * Without this call the environment's HOCKET_BATCH_INVARIANT holds; a communicator made by ncclCommSplit or
 * ncclCommShrink takes its parent's setting over. Call it on all ranks with the same value, between the same
 * operations, best right after init: it sends nothing itself. Ranks that differ in it make different calls, which the
 * next reduction reports as ncclInvalidUsage. Operations that were enqueued or captured earlier keep the earlier
 * setting.
 */
ncclResult_t hocketCommSetBatchInvariant(ncclComm_t comm, int on);

/**
 * An allreduce whose values have 8 bits while they travel: about a quarter of the bytes of float32, half of those of
 * bfloat16 and float16. It is for sums that need not be exact, as of gradients, over a slow network. Arguments,
 * streams, groups and in-place calls are those of ncclAllReduce. Nothing else makes a call quantised, except
 * hocketCommSetQuantised and HOCKET_QUANTISED. All ranks must ask for it: a difference is reported as other differing
 * calls are.
 *
 * Each 32 values have a scale, a power of two. A value is rounded once before it is added and the sum once more, at
 * any number of ranks; sums are made in float32. Let A be the largest finite magnitude of a rank's values at most 31
 * places away from an element. Then the error of the sum's element is at most 1/62 of the sum of A over all ranks,
 * plus the rounding of an ordinary sum, plus 1.2e-38 (float16: 6e-8) for each rank and 1; for ncclAvg, that divided by
 * the number of ranks. Infinities and NaN stay in their places, and do not change the scale of other values. A result
 * within 1% of the type's largest value may become infinite. All ranks get the same bits.
 *
 * ncclInvalidArgument: the type is not float32, bfloat16 or float16, or the operator is not ncclSum or ncclAvg.
 * ncclInvalidUsage: the communicator is on a GPU, or batch-invariant.
 */
ncclResult_t hocketAllReduceQuantised(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
/**
 * 1: from the next call on, ncclAllReduce on this communicator does what hocketAllReduceQuantised does, for types and
 * operators that have a quantised form; others stay exact. 0: none is quantised. Without this call HOCKET_QUANTISED
 * decides. Call it on all ranks with the same value, between the same operations: it sends nothing itself. Operations
 * enqueued earlier keep the earlier setting. Communicators made from this one do not take it over.
 * ncclInvalidUsage: the communicator is on a GPU, or batch-invariant.
 */
ncclResult_t hocketCommSetQuantised(ncclComm_t comm, int on);

/**
 * Adds the programs of a file to the algorithms of this communicator (its forms: docs/programs.md). Every rank calls
 * it, while no other call of the communicator runs; it returns when all have. A program is proved first. From then on
 * it has a price as built-in algorithms have, and ncclCollConfig_t's algSelection selects it by the name in the file.
 * HOCKET_PROGRAMS does the same at init, for a folder.
 *
 * @param comm  the communicator; not in a group
 * @param path  the file, of equal content on all ranks that name one; NULL: this rank gets the text from the first rank
 *              that names a file
 *
 * ncclInvalidArgument: the file cannot be read, is refused, or is for another number of ranks; ncclGetLastError has the
 * line or the instruction.
 * ncclInvalidUsage: another rank cannot use its file, or the ranks have different programs. In all these cases no rank
 * has the program.
 * Communicators made by ncclCommSplit or ncclCommShrink do not take the program over.
 */
ncclResult_t hocketCommLoadProgram(ncclComm_t comm, const char *path);

/**
 * Collectives whose blocks differ in length. They are called as NCCL's collectives are: in groups, on streams, on host
 * memory and on GPUs. Counts and displacements are in elements of `datatype`, have one entry for each rank, and are
 * copied before the call returns. A displacement is the start of a block, counted from the start of the buffer. If the
 * array of displacements is NULL, the blocks follow one another in the order of ranks. Counts may be 0, and the buffer
 * of a rank whose counts are all 0 may be NULL. Blocks of a receive buffer must not overlap. If blocks of the two
 * buffers overlap other than "in place", the call returns ncclInvalidArgument.
 *
 * hocketAlltoAllv: rank r sends sendcounts[p] elements of its block p to rank p, which receives them as its block r.
 * Each rank gives only its own counts: sendcounts[p] on rank r and recvcounts[r] on rank p must be equal.  If they are
 * not, rank p gets ncclInvalidUsage, with a message that names both ranks and both counts, and the others get it in
 * this call or in their next one.  In place: sendbuff == recvbuff; the input is copied first.
 */
ncclResult_t hocketAlltoAllv(const void *sendbuff, const size_t *sendcounts, const size_t *sdispls, void *recvbuff,
                             const size_t *recvcounts, const size_t *rdispls, ncclDataType_t datatype, ncclComm_t comm,
                             cudaStream_t stream);
/**
 * Rank r sends the recvcounts[r] elements at sendbuff, and every rank receives them as its block r.  All ranks give the
 * same counts; displacements may differ.  In place: sendbuff is where block r of recvbuff begins.
 */
ncclResult_t hocketAllGatherv(const void *sendbuff, void *recvbuff, const size_t *recvcounts, const size_t *rdispls,
                              ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);
/**
 * Rank r receives the sendcounts[r] elements that result from block r of all ranks' send buffers, reduced by `op`.  All
 * ranks give the same counts; displacements may differ.  In place: recvbuff is where block r of sendbuff begins.
 * hocketCommSetBatchInvariant holds for it as for ncclReduceScatter: an element's bits then do not depend on the
 * counts.
 */
ncclResult_t hocketReduceScatterv(const void *sendbuff, void *recvbuff, const size_t *sendcounts, const size_t *sdispls,
                                  ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);

/**
 * Sets *waits to 1 if a message that `peer` sent with ncclSend has arrived and no ncclRecv has received it, else to 0.
 * Also 0 while a call of the communicator is under way on a stream. For receives from whichever rank sends first, on
 * host memory. Never blocks.
 */
ncclResult_t hocketCommProbe(ncclComm_t comm, int peer, int *waits);

/**
 * Writes the communicator's last operations to a file, for `hocket flight`: for each its number, call, state, and when
 * it began and ended, in nanoseconds since 1970 by this host's clock. Short operations may have no times. It may be
 * called at any time from any thread, also while another thread waits in a call, and after a failure. It asks no other
 * rank: each rank writes its own file. On a GPU a time is that at which the operation was put on its stream.
 *
 * @param comm  the communicator
 * @param path  the file, which is replaced as a whole; NULL: hocket-flight-COMMUNICATOR-RANK-of-RANKS.json in
 *              HOCKET_FLIGHT_DIR, or in the current folder if that is not set
 *
 * ncclInvalidArgument: comm is no communicator, or the path is too long. ncclSystemError: the file cannot be written.
 * The file has no operations if the recorder is off (HOCKET_FLIGHT_RECORDS). docs/operations.md describes its use.
 */
ncclResult_t hocketFlightDump(ncclComm_t comm, const char *path);

/** Hocket's own version: major * 10000 + minor * 100 + patch. */
int hocketVersion(void);

#ifdef __cplusplus
}
#endif
#endif /* HOCKET_H_ */
