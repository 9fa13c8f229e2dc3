// Forward: one thread block per token. A thread always processes the same pairs of packs: one pack of
// neighboring numbers in the lower half of a head and its partner in the upper half. The rotation therefore
// needs no communication between threads. Mean and standard deviation are two sums over the block; an RMS
// norm needs only the second. The row is read again from cache for each.
//
// Backward: the inverse rotation is applied to the gradient. Its sum and its product with the normalized row,
// again sums over the block, give dx. A block processes kTokensPerBlock tokens. It adds their gradients of
// the gain, in the order of tokens, to its own row in shared memory. That row is laid out so that neighboring
// threads access neighboring banks.
#include "dtopp/ops/attention/norm_rotary_cuda.h"
#include "dtopp/ops/cuda/cuda_kernel.h"

namespace dtopp::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr size_t kScratchBytes = kThreads / kWarp * sizeof(float);
constexpr int64_t kTokensPerBlock = 32;

// A pack of the lower half of a head and its partner in the upper half: their positions in a row, and the
// position of their angles, which both halves share.
struct HalfPacks {
  int64_t low, high, angle;  // in packs
  int64_t index;             // among all such pairs of packs in a row

  template <typename Scalar>
  __device__ HalfPacks(const NormRotary<Scalar>& in, int64_t index, int width) : index(index) {
    const int half = static_cast<int>(in.width) / 2 / width;
    angle = static_cast<int>(index) % half;
    low = (index - angle) * 2 + angle;
    high = low + half;
  }
};

template <typename Scalar, int kWidth>
struct Row {
  const NormRotary<Scalar>& in;
  int64_t t;

  __device__ const Scalar* x() const { return in.x_TD + t * in.hidden; }
  __device__ const float* cos() const { return in.cos_TK + t * in.width; }
  __device__ const float* sin() const { return in.sin_TK + t * in.width; }

  __device__ int64_t pairs_of_packs() const { return in.hidden / 2 / kWidth; }

  // Calls `body` with each of the thread's pairs of packs.
  template <typename Body>
  __device__ void for_packs(const Body& body) const {
    for (int64_t n = threadIdx.x; n < pairs_of_packs(); n += kThreads) body(HalfPacks(in, n, kWidth));
  }
};

struct Moments {
  float mean, inverse_sigma;
};

template <typename Scalar, int kWidth>
__device__ Moments moments_of(const Row<Scalar, kWidth>& row, float* scratch) {
  const float hidden = static_cast<float>(row.in.hidden);
  float mean = 0, squares = 0;
  if (row.in.centred) {
    float sum = 0;
    row.for_packs([&](const HalfPacks& packs) {
      const auto low = load_pack<kWidth>(row.x(), packs.low), high = load_pack<kWidth>(row.x(), packs.high);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum += load(low.of[i]) + load(high.of[i]);
    });
    mean = block_sum(sum, scratch) / hidden;
  }
  row.for_packs([&](const HalfPacks& packs) {
    const auto low = load_pack<kWidth>(row.x(), packs.low), high = load_pack<kWidth>(row.x(), packs.high);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float a = load(low.of[i]) - mean, b = load(high.of[i]) - mean;
      squares += a * a + b * b;
    }
  });
  return {mean, 1 / std::sqrt(block_sum(squares, scratch) / hidden + row.in.eps)};
}

