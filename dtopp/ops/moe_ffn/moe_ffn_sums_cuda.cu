// Sums a token's rows over its pairs, one thread block per token. The first warp lists the pairs in the order
// of experts. Every thread then adds its packs over the list, in fp32 (f64), and rounds once. There are no
// atomic additions.
#include "dtopp/ops/cuda/cuda_kernel.h"
#include "dtopp/ops/cuda/cuda_types.h"
#include "dtopp/ops/moe_ffn/moe_ffn_cuda.h"

namespace dtopp::ops::cuda {
namespace {

constexpr int kThreads = 256;

// Rows of f32 and f64 are added along the tree (expert_tree.h).
template <typename Scalar>
constexpr bool kAlongTree = !std::is_same_v<Scalar, Bfloat16>;
constexpr int kMostLevels = 11;  // of a tree over kMostExperts
static_assert(kMostExperts <= 1 << kMostLevels);

// The pairs of a block's token in shared memory, in the order of experts.
template <typename Scalar>
struct TokenPairs {
  using Real = Accumulator<Scalar>;
  Real* factors;
  int32_t *count, *positions;
  // Used only for the tree. levels: the level at which a pair's subtree joins the next pair's, or kMostLevels
  // for the last pair.
  int32_t *experts, *levels;

  __device__ explicit TokenPairs(int64_t most)
      : factors(reinterpret_cast<Real*>(shared_memory())),
        count(reinterpret_cast<int32_t*>(factors + most)),
        positions(count + 1),
        experts(positions + most),
        levels(experts + most) {}

  static size_t bytes(int64_t most) {
    constexpr int64_t kLists = kAlongTree<Scalar> ? 3 : 1;
    return most * (sizeof(Real) + kLists * sizeof(int32_t)) + sizeof(int32_t);
  }

  // The first warp calls this.
  __device__ void list(const RowSums<Scalar>& in, int64_t t) const {
    int found = 0;
    for (int64_t first = 0; first < in.experts; first += kWarp) {
      const int64_t e = first + lane_index();
      const int32_t position = e < in.experts ? in.position_TE[t * in.experts + e] : -1;
      const unsigned chosen = __ballot_sync(kAllLanes, position >= 0);
      if (position >= 0) {
        const int index = found + __popc(chosen & ((1U << lane_index()) - 1));
        positions[index] = position;
        if constexpr (kAlongTree<Scalar>) experts[index] = static_cast<int32_t>(e);
        factors[index] = in.gates_TE == nullptr ? Real(1) : in.gates_TE[t * in.experts + e];
      }
      found += __popc(chosen);
    }
    if (lane_index() == 0) *count = found;
    if constexpr (kAlongTree<Scalar>) list_levels(in.tree, found);
  }

  __device__ void list_levels(const ExpertTree& tree, int found) const {
    __syncwarp();
    for (int n = lane_index(); n < found; n += kWarp)
      levels[n] = n + 1 < found ? join_level(tree, experts[n], experts[n + 1]) : kMostLevels;
  }
};

// Products that the compiler must not fuse with an addition.
__device__ inline float rounded_product(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double rounded_product(double a, double b) { return __dmul_rn(a, b); }

template <typename Scalar, int kWidth>
struct Sums {
  Accumulator<Scalar> of[kWidth] = {};
};

template <int kWidth, typename Scalar>
__device__ Sums<Scalar, kWidth> sum_in_order(const RowSums<Scalar>& in, const TokenPairs<Scalar>& pairs,
                                             int64_t pack) {
  Sums<Scalar, kWidth> sums;
  const int count = *pairs.count;
#pragma unroll 4
  for (int n = 0; n < count; ++n) {
    const auto row = load_pack<kWidth>(in.rows_AD + pairs.positions[n] * in.hidden, pack);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums.of[i] += pairs.factors[n] * load(row.of[i]);
  }
  return sums;
}

// All threads find the same subtrees complete. Partial sums that wait stay in registers, one per level.
template <int kWidth, typename Scalar>
__device__ Sums<Scalar, kWidth> sum_along_tree(const RowSums<Scalar>& in, const TokenPairs<Scalar>& pairs,
                                               int64_t pack) {
  Sums<Scalar, kWidth> sums, waiting[kMostLevels];
  unsigned levels = 0;  // bit l: a partial sum waits at level l
  const int count = *pairs.count;
  for (int n = 0; n < count; ++n) {
    const auto row = load_pack<kWidth>(in.rows_AD + pairs.positions[n] * in.hidden, pack);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums.of[i] = rounded_product(pairs.factors[n], load(row.of[i]));
    const int level = pairs.levels[n];
#pragma unroll
    for (int l = 0; l < kMostLevels; ++l) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if (l < level && (levels >> l & 1U) != 0) sums.of[i] = waiting[l].of[i] + sums.of[i];
        if (l == level) waiting[l].of[i] = sums.of[i];
      }
    }
    levels = levels >> level << level | 1U << level;
  }
  return sums;
}

template <typename Scalar, int kWidth>
__global__ void __launch_bounds__(kThreads) sum_rows_kernel(RowSums<Scalar> in) {
  const int64_t t = blockIdx.x;
  const TokenPairs<Scalar> pairs(in.experts);
  if (warp_index() == 0) pairs.list(in, t);
  __syncthreads();
  for (int64_t pack = threadIdx.x; pack < in.hidden / kWidth; pack += kThreads) {
    Sums<Scalar, kWidth> sums;
    if constexpr (kAlongTree<Scalar>) {
      sums = sum_along_tree<kWidth>(in, pairs, pack);
    } else {
      sums = sum_in_order<kWidth>(in, pairs, pack);
    }
    Pack<Scalar, kWidth> rounded;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) store(&rounded.of[i], sums.of[i]);
    store_pack(in.sums_TD + t * in.hidden, pack, rounded);
  }
}

}  // namespace

template <typename Scalar>
void sum_rows(const RowSums<Scalar>& in, Stream stream) {
  const size_t bytes = TokenPairs<Scalar>::bytes(in.experts);
  with_packs<Scalar>(
      in.hidden,
      [&](auto width) {
        launch({"moe_ffn", stream, in.tokens, kThreads, bytes}, sum_rows_kernel<Scalar, width()>, in);
      },
      in.rows_AD, in.sums_TD);
}

template void sum_rows(const RowSums<float>&, Stream);
template void sum_rows(const RowSums<double>&, Stream);
template void sum_rows(const RowSums<Bfloat16>&, Stream);

}  // namespace dtopp::ops::cuda
