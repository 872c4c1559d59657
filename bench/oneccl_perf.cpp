/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of our perf binaries with oneCCL, timed the same way: floats, out of place. oneCCL's interface is C++.
 *
 *   mpiexec.hydra -n N oneccl_perf FOLDER OPERATION BATCHES SECONDS BYTES ...
 *
 * FOLDER is empty, and the ranks exchange the address of rank 0 through it. A line for each batch and size: bytes, and
 * microseconds an operation averaged over the ranks. A batch has as many operations as take about SECONDS. Sizes are counted as in
 * mpi_perf.c. */
#include <oneapi/ccl.hpp>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace {

const auto FLOAT = ccl::datatype::float32;
const auto SUM = ccl::reduction::sum;

struct job {
  ccl::communicator comm;
  int rank, nranks;
};

/* Rank 0 writes its address under another name first, so that no rank reads half of it. */
ccl::shared_ptr_class<ccl::kvs> meet(const std::string &folder, int rank) {
  const std::string path = folder + "/address";
  ccl::kvs::address_type address;
  if (rank == 0) {
    auto kvs = ccl::create_main_kvs();
    address = kvs->get_address();
    std::ofstream(path + ".new", std::ios::binary).write(address.data(), address.size());
    std::rename((path + ".new").c_str(), path.c_str());
    return kvs;
  }
  while (!std::ifstream(path, std::ios::binary).read(address.data(), address.size())) usleep(1000);
  return ccl::create_kvs(address);
}

/* The operation on buffers of `bytes` bytes, or nothing if it is not known. */
std::function<void()> call_of(job &j, const std::string &name, float *in, float *out, size_t bytes) {
  const size_t whole = bytes / 4, block = whole / j.nranks & ~size_t(3);
  if (name == "all_reduce") return [=, &j] { ccl::allreduce(in, out, whole, FLOAT, SUM, j.comm).wait(); };
  if (name == "all_gather")
    return [=, &j] { ccl::allgatherv(in, block, out, std::vector<size_t>(j.nranks, block), FLOAT, j.comm).wait(); };
  if (name == "reduce_scatter") return [=, &j] { ccl::reduce_scatter(in, out, block, FLOAT, SUM, j.comm).wait(); };
  if (name == "broadcast") return [=, &j] { ccl::broadcast(out, whole, FLOAT, 0, j.comm).wait(); };
  if (name == "alltoall") return [=, &j] { ccl::alltoall(in, out, block, FLOAT, j.comm).wait(); };
  return nullptr;
}

/* Microseconds an operation, averaged over ranks. */
double batch(job &j, const std::function<void()> &call, long iterations) {
  call();
  ccl::barrier(j.comm);
  const auto begin = std::chrono::steady_clock::now();
  for (long i = 0; i < iterations; i++) call();
  double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / iterations,
         sum = 0;
  ccl::allreduce(&us, &sum, 1, ccl::datatype::float64, SUM, j.comm).wait();
  return sum / j.nranks;
}

/* Grows the number until a batch takes a tenth of the time, then extrapolates. All ranks see the same averages. */
long iterations_for(job &j, const std::function<void()> &call, double seconds) {
  for (long n = 1;; n *= 4) {
    const double one = batch(j, call, n) / 1e6;
    if (one * n > seconds / 10 || n >= 1 << 20) return std::clamp(long(seconds / one), 2L, 1000000L);
  }
}

} // namespace

int main(int argc, char **argv) {
  const char *rank = std::getenv("PMI_RANK"), *nranks = std::getenv("PMI_SIZE");
  if (argc < 6 || !rank || !nranks) {
    std::fprintf(stderr, "usage: mpiexec.hydra -n N oneccl_perf FOLDER OPERATION BATCHES SECONDS BYTES ...\n");
    return 2;
  }
  ccl::init();
  job j{ccl::create_communicator(std::atoi(nranks), std::atoi(rank), meet(argv[1], std::atoi(rank))), std::atoi(rank),
        std::atoi(nranks)};
  for (int a = 5; a < argc; a++) {
    const size_t bytes = std::strtoul(argv[a], nullptr, 10), page = 4096;
    float *in = static_cast<float *>(std::aligned_alloc(page, (bytes + page - 1) / page * page));
    float *out = static_cast<float *>(std::aligned_alloc(page, (bytes + page - 1) / page * page));
    if (!in || !out) return 3;
    for (size_t i = 0; i < bytes / 4; i++) in[i] = out[i] = float(i % 7);
    const auto call = call_of(j, argv[2], in, out, bytes);
    if (!call) {
      std::fprintf(stderr, "no operation %s\n", argv[2]);
      return 2;
    }
    const long n = iterations_for(j, call, std::atof(argv[4]));
    for (int b = 0; b < std::atoi(argv[3]); b++) {
      const double us = batch(j, call, n);
      if (j.rank == 0) std::printf("%zu %.4f\n", bytes, us), std::fflush(stdout);
    }
    std::free(in), std::free(out);
  }
  return 0;
}
