#include "dtopp/ops/attention/norm_rotary.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include "dtopp/ops/core/call_op.h"
#include "dtopp/ops/gemm/cpu_kernel.h"
#include "dtopp/ops/norm/norm_row_cpu.h"

namespace dtopp::ops {
namespace {

using Forward = Tensor(const Tensor& x_TD, const Tensor& gain_N, const Tensor& cos_TK, const Tensor& sin_TK,
                       double eps, bool centered);
using Backward = std::tuple<Tensor, Tensor>(const Tensor& grad_y_THK, const Tensor& x_TD,
                                            const Tensor& gain_N, const Tensor& cos_TK, const Tensor& sin_TK,
                                            double eps, bool centered);

// Saves only its inputs for the backward pass.
struct NormRotaryFunction : torch::autograd::Function<NormRotaryFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x_TD, const Tensor& gain_N,
                        const Tensor& cos_TK, const Tensor& sin_TK, double eps, bool centered) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({x_TD, gain_N, cos_TK, sin_TK});
    context->saved_data["eps"] = eps;
    context->saved_data["centered"] = centered;
    return call_op<"dtopp::norm_rotary_forward", Forward>(x_TD, gain_N, cos_TK, sin_TK, eps, centered);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    auto [grad_x, grad_gain] = call_op<"dtopp::norm_rotary_backward", Backward>(
        grads[0], saved[0], saved[1], saved[2], saved[3], context->saved_data["eps"].toDouble(),
        context->saved_data["centered"].toBool());
    return {grad_x, grad_gain, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

// Processes one token at a time, while it is in cache: the standard deviation of each row of N numbers, the
// normalized numbers and the rotation of each head. A token has D / N rows. Each of these is a loop over all
// rows, so that the processor overlaps the sums of several rows. The backward pass recomputes the normalized
// rows instead of saving them.

// Per-thread copies of a token's rows, 1 / sigma of each row, and the sum of the gain's gradient over the
// thread's tokens.
struct RowBuffers {
  std::vector<float> normal_D, row_D, inverse, grad_gain_N;

  RowBuffers(int64_t hidden, int64_t rows)
      : normal_D(hidden * rows), row_D(hidden * rows), inverse(rows), grad_gain_N(hidden) {}
};

template <typename Scalar>
struct Tokens {
  const Scalar *x_TD, *gain_N;
  const float *cos_TK, *sin_TK;
  int64_t tokens, hidden, width;  // T, N, K
  int64_t rows;                   // of a token
  float eps;
  bool centered;

  int64_t numbers() const { return hidden * rows; }  // D
};

template <typename Scalar>
[[gnu::always_inline]] inline void center_rows(const Tokens<Scalar>& in, int64_t t, RowBuffers& buffers) {
  const Scalar* x = in.x_TD + t * in.numbers();
  float *normal = buffers.normal_D.data(), *inverse = buffers.inverse.data();
  for (int64_t row = 0; row < in.rows; ++row)
    inverse[row] = center(x + row * in.hidden, in.hidden, in.eps, in.centered, normal + row * in.hidden);
}

template <typename Scalar>
[[gnu::always_inline]] inline void forward_token(const Tokens<Scalar>& in, int64_t t, RowBuffers& buffers,
                                                 Scalar* y_D) {
  center_rows(in, t, buffers);
  const int64_t hidden = in.hidden, half = in.width / 2;
  const Scalar* gain = in.gain_N;
  for (int64_t row = 0; row < in.rows; ++row) {
    float* n = buffers.normal_D.data() + row * hidden;
    const float inverse = buffers.inverse[row];
#pragma omp simd
    for (int64_t d = 0; d < hidden; ++d) n[d] *= inverse * load(gain[d]);
  }
  const float *cos = in.cos_TK + t * in.width, *sin = in.sin_TK + t * in.width;
  for (int64_t head = 0; head < in.numbers(); head += in.width) {
    const float *low = buffers.normal_D.data() + head, *high = low + half;
    Scalar *to_low = y_D + head, *to_high = to_low + half;
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
      store(to_low + i, low[i] * cos[i] - high[i] * sin[i]);
      store(to_high + i, high[i] * cos[i] + low[i] * sin[i]);
    }
  }
}

template <typename Scalar>
[[gnu::always_inline]] inline void backward_token(const Tokens<Scalar>& in, int64_t t, const Scalar* grad_D,
                                                  RowBuffers& buffers, Scalar* grad_x_D) {
  center_rows(in, t, buffers);
  const int64_t hidden = in.hidden, half = in.width / 2;
  const float *cos = in.cos_TK + t * in.width, *sin = in.sin_TK + t * in.width;
  for (int64_t head = 0; head < in.numbers(); head += in.width) {  // the inverse rotation
    const Scalar *low = grad_D + head, *high = low + half;
    float *to_low = buffers.row_D.data() + head, *to_high = to_low + half;
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
      const float a = load(low[i]), b = load(high[i]);
      to_low[i] = a * cos[i] + b * sin[i];
      to_high[i] = b * cos[i] - a * sin[i];
    }
  }
  float* grad_gain = buffers.grad_gain_N.data();
  const Scalar* gain = in.gain_N;
  for (int64_t row = 0; row < in.rows; ++row) {
    float *normal = buffers.normal_D.data() + row * hidden, *grad = buffers.row_D.data() + row * hidden;
    const float inverse = buffers.inverse[row];
#pragma omp simd
    for (int64_t d = 0; d < hidden; ++d) {
      normal[d] *= inverse;
      grad_gain[d] += grad[d] * normal[d];
      grad[d] *= load(gain[d]);
    }
    store_norm_gradient<Scalar>(normal, grad, hidden, inverse, in.centered, nullptr, grad_x_D + row * hidden);
  }
}

