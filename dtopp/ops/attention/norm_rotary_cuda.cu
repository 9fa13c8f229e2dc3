// One thread block processes a row of N numbers at a time. A token has D / N rows. A thread holds in
// registers the same numbers of every row: kPairs pairs of packs, one of neighboring numbers in the lower
// half of a head and its partner in the upper half. A row is therefore read once, and the rotation needs no
// communication between threads.
//
// Forward: mean and standard deviation are two sums over the block; an RMS norm needs only the second.
//
// Backward: the inverse rotation is applied to the gradient. Its sum and its product with the normalized row,
// again sums over the block, give dx. A block processes kRowsPerBlock rows and adds their gradients of
// the gain in the order of rows.
#include "dtopp/ops/attention/norm_rotary_cuda.h"
#include "dtopp/ops/cuda/cuda_kernel.h"

namespace dtopp::ops::cuda {
namespace {

constexpr int64_t kRowsPerBlock = 32;

// The numbers of a row that a thread holds: of each pair of packs the lower one, then the upper one.
template <int kWidth, int kPairs>
using Numbers = float[kPairs][2 * kWidth];

// The pairs of packs of a thread.
template <typename Scalar, int kWidth, int kPairs>
struct Columns {
  const NormRotary<Scalar>& in;

  // Calls body(n, low, high, angle) with the n-th pair's packs and that of their angles, which both share.
  template <typename Body>
  __device__ void for_pairs(const Body& body) const {
    const int half = static_cast<int>(in.width) / 2 / kWidth;
    const int pairs = static_cast<int>(in.hidden) / 2 / kWidth;
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      const int index = static_cast<int>(threadIdx.x) + n * static_cast<int>(blockDim.x);
      if (index >= pairs) continue;
      const int angle = index % half, low = (index - angle) * 2 + angle;
      body(n, low, low + half, angle);
    }
  }

  __device__ void read(const Scalar* row_D, Numbers<kWidth, kPairs>& row) const {
    for_pairs([&](int n, int low, int high, int) {
      const auto lower = load_pack<kWidth>(row_D, low), upper = load_pack<kWidth>(row_D, high);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        row[n][i] = load(lower.of[i]);
        row[n][kWidth + i] = load(upper.of[i]);
      }
    });
  }

  __device__ void write(const Numbers<kWidth, kPairs>& row, Scalar* row_D) const {
    for_pairs([&](int n, int low, int high, int) {
      Pack<Scalar, kWidth> lower, upper;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        store(&lower.of[i], row[n][i]);
        store(&upper.of[i], row[n][kWidth + i]);
      }
      store_pack(row_D, low, lower);
      store_pack(row_D, high, upper);
    });
  }

  // Rotates a row's numbers by its token's angles; direction -1 is the inverse.
  __device__ void rotate(int64_t index, float direction, Numbers<kWidth, kPairs>& row) const {
    const int64_t token = in.per_token == 1 ? index : index / in.per_token;
    for_pairs([&](int n, int, int, int angle) {
      const auto cos = load_pack<kWidth>(in.cos_TK + token * in.width, angle),
                 sin = load_pack<kWidth>(in.sin_TK + token * in.width, angle);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float a = row[n][i], b = row[n][kWidth + i], turn = direction * sin.of[i];
        row[n][i] = a * cos.of[i] - b * turn;
        row[n][kWidth + i] = b * cos.of[i] + a * turn;
      }
    });
  }

  // Calls body(number of the pair, index) for each number that the thread holds.
  template <typename Body>
  __device__ void for_numbers(const Body& body) const {
    for_pairs([&](int n, int, int, int) {
#pragma unroll
      for (int i = 0; i < 2 * kWidth; ++i) body(n, i);
    });
  }

  // Subtracts the mean and divides by the standard deviation. Returns its inverse.
  __device__ float normalize(Numbers<kWidth, kPairs>& row, float* scratch) const {
    const float hidden = static_cast<float>(in.hidden);
    if (in.centered) {
      float sum = 0;
      for_numbers([&](int n, int i) { sum += row[n][i]; });
      const float mean = block_sum(sum, scratch) / hidden;
      for_numbers([&](int n, int i) { row[n][i] -= mean; });
    }
    float squares = 0;
    for_numbers([&](int n, int i) { squares += row[n][i] * row[n][i]; });
    const float variance = block_sum(squares, scratch) / hidden;
    const float zero_or_nan = variance - variance;  // so that an overflow shows
    const float inverse_sigma = 1 / std::sqrt(variance + in.eps) + zero_or_nan;
    for_numbers([&](int n, int i) { row[n][i] *= inverse_sigma; });
    return inverse_sigma;
  }
};

template <typename Scalar, int kWidth, int kPairs, int kThreads>
__global__ void __launch_bounds__(kThreads) forward_kernel(NormRotary<Scalar> in, Scalar* y_TD) {
  const Columns<Scalar, kWidth, kPairs> columns{in};
  const int64_t index = blockIdx.x;
  Numbers<kWidth, kPairs> row, gain;
  columns.read(in.x_TD + index * in.hidden, row);
  columns.read(in.gain_N, gain);
  columns.normalize(row, reinterpret_cast<float*>(shared_memory()));
  columns.for_numbers([&](int n, int i) { row[n][i] *= gain[n][i]; });
  columns.rotate(index, 1, row);
  columns.write(row, y_TD + index * in.hidden);
}

