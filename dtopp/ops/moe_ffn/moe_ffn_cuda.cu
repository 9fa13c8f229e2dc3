// Row-wise kernels of moe_ffn between its GEMMs. Each reads and writes a row once, in packs of kWidth
// numbers. gather, swiglu and its backward pass use one warp per row, whose lanes process every 32nd pack. A
// gate's gradient is the sum over the warp.
//
// The number of pairs is read on the device. Rows beyond it are skipped, because nothing was computed for
// them. There are no atomic additions, so equal inputs give equal bits.
#include "dtopp/ops/cuda/cuda_kernel.h"
#include "dtopp/ops/cuda/swiglu_cuda.h"
#include "dtopp/ops/moe_ffn/moe_ffn_cuda.h"

namespace dtopp::ops::cuda {
namespace {

constexpr int kRowWarps = 8;
constexpr int kRowThreads = kRowWarps * kWarp;
constexpr int kClearBlocks = 8;  // per expert

__device__ inline int64_t row_of_warp() {
  return blockIdx.x * static_cast<int64_t>(kRowWarps) + warp_index();
}

Launch row_launch(const PairRows& rows, Stream stream) {
  return {"moe_ffn", stream, ceil_divide(rows.capacity, kRowWarps), kRowThreads};
}

template <typename Scalar, int kWidth>
__global__ void __launch_bounds__(kRowThreads)
    gather_kernel(const Scalar* x_TD, const int32_t* token_A, const int32_t* pairs, int64_t hidden,
                  Scalar* rows_AD) {
  const int64_t row = row_of_warp();
  if (row >= *pairs) return;
  const Scalar* from = x_TD + token_A[row] * hidden;
  Scalar* to = rows_AD + row * hidden;
  for (int64_t pack = lane_index(); pack < hidden / kWidth; pack += kWarp)
    store_pack(to, pack, load_pack<kWidth>(from, pack));
}

template <typename Scalar, int kWidth>
__global__ void __launch_bounds__(kRowThreads)
    swiglu_kernel(const Scalar* pre_AG, const int32_t* pairs, int64_t ffn, Scalar* act_AF) {
  const int64_t row = row_of_warp();
  if (row >= *pairs) return;
  const Scalar *gates = pre_AG + row * 2 * ffn, *ups = gates + ffn;
  for (int64_t pack = lane_index(); pack < ffn / kWidth; pack += kWarp) {
    const auto gate = load_pack<kWidth>(gates, pack), up = load_pack<kWidth>(ups, pack);
    Pack<Scalar, kWidth> act;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) store(&act.of[i], swiglu<Scalar>(load(gate.of[i]), load(up.of[i])));
    store_pack(act_AF + row * ffn, pack, act);
  }
}

template <typename Scalar, int kWidth>
__global__ void __launch_bounds__(kRowThreads)
    swiglu_backward_kernel(SwigluBackward<Scalar> in, const int32_t* pairs) {
  using Real = Accumulator<Scalar>;
  const int64_t row = row_of_warp(), ffn = in.ffn;
  if (row >= *pairs) return;
  const Scalar *gates = in.pre_AG + row * 2 * ffn, *ups = gates + ffn;
  Scalar *d_gates = in.d_pre_AG + row * 2 * ffn, *d_ups = d_gates + ffn;
  const Real r = in.gate_A[row];
  Real grad_gate = 0;
  for (int64_t pack = lane_index(); pack < ffn / kWidth; pack += kWarp) {
    const auto gate = load_pack<kWidth>(gates, pack), up = load_pack<kWidth>(ups, pack),
               gradient = load_pack<kWidth>(in.da_AF + row * ffn, pack);
    Pack<Scalar, kWidth> d_gate, d_up, scaled;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const auto of = swiglu_gradient<Scalar>(load(gate.of[i]), load(up.of[i]), load(gradient.of[i]), r);
      grad_gate += of.grad_gate;
      store(&scaled.of[i], of.scaled);
      store(&d_gate.of[i], of.d_gate);
      store(&d_up.of[i], of.d_up);
    }
    store_pack(d_gates, pack, d_gate);
    store_pack(d_ups, pack, d_up);
    store_pack(in.scaled_AF + row * ffn, pack, scaled);
  }
  grad_gate = warp_sum(grad_gate);
  if (lane_index() == 0) in.grad_gate_A[row] = grad_gate;
}

