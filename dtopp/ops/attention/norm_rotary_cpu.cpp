// Processes one row of N numbers at a time: its standard deviation, its normalized numbers and the rotation
// of each head, while the row is in cache. A token has D / N rows. The backward pass recomputes the
// normalized row instead of saving it.
#include <vector>

#include "dtopp/ops/attention/norm_rotary.h"
#include "dtopp/ops/attention/norm_row_cpu.h"
#include "dtopp/ops/gemm/cpu_kernel.h"

namespace dtopp::ops {
namespace {

// All tensors are contiguous.
struct NormRotaryInputs {
  at::Tensor x_TD, gain_N, cos_TK, sin_TK;
  double eps;
  bool centred;
};

// Per-thread rows, and the sum of the gain's gradient over the thread's rows.
struct RowBuffers {
  std::vector<float> normal_D, row_D, grad_gain_N;

  explicit RowBuffers(int64_t hidden) : normal_D(hidden), row_D(hidden), grad_gain_N(hidden) {}
};

template <typename Scalar>
struct Rows {
  const Scalar *x_TD, *gain_N;
  const float *cos_TK, *sin_TK;
  int64_t hidden, width;  // N, K
  int64_t per_token;      // rows
  float eps;
  bool centred;
};

template <typename Scalar>
[[gnu::always_inline]] inline void forward_row(const Rows<Scalar>& in, int64_t t, RowBuffers& buffers,
                                               Scalar* y_D) {
  float* n = buffers.normal_D.data();
  const float inverse = centre(in.x_TD + t * in.hidden, in.hidden, in.eps, in.centred, n);
#pragma omp simd
  for (int64_t d = 0; d < in.hidden; ++d) n[d] *= inverse * load(in.gain_N[d]);
  const int64_t angles = t / in.per_token * in.width;
  const float *cos = in.cos_TK + angles, *sin = in.sin_TK + angles;
  const int64_t half = in.width / 2;
  for (int64_t head = 0; head < in.hidden; head += in.width) {
    const float *low = n + head, *high = low + half;
    Scalar *to_low = y_D + head, *to_high = to_low + half;
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
      store(to_low + i, low[i] * cos[i] - high[i] * sin[i]);
      store(to_high + i, high[i] * cos[i] + low[i] * sin[i]);
    }
  }
}

template <typename Scalar>
[[gnu::always_inline]] inline void backward_row(const Rows<Scalar>& in, int64_t t, const Scalar* grad_D,
                                                RowBuffers& buffers, Scalar* grad_x_D) {
  const int64_t hidden = in.hidden, half = in.width / 2;
  float *normal = buffers.normal_D.data(), *row = buffers.row_D.data(),
        *grad_gain = buffers.grad_gain_N.data();
  const float inverse = centre(in.x_TD + t * hidden, hidden, in.eps, in.centred, normal);
  const int64_t angles = t / in.per_token * in.width;
  const float *cos = in.cos_TK + angles, *sin = in.sin_TK + angles;
  for (int64_t head = 0; head < hidden; head += in.width) {  // the inverse rotation
    const Scalar *low = grad_D + head, *high = low + half;
    float *to_low = row + head, *to_high = to_low + half;
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
      const float a = load(low[i]), b = load(high[i]);
      to_low[i] = a * cos[i] + b * sin[i];
      to_high[i] = b * cos[i] - a * sin[i];
    }
  }
  float sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
  for (int64_t d = 0; d < hidden; ++d) {
    normal[d] *= inverse;
    grad_gain[d] += row[d] * normal[d];
    row[d] *= load(in.gain_N[d]);
    sum += row[d];
    product += row[d] * normal[d];
  }
  const float mean = in.centred ? sum / static_cast<float>(hidden) : 0;
  const float projection = product / static_cast<float>(hidden);
#pragma omp simd
  for (int64_t d = 0; d < hidden; ++d)
    store(grad_x_D + d, inverse * (row[d] - mean - normal[d] * projection));
}

template <typename Scalar>
Rows<Scalar> rows_of(const NormRotaryInputs& in) {
  return {in.x_TD.const_data_ptr<Scalar>(),
          in.gain_N.const_data_ptr<Scalar>(),
          in.cos_TK.const_data_ptr<float>(),
          in.sin_TK.const_data_ptr<float>(),
          in.gain_N.size(0),
          in.cos_TK.size(1),
          in.x_TD.size(1) / in.gain_N.size(0),
          static_cast<float>(in.eps),
          in.centred};
}