template <typename Scalar, int kWidth, int kPairs, int kThreads>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(NormRotary<Scalar> in, const Scalar* grad_y_TD, Scalar* grad_x_TD, float* grad_gain_BN) {
  const Columns<Scalar, kWidth, kPairs> columns{in};
  float* scratch = reinterpret_cast<float*>(shared_memory());
  const float hidden = static_cast<float>(in.hidden);
  Numbers<kWidth, kPairs> gain, grad_gain = {};
  columns.read(in.gain_N, gain);
  const int64_t first = blockIdx.x * kRowsPerBlock;
  for (int64_t index = first; index < first + kRowsPerBlock && index < in.rows; ++index) {
    Numbers<kWidth, kPairs> row, grad;
    columns.read(in.x_TD + index * in.hidden, row);
    columns.read(grad_y_TD + index * in.hidden, grad);
    const float inverse_sigma = columns.normalize(row, scratch);
    columns.rotate(index, -1, grad);
    float sum = 0, product = 0;
    columns.for_numbers([&](int n, int i) {
      grad_gain[n][i] += grad[n][i] * row[n][i];
      grad[n][i] *= gain[n][i];
      sum += grad[n][i];
      product += grad[n][i] * row[n][i];
    });
    const float mean = in.centered ? block_sum(sum, scratch) / hidden : 0;
    const float projection = block_sum(product, scratch) / hidden;
    columns.for_numbers(
        [&](int n, int i) { grad[n][i] = inverse_sigma * (grad[n][i] - mean - row[n][i] * projection); });
    columns.write(grad, grad_x_TD + index * in.hidden);
  }
  float* out_D = grad_gain_BN + blockIdx.x * in.hidden;
  columns.for_pairs([&](int n, int low, int high, int) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      out_D[low * kWidth + i] = grad_gain[n][i];
      out_D[high * kWidth + i] = grad_gain[n][kWidth + i];
    }
  });
}

// Calls body(pack width, pairs per thread, most threads; threads of a block). A pack is 16 bytes of Scalar if
// the halves of heads consist of whole packs, else one number. The angles, 4 bytes each, then take two loads.
template <typename Scalar, typename Body, typename... Pointers>
void with_columns(const NormRotary<Scalar>& in, const Body& body, const Pointers*... rows) {
  const auto with_pairs = [&](auto width, auto most_threads) {
    const int64_t pairs = in.hidden / 2 / width();
    const auto run = [&](auto per_thread) {
      const int64_t threads = ceil_divide(ceil_divide(pairs, per_thread()), kWarp) * kWarp;
      body(width, per_thread, most_threads, static_cast<int>(threads));
    };
    if (pairs <= most_threads()) return run(std::integral_constant<int, 1>());
    if (pairs <= 2 * most_threads()) return run(std::integral_constant<int, 2>());
    run(std::integral_constant < int, width() == 8 ? 3 : 6 > ());  // up to kWidestNorm
  };
  const bool packs = takes_packs<Scalar>(in.width / 2, in.x_TD, in.gain_N, rows...) &&
                     takes_packs<float>(in.width / 2, in.cos_TK, in.sin_TK);
  if (packs) {
    with_pairs(std::integral_constant<int, kWidest<Scalar>>(), std::integral_constant<int, 256>());
  } else {
    with_pairs(std::integral_constant<int, 1>(), std::integral_constant<int, 1024>());
  }
}

size_t scratch_bytes(int threads) { return static_cast<size_t>(threads / kWarp) * sizeof(float); }

}  // namespace

template <typename Scalar>
void norm_rotary(const NormRotary<Scalar>& in, Scalar* y_TD, Stream stream) {
  with_columns(
      in,
      [&](auto width, auto pairs, auto most, int threads) {
        launch({"norm_rotary", stream, in.rows, threads, scratch_bytes(threads)},
               forward_kernel<Scalar, width(), pairs(), most()>, in, y_TD);
      },
      y_TD);
}

int64_t norm_rotary_blocks(int64_t rows) { return ceil_divide(rows, kRowsPerBlock); }

template <typename Scalar>
void norm_rotary_backward(const NormRotary<Scalar>& in, const Scalar* grad_y_TD, Scalar* grad_x_TD,
                          float* grad_gain_BN, Stream stream) {
  with_columns(
      in,
      [&](auto width, auto pairs, auto most, int threads) {
        launch({"norm_rotary", stream, norm_rotary_blocks(in.rows), threads, scratch_bytes(threads)},
               backward_kernel<Scalar, width(), pairs(), most()>, in, grad_y_TD, grad_x_TD, grad_gain_BN);
      },
      grad_y_TD, grad_x_TD);
}

template void norm_rotary(const NormRotary<float>&, float*, Stream);
template void norm_rotary(const NormRotary<Bfloat16>&, Bfloat16*, Stream);
template void norm_rotary_backward(const NormRotary<float>&, const float*, float*, float*, Stream);
template void norm_rotary_backward(const NormRotary<Bfloat16>&, const Bfloat16*, Bfloat16*, float*, Stream);

}  // namespace dtopp::ops::cuda
