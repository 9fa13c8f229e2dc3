// Implements the instructions of cuda_async.h, gemm_wgmma_cuda.cu and gemm_mma_cuda.cu on the host, for
// cuda_on_host.
//
// Copies and products, which are asynchronous on a device, run either at once or when they are waited for; a
// random draw decides.
//
// Throws: std::runtime_error if
//         - a copy writes to memory that a product may still read or that another copy is writing,
//         - a product reads memory that is being copied or is not fenced,
//         - the threads of a product disagree, or its sums are not fenced,
//         - a block ends with copies or products pending.
#pragma once

namespace dtopp::ops::cuda_on_host {

using Where = std::source_location;

void begin_block();
void end_block();

uint32_t shared_address(const void* place);
void copy_async(uint32_t to, const void* from, uint32_t bytes, const Where& where = Where::current());
// Reads one value there, so that sanitizers detect an invalid address.
void prefetch_line(const void* from);
inline void add_two(float* to, float first, float second) {
  to[0] += first;
  to[1] += second;
}
void commit_copies();
inline uint32_t computed_anew(uint32_t value) { return value; }
void wait_for_all_copies_but(int groups);
template <int kGroups>
void wait_for_copies() {
  wait_for_all_copies_but(kGroups);
}
void fence_for_wgmma();

void make_barrier(uint32_t barrier, uint32_t arrivals, const Where& where = Where::current());
void arrive(uint32_t barrier, const Where& where = Where::current());
void wait_for_phase(uint32_t barrier, uint32_t parity, const Where& where = Where::current());

template <int kRegisters>
void give_up_registers() {}
template <int kRegisters>
void take_registers() {}

struct Product {
  uint64_t a, b;
  bool transposed_a, transposed_b, accumulate;

  bool operator==(const Product&) const = default;
};

void begin_product(float* sums, const Product& product, const Where& where);
void wgmma_fence();
inline void keep_in_registers(float (&/*sums*/)[128]) {}
void wgmma_commit();
void wait_for_products_but(int groups, const Where& where);
template <int kGroups>
void wgmma_wait(const Where& where = Where::current()) {
  wait_for_products_but(kGroups, where);
}
template <bool kTransposedA, bool kTransposedB>
void wgmma(float (&sums)[128], uint64_t a, uint64_t b, bool accumulate,
           const Where& where = Where::current()) {
  begin_product(sums, {a, b, kTransposedA, kTransposedB, accumulate}, where);
}

void read_matrices(uint32_t (&out)[4], uint32_t row, bool transposed, const Where& where);
template <bool kTransposed>
void load_matrices(uint32_t (&out)[4], uint32_t row, const Where& where = Where::current()) {
  read_matrices(out, row, kTransposed, where);
}
void mma(float* sums, const uint32_t (&a)[4], uint32_t b_first, uint32_t b_second,
         const Where& where = Where::current());

}  // namespace dtopp::ops::cuda_on_host

namespace dtopp::ops::cuda {

using cuda_on_host::add_two;
using cuda_on_host::arrive;
using cuda_on_host::commit_copies;
using cuda_on_host::computed_anew;
using cuda_on_host::copy_async;
using cuda_on_host::fence_for_wgmma;
using cuda_on_host::give_up_registers;
using cuda_on_host::keep_in_registers;
using cuda_on_host::load_matrices;
using cuda_on_host::make_barrier;
using cuda_on_host::mma;
using cuda_on_host::prefetch_line;
using cuda_on_host::shared_address;
using cuda_on_host::take_registers;
using cuda_on_host::wait_for_all_copies_but;
using cuda_on_host::wait_for_copies;
using cuda_on_host::wait_for_phase;
using cuda_on_host::wgmma;
using cuda_on_host::wgmma_commit;
using cuda_on_host::wgmma_fence;
using cuda_on_host::wgmma_wait;

}  // namespace dtopp::ops::cuda