// Calls body(tokens) with the inputs as contiguous numbers of x's type.
template <typename Body>
void with_tokens(const Tensor& x_TD, const Tensor& gain_N, const Tensor& cos_TK, const Tensor& sin_TK,
                 double eps, bool centered, const Body& body) {
  const Tensor x = x_TD.contiguous(), gain = gain_N.contiguous(), cos = cos_TK.contiguous(),
               sin = sin_TK.contiguous();
  dispatch_scalar(x, [&](auto scalar) {
    using Scalar = decltype(scalar);
    body(Tokens<Scalar>{x.const_data_ptr<Scalar>(), gain.const_data_ptr<Scalar>(),
                        cos.const_data_ptr<float>(), sin.const_data_ptr<float>(), x.size(0), gain.size(0),
                        cos.size(1), x.size(1) / gain.size(0), static_cast<float>(eps), centered});
  });
}

// Calls body(token, buffers) for each token. Returns the buffers of the threads' shares in their order.
template <typename Scalar, typename Body>
std::vector<RowBuffers> for_tokens(const Tokens<Scalar>& in, const Body& body) {
  const int64_t shares = thread_shares(in.tokens);
  std::vector<RowBuffers> buffers(shares, RowBuffers(in.hidden, in.rows));
  at::parallel_for(0, shares, 1, [&](int64_t first, int64_t last) {
    for (int64_t share = first; share < last; ++share) {
      run_widest([&] {
        for (int64_t t = in.tokens * share / shares; t < in.tokens * (share + 1) / shares; ++t)
          body(t, buffers[share]);
      });
    }
  });
  return buffers;
}

Tensor norm_rotary_cpu(const Tensor& x_TD, const Tensor& gain_N, const Tensor& cos_TK, const Tensor& sin_TK,
                       double eps, bool centered) {
  check_norm_rotary("norm_rotary_forward", x_TD, gain_N, cos_TK, sin_TK);
  const int64_t width = cos_TK.size(1);
  Tensor y_THK = at::empty({x_TD.size(0), x_TD.size(1) / width, width}, x_TD.options());
  with_tokens(x_TD, gain_N, cos_TK, sin_TK, eps, centered,
              [&]<typename Scalar>(const Tokens<Scalar>& tokens) {
                auto* y = y_THK.mutable_data_ptr<Scalar>();
                for_tokens(tokens, [&](int64_t t, RowBuffers& buffers) {
                  forward_token(tokens, t, buffers, y + t * tokens.numbers());
                });
              });
  return y_THK;
}

std::tuple<Tensor, Tensor> norm_rotary_backward_cpu(const Tensor& grad_y, const Tensor& x_TD,
                                                    const Tensor& gain_N, const Tensor& cos_TK,
                                                    const Tensor& sin_TK, double eps, bool centered) {
  check_norm_rotary_backward(grad_y, x_TD, gain_N, cos_TK, sin_TK);
  const Tensor grad_y_THK = grad_y.contiguous();
  Tensor grad_x_TD = at::empty(x_TD.sizes(), x_TD.options());
  Tensor grad_gain_N = at::zeros(gain_N.sizes(), at::kFloat);
  with_tokens(
      x_TD, gain_N, cos_TK, sin_TK, eps, centered, [&]<typename Scalar>(const Tokens<Scalar>& tokens) {
        const auto* grad_y = grad_y_THK.const_data_ptr<Scalar>();
        auto* grad_x = grad_x_TD.mutable_data_ptr<Scalar>();
        const auto shares = for_tokens(tokens, [&](int64_t t, RowBuffers& buffers) {
          backward_token(tokens, t, grad_y + t * tokens.numbers(), buffers, grad_x + t * tokens.numbers());
        });
        auto* grad_gain = grad_gain_N.mutable_data_ptr<float>();
        for (const RowBuffers& share : shares)
          for (int64_t d = 0; d < tokens.hidden; ++d) grad_gain[d] += share.grad_gain_N[d];
      });
  return {grad_x_TD, grad_gain_N.to(gain_N.scalar_type())};
}

}  // namespace