// Calls body(first row, last row, buffers) for each thread's share of the rows. Returns the buffers in the
// order of shares.
template <typename Body>
std::vector<RowBuffers> for_row_shares(int64_t rows, int64_t hidden, const Body& body) {
  const int64_t shares = thread_shares(rows);
  std::vector<RowBuffers> buffers(shares, RowBuffers(hidden));
  at::parallel_for(0, shares, 1, [&](int64_t first, int64_t last) {
    for (int64_t share = first; share < last; ++share) {
      run_widest([&] { body(rows * share / shares, rows * (share + 1) / shares, buffers[share]); });
    }
  });
  return buffers;
}

at::Tensor norm_rotary_cpu(const at::Tensor& x_TD, const at::Tensor& gain_N, const at::Tensor& cos_TK,
                           const at::Tensor& sin_TK, double eps, bool centred) {
  check_norm_rotary("norm_rotary_forward", x_TD, gain_N, cos_TK, sin_TK);
  const NormRotaryInputs in{
      x_TD.contiguous(), gain_N.contiguous(), cos_TK.contiguous(), sin_TK.contiguous(), eps, centred};
  const int64_t hidden = in.gain_N.size(0), count = in.x_TD.numel() / hidden, width = in.cos_TK.size(1);
  at::Tensor y_THK = at::empty({in.x_TD.size(0), in.x_TD.size(1) / width, width}, in.x_TD.options());
  dispatch_scalar(in.x_TD, [&](auto scalar) {
    using Scalar = decltype(scalar);
    const auto rows = rows_of<Scalar>(in);
    auto* y = y_THK.mutable_data_ptr<Scalar>();
    for_row_shares(count, hidden, [&](int64_t begin, int64_t end, RowBuffers& buffers) {
      for (int64_t t = begin; t < end; ++t) forward_row(rows, t, buffers, y + t * hidden);
    });
  });
  return y_THK;
}

std::tuple<at::Tensor, at::Tensor> norm_rotary_backward_cpu(const at::Tensor& grad_y, const at::Tensor& x_TD,
                                                            const at::Tensor& gain_N,
                                                            const at::Tensor& cos_TK,
                                                            const at::Tensor& sin_TK, double eps,
                                                            bool centred) {
  check_norm_rotary_backward(grad_y, x_TD, gain_N, cos_TK, sin_TK);
  const NormRotaryInputs in{
      x_TD.contiguous(), gain_N.contiguous(), cos_TK.contiguous(), sin_TK.contiguous(), eps, centred};
  const at::Tensor grad_y_THK = grad_y.contiguous();
  const int64_t hidden = in.gain_N.size(0), count = in.x_TD.numel() / hidden;
  at::Tensor grad_x_TD = at::empty_like(in.x_TD), grad_gain_N = at::zeros({hidden}, at::kFloat);
  dispatch_scalar(in.x_TD, [&](auto scalar) {
    using Scalar = decltype(scalar);
    const auto rows = rows_of<Scalar>(in);
    const auto* grad_y = grad_y_THK.const_data_ptr<Scalar>();
    auto* grad_x = grad_x_TD.mutable_data_ptr<Scalar>();
    const auto shares = for_row_shares(count, hidden, [&](int64_t begin, int64_t end, RowBuffers& buffers) {
      for (int64_t t = begin; t < end; ++t)
        backward_row(rows, t, grad_y + t * hidden, buffers, grad_x + t * hidden);
    });
    auto* grad_gain = grad_gain_N.mutable_data_ptr<float>();
    for (const RowBuffers& share : shares) {
      for (int64_t d = 0; d < hidden; ++d) grad_gain[d] += share.grad_gain_N[d];
    }
  });
  return {grad_x_TD, grad_gain_N.to(in.gain_N.scalar_type())};
}

}  // namespace

TORCH_LIBRARY_IMPL(dtopp, CPU, m) {
  m.impl("norm_rotary_forward", norm_rotary_cpu);
  m.impl("norm_rotary_backward", norm_rotary_backward_cpu);
}

}  // namespace dtopp::ops