template <typename Scalar, int kWidth>
__global__ void __launch_bounds__(kThreads) forward_kernel(NormRotary<Scalar> in, Scalar* y_TD) {
  const Row<Scalar, kWidth> row{in, blockIdx.x};
  const Moments moments = moments_of(row, reinterpret_cast<float*>(shared_memory()));
  Scalar* y = y_TD + row.t * in.hidden;
  row.for_packs([&](const HalfPacks& packs) {
    const auto x_low = load_pack<kWidth>(row.x(), packs.low), x_high = load_pack<kWidth>(row.x(), packs.high);
    const auto gain_low = load_pack<kWidth>(in.gain_D, packs.low),
               gain_high = load_pack<kWidth>(in.gain_D, packs.high);
    const auto cos = load_pack<kWidth>(row.cos(), packs.angle),
               sin = load_pack<kWidth>(row.sin(), packs.angle);
    Pack<Scalar, kWidth> low, high;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float a = (load(x_low.of[i]) - moments.mean) * (moments.inverse_sigma * load(gain_low.of[i]));
      const float b = (load(x_high.of[i]) - moments.mean) * (moments.inverse_sigma * load(gain_high.of[i]));
      store(&low.of[i], a * cos.of[i] - b * sin.of[i]);
      store(&high.of[i], b * cos.of[i] + a * sin.of[i]);
    }
    store_pack(y, packs.low, low);
    store_pack(y, packs.high, high);
  });
}

// One number of the row: its normalized value, and the gradient that reaches it, before the gain.
struct Turned {
  float normal, gradient;
};

// Sums of the gain's gradient: [half of a head][position in a pack][pair of packs].
template <int kWidth>
struct GainSums {
  float* sums;
  int64_t pairs;

  __device__ float& at(int half, int i, int64_t index) const {
    return sums[(half * kWidth + i) * pairs + index];
  }
};

// Calls body(packs, half of a head, index of the pack, its numbers) for each of the thread's packs.
template <typename Scalar, int kWidth, typename Body>
__device__ void for_rotated(const Row<Scalar, kWidth>& row, const Moments& moments, const Scalar* grad_D,
                            const Body& body) {
  row.for_packs([&](const HalfPacks& packs) {
    const auto x_low = load_pack<kWidth>(row.x(), packs.low), x_high = load_pack<kWidth>(row.x(), packs.high);
    const auto grad_low = load_pack<kWidth>(grad_D, packs.low),
               grad_high = load_pack<kWidth>(grad_D, packs.high);
    const auto cos = load_pack<kWidth>(row.cos(), packs.angle),
               sin = load_pack<kWidth>(row.sin(), packs.angle);
    Turned low[kWidth], high[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float a = load(grad_low.of[i]), b = load(grad_high.of[i]);
      low[i] = {(load(x_low.of[i]) - moments.mean) * moments.inverse_sigma, a * cos.of[i] + b * sin.of[i]};
      high[i] = {(load(x_high.of[i]) - moments.mean) * moments.inverse_sigma, b * cos.of[i] - a * sin.of[i]};
    }
    body(packs, 0, packs.low, low);
    body(packs, 1, packs.high, high);
  });
}

template <typename Scalar, int kWidth>
__device__ void token_backward(const Row<Scalar, kWidth>& row, const Scalar* grad_D, Scalar* grad_x_D,
                               const GainSums<kWidth>& grad_gain, float* scratch) {
  const Scalar* gain_D = row.in.gain_D;
  const float hidden = static_cast<float>(row.in.hidden);
  const Moments moments = moments_of(row, scratch);
  float sum = 0, product = 0;
  using Numbers = Turned[kWidth];
  for_rotated(row, moments, grad_D,
              [&](const HalfPacks& packs, int half, int64_t pack, const Numbers& rotated) {
                const auto gain = load_pack<kWidth>(gain_D, pack);
#pragma unroll
                for (int i = 0; i < kWidth; ++i) {
                  const float scaled = rotated[i].gradient * load(gain.of[i]);
                  grad_gain.at(half, i, packs.index) += rotated[i].gradient * rotated[i].normal;
                  sum += scaled;
                  product += scaled * rotated[i].normal;
                }
              });
  const float mean = row.in.centred ? block_sum(sum, scratch) / hidden : 0;
  const float projection = block_sum(product, scratch) / hidden;
  for_rotated(row, moments, grad_D, [&](const HalfPacks&, int, int64_t pack, const Numbers& rotated) {
    const auto gain = load_pack<kWidth>(gain_D, pack);
    Pack<Scalar, kWidth> grad_x;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float scaled = rotated[i].gradient * load(gain.of[i]);
      store(&grad_x.of[i], moments.inverse_sigma * (scaled - mean - rotated[i].normal * projection));
    }
    store_pack(grad_x_D, pack, grad_x);
  });
}

