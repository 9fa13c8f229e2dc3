// Lists the pairs of moe_ffn, in an order that depends on the gates only. Tokens are divided into blocks of
// kTokensPerBlock, experts into groups of one warp's width. A lane reads the gates of one expert, a warp
// reads kTokensPerWarp tokens one after another.
//
// count: counts the pairs per expert and block of tokens, then sums the blocks before each block, per expert.
// offset: sums the experts before each expert. fill: the position of a pair is the number of pairs before it:
// in earlier experts, blocks of tokens, warps and tokens of the warp.
#include "dtopp/ops/cuda/cuda_kernel.h"
#include "dtopp/ops/moe_ffn/moe_ffn_cuda.h"

namespace dtopp::ops::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kTokensPerWarp = 16;
constexpr int64_t kTokensPerBlock = kWarps * kTokensPerWarp;

// The gates that a thread reads: one expert, tokens [begin, end).
struct Column {
  int64_t expert, begin, end;

  __device__ Column(int64_t tokens, int64_t experts)
      : expert(blockIdx.y * static_cast<int64_t>(kWarp) + lane_index()),
        begin(blockIdx.x * kTokensPerBlock + warp_index() * kTokensPerWarp),
        end(expert < experts ? (begin + kTokensPerWarp < tokens ? begin + kTokensPerWarp : tokens) : begin) {}
};

template <typename Real>
__device__ int count_column(const GateTable<Real>& in, const Column& column) {
  int count = 0;
  for (int64_t t = column.begin; t < column.end; ++t)
    count += in.gates_TE[t * in.experts + column.expert] != 0 ? 1 : 0;
  return count;
}

template <typename Real>
__global__ void __launch_bounds__(kThreads) count_kernel(GateTable<Real> in, int32_t* counts_EB) {
  int* counts = reinterpret_cast<int*>(shared_memory());  // [kWarps, kWarp]
  const Column column(in.tokens, in.experts);
  counts[threadIdx.x] = count_column(in, column);
  __syncthreads();
  if (warp_index() != 0 || column.expert >= in.experts) return;
  int sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) sum += counts[warp * kWarp + lane_index()];
  counts_EB[column.expert * gridDim.x + blockIdx.x] = sum;
}

// A block writes to `sums` the sum of the numbers before each one of `row`, at most `most`. Returns the sum
// of all, at most `most`.
__device__ inline int scan_row(const int32_t* row, int64_t count, int32_t* sums, int64_t most) {
  int* scratch = reinterpret_cast<int*>(shared_memory());
  int64_t before = 0;
  for (int64_t first = 0; first < count; first += kThreads) {
    const int64_t n = first + threadIdx.x;
    int total = 0;
    const int64_t sum = before + block_scan(n < count ? row[n] : 0, scratch, &total);
    if (n < count) sums[n] = static_cast<int32_t>(sum < most ? sum : most);
    before += total;
  }
  return static_cast<int>(before < most ? before : most);
}

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

__global__ void __launch_bounds__(kThreads)
    scan_kernel(int32_t* counts_EB, int64_t blocks, int32_t* totals_E) {
  int32_t* row = counts_EB + blockIdx.x * blocks;
  const int total = scan_row(row, blocks, row, kMost);
  if (threadIdx.x == 0) totals_E[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kThreads)
    offset_kernel(const int32_t* totals_E, int64_t experts, int64_t capacity, int32_t* offsets_E1) {
  const int total = scan_row(totals_E, experts, offsets_E1, capacity);
  if (threadIdx.x == 0) offsets_E1[experts] = total;
}

template <typename Real>
__global__ void __launch_bounds__(kThreads)
    fill_kernel(GateTable<Real> in, const int32_t* counts_EB, PairTable<Real> pairs) {
  int* counts = reinterpret_cast<int*>(shared_memory());
  const Column column(in.tokens, in.experts);
  counts[threadIdx.x] = count_column(in, column);
  __syncthreads();
  if (column.expert >= in.experts) return;
  int64_t position = static_cast<int64_t>(pairs.offsets_E1[column.expert]) +
                     counts_EB[column.expert * gridDim.x + blockIdx.x];
  for (int warp = 0; warp < warp_index(); ++warp) position += counts[warp * kWarp + lane_index()];
  for (int64_t t = column.begin; t < column.end; ++t) {
    const Real gate = in.gates_TE[t * in.experts + column.expert];
    const bool kept = gate != 0 && position < pairs.capacity;
    pairs.position_TE[t * in.experts + column.expert] = kept ? static_cast<int32_t>(position) : -1;
    if (kept) {
      pairs.token_A[position] = static_cast<int32_t>(t);
      pairs.gate_A[position] = gate;
    }
    if (gate != 0) ++position;
  }
}

template <typename Real>
Launch column_launch(const GateTable<Real>& gates, Stream stream) {
  return {"moe_ffn",
          stream,
          pair_blocks(gates.tokens),
          kThreads,
          kThreads * sizeof(int),
          ceil_divide(gates.experts, kWarp)};
}

constexpr size_t kScanBytes = kWarps * sizeof(int);

}  // namespace

int64_t pair_blocks(int64_t tokens) { return ceil_divide(tokens, kTokensPerBlock); }

template <typename Real>
void count_pairs(const GateTable<Real>& gates, int32_t* counts_EB, int32_t* totals_E, Stream stream) {
  launch(column_launch(gates, stream), count_kernel<Real>, gates, counts_EB);
  launch({"moe_ffn", stream, gates.experts, kThreads, kScanBytes}, scan_kernel, counts_EB,
         pair_blocks(gates.tokens), totals_E);
}

void offset_pairs(const int32_t* totals_E, int64_t experts, int64_t capacity, int32_t* offsets_E1,
                  Stream stream) {
  launch({"moe_ffn", stream, 1, kThreads, kScanBytes}, offset_kernel, totals_E, experts,
         capacity < kMost ? capacity : kMost, offsets_E1);
}

template <typename Real>
void fill_pairs(const GateTable<Real>& gates, const int32_t* counts_EB, const PairTable<Real>& pairs,
                Stream stream) {
  launch(column_launch(gates, stream), fill_kernel<Real>, gates, counts_EB, pairs);
}

template void count_pairs(const GateTable<float>&, int32_t*, int32_t*, Stream);
template void count_pairs(const GateTable<double>&, int32_t*, int32_t*, Stream);
template void fill_pairs(const GateTable<float>&, const int32_t*, const PairTable<float>&, Stream);
template void fill_pairs(const GateTable<double>&, const int32_t*, const PairTable<double>&, Stream);

}  // namespace dtopp::ops::cuda