void check_norm_rotary(const char* op, const Tensor& x_TD, const Tensor& gain_N, const Tensor& cos_TK,
                       const Tensor& sin_TK) {
  const auto dtype = x_TD.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16, op,
              ": expected x of dtype float32 or bfloat16, got ", dtype);
  TORCH_CHECK(x_TD.dim() == 2, op, ": expected x of shape [tokens, hidden], got ", x_TD.sizes());
  const int64_t tokens = x_TD.size(0), hidden = x_TD.size(1);
  const Expected like_x{dtype, x_TD.device()}, angles{at::kFloat, x_TD.device()};
  const int64_t width = cos_TK.dim() == 2 ? cos_TK.size(1) : 0;
  TORCH_CHECK(width > 0 && width % 2 == 0 && hidden % width == 0, op, ": expected cos of shape [", tokens,
              ", K], K even and a divisor of ", hidden, ", got ", cos_TK.sizes());
  const int64_t size = gain_N.dim() == 1 ? gain_N.size(0) : 0;
  TORCH_CHECK(size > 0 && size % width == 0 && hidden % size == 0, op,
              ": expected gain of shape [N], N a divisor of ", hidden, " and a multiple of ", width, ", got ",
              gain_N.sizes());
  check_tensor(op, "gain", gain_N, like_x, {size});
  check_tensor(op, "cos", cos_TK, angles, {tokens, width});
  check_tensor(op, "sin", sin_TK, angles, {tokens, width});
}

void check_norm_rotary_backward(const Tensor& grad_y_THK, const Tensor& x_TD, const Tensor& gain_N,
                                const Tensor& cos_TK, const Tensor& sin_TK) {
  check_norm_rotary("norm_rotary_backward", x_TD, gain_N, cos_TK, sin_TK);
  const int64_t width = cos_TK.size(1);
  check_tensor("norm_rotary_backward", "grad_y", grad_y_THK, {x_TD.scalar_type(), x_TD.device()},
               {x_TD.size(0), x_TD.size(1) / width, width});
}

Tensor norm_rotary(const Tensor& x_TD, const Tensor& gain_N, const Tensor& cos_TK, const Tensor& sin_TK,
                   int64_t num_heads, double eps, bool centered) {
  TORCH_CHECK(x_TD.dim() == 2 && x_TD.size(1) == num_heads * cos_TK.size(1) && cos_TK.size(1) % 2 == 0 &&
                  cos_TK.size(0) == x_TD.size(0) && sin_TK.sizes() == cos_TK.sizes() && gain_N.dim() == 1 &&
                  gain_N.size(0) > 0 && x_TD.size(1) % gain_N.size(0) == 0,
              "norm_rotary: expected x [T, D], gain of a divisor of D, and cos and sin [T, D / ", num_heads,
              "], got ", x_TD.sizes(), ", ", gain_N.sizes(), ", ", cos_TK.sizes(), " and ", sin_TK.sizes());
  if (!at::GradMode::is_enabled())
    return call_op<"dtopp::norm_rotary_forward", Forward>(x_TD, gain_N, cos_TK, sin_TK, eps, centered);
  return NormRotaryFunction::apply(x_TD, gain_N, cos_TK, sin_TK, eps, centered);
}

TORCH_LIBRARY_FRAGMENT(dtopp, m) {
  m.def(
      "norm_rotary_forward(Tensor x_TD, Tensor gain_N, Tensor cos_TK, Tensor sin_TK, float eps, bool "
      "centered=True) -> Tensor y_THK");
  m.def(
      "norm_rotary_backward(Tensor grad_y_THK, Tensor x_TD, Tensor gain_N, Tensor cos_TK, Tensor sin_TK, "
      "float eps, bool centered=True) -> (Tensor grad_x_TD, Tensor grad_gain_N)");
}

TORCH_LIBRARY_IMPL(dtopp, Autograd, m) {
  m.impl("norm_rotary_forward", torch::autograd::autogradNotImplementedFallback());
  m.impl("norm_rotary_backward", torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(dtopp, CPU, m) {
  m.impl("norm_rotary_forward", norm_rotary_cpu);
  m.impl("norm_rotary_backward", norm_rotary_backward_cpu);
}

}  // namespace dtopp::ops