template <typename Real>
__global__ void __launch_bounds__(kRowThreads)
    spread_kernel(const Real* grad_gate_AP, int64_t parts, const int32_t* position_TE, int64_t numbers,
                  Real* grad_gates_TE) {
  const int64_t n = blockIdx.x * static_cast<int64_t>(kRowThreads) + threadIdx.x;
  if (n >= numbers) return;
  const int64_t position = position_TE[n];
  Real sum = 0;
  if (position >= 0)
    for (int64_t part = 0; part < parts; ++part) sum += grad_gate_AP[position * parts + part];
  grad_gates_TE[n] = sum;
}

template <typename Scalar, int kWidth>
__global__ void __launch_bounds__(kRowThreads)
    clear_kernel(const int32_t* offsets_E1, int64_t numbers, Scalar* weight_EN) {
  const int64_t e = blockIdx.x;
  if (offsets_E1[e] < offsets_E1[e + 1]) return;
  const int64_t step = static_cast<int64_t>(gridDim.y) * kRowThreads;
  for (int64_t pack = blockIdx.y * static_cast<int64_t>(kRowThreads) + threadIdx.x; pack < numbers / kWidth;
       pack += step)
    store_pack(weight_EN + e * numbers, pack, Pack<Scalar, kWidth>{});
}

}  // namespace

template <typename Scalar>
void gather_rows(const Scalar* x_TD, const int32_t* token_A, const PairRows& rows, int64_t hidden,
                 Scalar* rows_AD, Stream stream) {
  with_packs<Scalar>(
      hidden,
      [&](auto width) {
        launch(row_launch(rows, stream), gather_kernel<Scalar, width()>, x_TD, token_A, rows.pairs, hidden,
               rows_AD);
      },
      x_TD, rows_AD);
}

template <typename Scalar>
void swiglu(const Scalar* pre_AG, const PairRows& rows, int64_t ffn, Scalar* act_AF, Stream stream) {
  with_packs<Scalar>(
      ffn,
      [&](auto width) {
        launch(row_launch(rows, stream), swiglu_kernel<Scalar, width()>, pre_AG, rows.pairs, ffn, act_AF);
      },
      pre_AG, act_AF);
}

template <typename Scalar>
void swiglu_backward(const SwigluBackward<Scalar>& in, const PairRows& rows, Stream stream) {
  with_packs<Scalar>(
      in.ffn,
      [&](auto width) {
        launch(row_launch(rows, stream), swiglu_backward_kernel<Scalar, width()>, in, rows.pairs);
      },
      in.pre_AG, in.da_AF, in.d_pre_AG, in.scaled_AF);
}

template <typename Real>
void spread_gate_gradients(const Real* grad_gate_AP, int64_t parts, const int32_t* position_TE,
                           int64_t numbers, Real* grad_gates_TE, Stream stream) {
  launch({"moe_ffn", stream, ceil_divide(numbers, kRowThreads), kRowThreads}, spread_kernel<Real>,
         grad_gate_AP, parts, position_TE, numbers, grad_gates_TE);
}

template <typename Scalar>
void clear_unused_experts(const int32_t* offsets_E1, int64_t experts, int64_t numbers, Scalar* weight_EN,
                          Stream stream) {
  with_packs<Scalar>(
      numbers,
      [&](auto width) {
        launch({"moe_ffn", stream, experts, kRowThreads, 0, kClearBlocks}, clear_kernel<Scalar, width()>,
               offsets_E1, numbers, weight_EN);
      },
      weight_EN);
}

#define DTOPP_FOR_SCALAR(Scalar)                                                                       \
  template void gather_rows(const Scalar*, const int32_t*, const PairRows&, int64_t, Scalar*, Stream); \
  template void swiglu(const Scalar*, const PairRows&, int64_t, Scalar*, Stream);                      \
  template void swiglu_backward(const SwigluBackward<Scalar>&, const PairRows&, Stream);               \
  template void clear_unused_experts(const int32_t*, int64_t, int64_t, Scalar*, Stream);
DTOPP_FOR_SCALAR(float)
DTOPP_FOR_SCALAR(double)
DTOPP_FOR_SCALAR(Bfloat16)
#undef DTOPP_FOR_SCALAR
template void spread_gate_gradients(const float*, int64_t, const int32_t*, int64_t, float*, Stream);
template void spread_gate_gradients(const double*, int64_t, const int32_t*, int64_t, double*, Stream);

}  // namespace dtopp::ops::cuda