template <typename Scalar, int kWidth>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(NormRotary<Scalar> in, const Scalar* grad_y_TD, Scalar* grad_x_TD, float* grad_gain_BD) {
  float* scratch = reinterpret_cast<float*>(shared_memory());
  const int64_t first = blockIdx.x * kTokensPerBlock;
  const Row<Scalar, kWidth> row{in, first};
  const GainSums<kWidth> grad_gain{scratch + kThreads / kWarp, row.pairs_of_packs()};
  // A thread reads and writes only its own numbers of the sums.
  const auto for_sums = [&](const auto& body) {
    row.for_packs([&](const HalfPacks& packs) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        body(grad_gain.at(0, i, packs.index), packs.low * kWidth + i);
        body(grad_gain.at(1, i, packs.index), packs.high * kWidth + i);
      }
    });
  };
  for_sums([](float& sum, int64_t) { sum = 0; });
  for (int64_t t = first; t < first + kTokensPerBlock && t < in.tokens; ++t) {
    const int64_t offset = t * in.hidden;
    token_backward(Row<Scalar, kWidth>{in, t}, grad_y_TD + offset, grad_x_TD + offset, grad_gain, scratch);
  }
  float* out = grad_gain_BD + blockIdx.x * in.hidden;
  for_sums([&](float& sum, int64_t d) { out[d] = sum; });
}

// Calls `body` with the width of a pack. A pack is 16 bytes of Scalar if the halves of heads consist of whole
// packs, else one number. The angles, 4 bytes each, then take two loads.
template <typename Scalar, typename Body, typename... Pointers>
void with_width(const NormRotary<Scalar>& in, const Body& body, const Pointers*... rows) {
  const bool packs = takes_packs<Scalar>(in.width / 2, in.x_TD, in.gain_D, rows...) &&
                     takes_packs<float>(in.width / 2, in.cos_TK, in.sin_TK);
  if (packs) return body(std::integral_constant<int, kWidest<Scalar>>());
  body(std::integral_constant<int, 1>());
}

}  // namespace

template <typename Scalar>
void norm_rotary(const NormRotary<Scalar>& in, Scalar* y_TD, Stream stream) {
  with_width(
      in,
      [&](auto width) {
        launch({"norm_rotary", stream, in.tokens, kThreads, kScratchBytes}, forward_kernel<Scalar, width()>,
               in, y_TD);
      },
      y_TD);
}

int64_t norm_rotary_blocks(int64_t tokens) { return ceil_divide(tokens, kTokensPerBlock); }

template <typename Scalar>
void norm_rotary_backward(const NormRotary<Scalar>& in, const Scalar* grad_y_TD, Scalar* grad_x_TD,
                          float* grad_gain_BD, Stream stream) {
  with_width(
      in,
      [&](auto width) {
        launch({"norm_rotary", stream, norm_rotary_blocks(in.tokens), kThreads,
                kScratchBytes + in.hidden * sizeof(float)},
               backward_kernel<Scalar, width()>, in, grad_y_TD, grad_x_TD, grad_gain_BD);
      },
      grad_y_TD, grad_x_TD);
}

template void norm_rotary(const NormRotary<float>&, float*, Stream);
template void norm_rotary(const NormRotary<Bfloat16>&, Bfloat16*, Stream);
template void norm_rotary_backward(const NormRotary<float>&, const float*, float*, float*, Stream);
template void norm_rotary_backward(const NormRotary<Bfloat16>&, const Bfloat16*, Bfloat16*, float*, Stream);

}  // namespace dtopp::ops::cuda
