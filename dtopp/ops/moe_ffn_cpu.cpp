#include "dtopp/ops/bfloat16.h"
#include "dtopp/ops/linear.h"
#include "dtopp/ops/moe_ffn_kernel.h"
#include "dtopp/ops/simd.h"

namespace dtopp {
namespace {

// Experts run one after another, the rows of one in blocks over the threads. A token appears once per expert,
// so blocks never add to the same row of y or dx, and the order of every sum is fixed.
constexpr int64_t kSmallestBlock = 32;  // fewer rows than this do not repay a thread
constexpr int64_t kLargestBlock = 512;  // a block's buffers stay in the second-level cache

template <typename Body>
void for_row_blocks(int64_t rows, const Body& body) {
  const int64_t threads = at::get_num_threads();
  const int64_t block = std::clamp((rows + threads - 1) / threads, kSmallestBlock, kLargestBlock);
  const int64_t blocks = (rows + block - 1) / block;
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) body(b * block, std::min(block, rows - b * block));
  });
}

// The token-expert pairs, ordered by expert, then token.
struct Assignment {
  std::vector<int64_t> offset_E1;  // expert e has the pairs [offset[e], offset[e + 1])
  std::vector<int64_t> token_A;
  int64_t most = 0;  // pairs of the busiest expert

  int64_t count(int64_t e) const { return offset_E1[e + 1] - offset_E1[e]; }
};

Assignment assign(const at::Tensor& pairs_A2, int64_t experts) {
  Assignment out;
  const int64_t pairs = pairs_A2.size(0);
  const auto pair = pairs_A2.accessor<int64_t, 2>();
  out.offset_E1.assign(experts + 1, 0);
  out.token_A.resize(pairs);
  for (int64_t a = 0; a < pairs; ++a) {
    ++out.offset_E1[pair[a][0] + 1];
    out.token_A[a] = pair[a][1];
  }
  for (int64_t e = 0; e < experts; ++e) {
    out.most = std::max(out.most, out.offset_E1[e + 1]);
    out.offset_E1[e + 1] += out.offset_E1[e];
  }
  return out;
}

// The type matrices are multiplied in: the tensors' own, but float for bfloat16 where the CPU would emulate
// it.
at::ScalarType product_dtype(const at::Tensor& x_TD) {
  const bool emulated = x_TD.scalar_type() == at::kBFloat16 && !has_bf16_matmul(x_TD.device());
  return emulated ? at::kFloat : x_TD.scalar_type();
}

template <typename From, typename To>
void convert(const From* from, To* to, int64_t count) {
  run_widest([&] {
    for (int64_t i = 0; i < count; ++i) store(to + i, load(from[i]));
  });
}

// weight[e] in the product's type; buffer is used when it has to be converted.
template <typename Scalar, typename Product>
at::Tensor expert_weight(const at::Tensor& weight, int64_t e, const at::Tensor& buffer) {
  const at::Tensor slice = weight.select(0, e);
  if constexpr (!std::is_same_v<Scalar, Product>) {
    const Scalar* from = slice.const_data_ptr<Scalar>();
    Product* to = buffer.mutable_data_ptr<Product>();
    at::parallel_for(0, slice.numel(), 1 << 16,
                     [&](int64_t begin, int64_t end) { convert(from + begin, to + begin, end - begin); });
    return buffer;
  }
  return slice;
}

template <typename Scalar, typename Product>
void gather(const Scalar* x_TD, const int64_t* tokens, int64_t rows, int64_t width, Product* out) {
  for (int64_t n = 0; n < rows; ++n) convert(x_TD + tokens[n] * width, out + n * width, width);
}

// y[token] += factor * row; factor 1 without gates.
template <typename Product, typename Real>
void scatter_add(const Product* rows_ND, const int64_t* tokens, int64_t rows, int64_t width,
                 const Real* gates_TE, int64_t gate_stride, Real* y_TD) {
  run_widest([&] {
    for (int64_t n = 0; n < rows; ++n) {
      const Real factor = gates_TE == nullptr ? Real(1) : gates_TE[tokens[n] * gate_stride];
      const Product* from = rows_ND + n * width;
      Real* to = y_TD + tokens[n] * width;
#pragma omp simd
      for (int64_t d = 0; d < width; ++d) to[d] += factor * load(from[d]);
    }
  });
}

template <typename Real>
[[gnu::always_inline]] inline Real sigmoid(Real x) {
  return 1 / (1 + fast_exp(-x));
}

template <typename Product>
void swiglu(const Product* pre_NG, int64_t rows, int64_t ffn, Product* out_NF) {
  run_widest([&] {
    for (int64_t n = 0; n < rows; ++n) {
      const Product* gate = pre_NG + n * 2 * ffn;
      const Product* up = gate + ffn;
      Product* out = out_NF + n * ffn;
#pragma omp simd
      for (int64_t f = 0; f < ffn; ++f) store(out + f, load(gate[f]) * sigmoid(load(gate[f])) * load(up[f]));
    }
  });
}

// One row of the backward pass through the activation: from da = dy W_down and the gate r to d pre, r * A
// (what the gradient of W_down needs) and the gate's gradient <da, A>, which is returned.
template <typename Scalar, typename Product, typename Real>
[[gnu::always_inline]] inline Real swiglu_backward(const Scalar* pre_G, const Product* da_F, Real r,
                                                   int64_t ffn, Product* d_pre_G, Product* scaled_F) {
  Real grad_gate = 0;
#pragma omp simd reduction(+ : grad_gate)
  for (int64_t f = 0; f < ffn; ++f) {
    const Real gate = load(pre_G[f]), up = load(pre_G[ffn + f]), da = load(da_F[f]);
    const Real sig = sigmoid(gate);
    const Real silu = gate * sig;
    grad_gate += da * silu * up;
    store(scaled_F + f, r * silu * up);
    store(d_pre_G + f, r * da * up * (sig + silu * (1 - sig)));
    store(d_pre_G + ffn + f, r * da * silu);
  }
  return grad_gate;
}

// Rows [begin, begin + rows) of a buffer, and their start as a pointer.
at::Tensor row_block(const at::Tensor& buffer, int64_t begin, int64_t rows) {
  return buffer.narrow(0, begin, rows);
}

template <typename Scalar>
Scalar* row_start(const at::Tensor& buffer, int64_t begin) {
  return buffer.mutable_data_ptr<Scalar>() + begin * buffer.size(1);
}

// y as accumulated; pre_activations_AG is filled when defined.
template <typename Scalar, typename Product>
at::Tensor forward(const at::Tensor& x_TD, const at::Tensor& gates_TE, const Assignment& pairs,
                   const at::Tensor& gate_up_proj, const at::Tensor& down_proj,
                   const at::Tensor& pre_activations_AG) {
  using Real = Accumulator<Scalar>;
  const int64_t hidden = x_TD.size(1), experts = gates_TE.size(1), ffn = down_proj.size(2);
  const auto product = x_TD.options().dtype(c10::CppTypeToScalarType<Product>::value);
  const at::Tensor y_TD =
      at::zeros(x_TD.sizes(), x_TD.options().dtype(c10::CppTypeToScalarType<Real>::value));
  const at::Tensor x_ND = at::empty({pairs.most, hidden}, product), y_ND = at::empty_like(x_ND);
  const at::Tensor pre_NG = at::empty({pairs.most, 2 * ffn}, product);
  const at::Tensor act_NF = at::empty({pairs.most, ffn}, product);
  const at::Tensor gate_up_buffer = at::empty({2 * ffn, hidden}, product);
  const at::Tensor down_buffer = at::empty({hidden, ffn}, product);
  for (int64_t e = 0; e < experts; ++e) {
    if (pairs.count(e) == 0) continue;
    const at::Tensor gate_up_GD = expert_weight<Scalar, Product>(gate_up_proj, e, gate_up_buffer);
    const at::Tensor down_DF = expert_weight<Scalar, Product>(down_proj, e, down_buffer);
    for_row_blocks(pairs.count(e), [&](int64_t begin, int64_t rows) {
      const int64_t first = pairs.offset_E1[e] + begin;
      const int64_t* tokens = pairs.token_A.data() + first;
      gather(x_TD.const_data_ptr<Scalar>(), tokens, rows, hidden, row_start<Product>(x_ND, begin));
      at::Tensor pre = row_block(pre_NG, begin, rows), y = row_block(y_ND, begin, rows);
      at::mm_out(pre, row_block(x_ND, begin, rows), gate_up_GD.t());
      if (pre_activations_AG.defined()) {
        convert(pre.const_data_ptr<Product>(), row_start<Scalar>(pre_activations_AG, first), rows * 2 * ffn);
      }
      swiglu(pre.const_data_ptr<Product>(), rows, ffn, row_start<Product>(act_NF, begin));
      at::mm_out(y, row_block(act_NF, begin, rows), down_DF.t());
      scatter_add(y.const_data_ptr<Product>(), tokens, rows, hidden, gates_TE.const_data_ptr<Real>() + e,
                  experts, y_TD.mutable_data_ptr<Real>());
    });
  }
  return y_TD;
}

// The gradients asked for, as accumulated; the others undefined.
struct Gradients {
  at::Tensor x_TD, gates_TE, gate_up_proj, down_proj;
};

// Buffers for the rows of one expert.
struct BackwardBuffers {
  at::Tensor x_ND, dy_ND, dx_ND, da_NF, scaled_NF, d_pre_NG, gate_up_GD, down_DF;
};

BackwardBuffers backward_buffers(int64_t rows, int64_t hidden, int64_t ffn,
                                 const at::TensorOptions& product) {
  const auto make = [&](int64_t a, int64_t b) { return at::empty({a, b}, product); };
  return {make(rows, hidden), make(rows, hidden),  make(rows, hidden),    make(rows, ffn),
          make(rows, ffn),    make(rows, 2 * ffn), make(2 * ffn, hidden), make(hidden, ffn)};
}

// out[e] = left^T right, its rows shared among the threads.
template <typename Scalar, typename Product>
void weight_gradient(const at::Tensor& left_NM, const at::Tensor& right_NK, const at::Tensor& out_MK) {
  const int64_t rows = left_NM.size(1);
  for_row_blocks(rows, [&](int64_t begin, int64_t count) {
    at::Tensor out = out_MK.narrow(0, begin, count);
    const at::Tensor left = left_NM.narrow(1, begin, count).t();
    if constexpr (std::is_same_v<Scalar, Product>) {
      at::mm_out(out, left, right_NK);
    } else {
      const at::Tensor sum = at::mm(left, right_NK);
      convert(sum.const_data_ptr<Product>(), out.mutable_data_ptr<Scalar>(), sum.numel());
    }
  });
}

struct BackwardInputs {
  at::Tensor grad_y_TD, x_TD, gates_TE, pre_activations_AG;
};

template <typename Scalar, typename Product>
void backward_block(const BackwardInputs& in, const Assignment& pairs, int64_t e, int64_t begin, int64_t rows,
                    const at::Tensor& gate_up_GD, const at::Tensor& down_DF, const BackwardBuffers& buffers,
                    const Gradients& grad) {
  using Real = Accumulator<Scalar>;
  const int64_t hidden = in.x_TD.size(1), experts = in.gates_TE.size(1), ffn = down_DF.size(1);
  const int64_t first = pairs.offset_E1[e] + begin;
  const int64_t* tokens = pairs.token_A.data() + first;
  gather(in.grad_y_TD.const_data_ptr<Scalar>(), tokens, rows, hidden,
         row_start<Product>(buffers.dy_ND, begin));
  at::Tensor da_NF = row_block(buffers.da_NF, begin, rows);
  at::mm_out(da_NF, row_block(buffers.dy_ND, begin, rows), down_DF);
  const Scalar* pre_AG = row_start<Scalar>(in.pre_activations_AG, first);
  const Real* gates = in.gates_TE.const_data_ptr<Real>() + e;
  Real* grad_gates = grad.gates_TE.defined() ? grad.gates_TE.mutable_data_ptr<Real>() + e : nullptr;
  run_widest([&] {
    for (int64_t n = 0; n < rows; ++n) {
      const Real grad_gate = swiglu_backward(
          pre_AG + n * 2 * ffn, da_NF.const_data_ptr<Product>() + n * ffn, gates[tokens[n] * experts], ffn,
          row_start<Product>(buffers.d_pre_NG, begin + n), row_start<Product>(buffers.scaled_NF, begin + n));
      if (grad_gates != nullptr) grad_gates[tokens[n] * experts] = grad_gate;
    }
  });
  if (grad.gate_up_proj.defined()) {
    gather(in.x_TD.const_data_ptr<Scalar>(), tokens, rows, hidden, row_start<Product>(buffers.x_ND, begin));
  }
  if (!grad.x_TD.defined()) return;
  at::Tensor dx_ND = row_block(buffers.dx_ND, begin, rows);
  at::mm_out(dx_ND, row_block(buffers.d_pre_NG, begin, rows), gate_up_GD);
  scatter_add<Product, Real>(dx_ND.const_data_ptr<Product>(), tokens, rows, hidden, nullptr, 0,
                             grad.x_TD.mutable_data_ptr<Real>());
}

template <typename Scalar, typename Product>
void backward(const BackwardInputs& in, const Assignment& pairs, const at::Tensor& gate_up_proj,
              const at::Tensor& down_proj, const Gradients& grad) {
  const int64_t hidden = in.x_TD.size(1), experts = in.gates_TE.size(1), ffn = down_proj.size(2);
  const auto product = in.x_TD.options().dtype(c10::CppTypeToScalarType<Product>::value);
  const BackwardBuffers buffers = backward_buffers(pairs.most, hidden, ffn, product);
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t rows = pairs.count(e);
    if (rows == 0) {
      if (grad.gate_up_proj.defined()) grad.gate_up_proj.select(0, e).zero_();
      if (grad.down_proj.defined()) grad.down_proj.select(0, e).zero_();
      continue;
    }
    const at::Tensor gate_up_GD = expert_weight<Scalar, Product>(gate_up_proj, e, buffers.gate_up_GD);
    const at::Tensor down_DF = expert_weight<Scalar, Product>(down_proj, e, buffers.down_DF);
    for_row_blocks(rows, [&](int64_t begin, int64_t count) {
      backward_block<Scalar, Product>(in, pairs, e, begin, count, gate_up_GD, down_DF, buffers, grad);
    });
    if (grad.gate_up_proj.defined()) {
      weight_gradient<Scalar, Product>(row_block(buffers.d_pre_NG, 0, rows), row_block(buffers.x_ND, 0, rows),
                                       grad.gate_up_proj.select(0, e));
    }
    if (grad.down_proj.defined()) {
      weight_gradient<Scalar, Product>(row_block(buffers.dy_ND, 0, rows),
                                       row_block(buffers.scaled_NF, 0, rows), grad.down_proj.select(0, e));
    }
  }
}

// Calls body with the tensors' type and the product's type as values of those types.
template <typename Body>
void dispatch(const at::Tensor& x_TD, const Body& body) {
  if (x_TD.scalar_type() == at::kDouble) return body(double{}, double{});
  if (x_TD.scalar_type() == at::kFloat) return body(float{}, float{});
  if (product_dtype(x_TD) == at::kFloat) return body(c10::BFloat16{}, float{});
  body(c10::BFloat16{}, c10::BFloat16{});
}

// Threads of the pool have their own autograd state: what they read must not require gradients.
at::Tensor plain(const at::Tensor& tensor) { return tensor.detach().contiguous(); }

std::tuple<at::Tensor, at::Tensor> moe_ffn_forward_cpu(const at::Tensor& x_TD, const at::Tensor& gates_TE,
                                                       const at::Tensor& pairs_A2,
                                                       const at::Tensor& gate_up_proj,
                                                       const at::Tensor& down_proj) {
  check_moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj);
  const at::Tensor pre_AG = at::empty({pairs_A2.size(0), gate_up_proj.size(1)}, x_TD.options());
  const Assignment pairs = assign(pairs_A2, gates_TE.size(1));
  at::Tensor y_TD;
  dispatch(x_TD, [&](auto scalar, auto product) {
    y_TD = forward<decltype(scalar), decltype(product)>(plain(x_TD), plain(gates_TE), pairs,
                                                        plain(gate_up_proj), plain(down_proj), pre_AG);
  });
  return {y_TD.to(x_TD.scalar_type()), pre_AG};
}

at::Tensor moe_ffn_cpu(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                       const at::Tensor& down_proj) {
  check_moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj);
  const Assignment pairs = assign(at::nonzero(gates_TE.detach().t()), gates_TE.size(1));
  at::Tensor y_TD;
  dispatch(x_TD, [&](auto scalar, auto product) {
    y_TD = forward<decltype(scalar), decltype(product)>(plain(x_TD), plain(gates_TE), pairs,
                                                        plain(gate_up_proj), plain(down_proj), at::Tensor());
  });
  return y_TD.to(x_TD.scalar_type());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> moe_ffn_backward_cpu(
    const at::Tensor& grad_y_TD, const at::Tensor& x_TD, const at::Tensor& gates_TE,
    const at::Tensor& gate_up_proj, const at::Tensor& down_proj, const at::Tensor& pre_activations_AG,
    std::array<bool, 4> needed) {
  const auto sums = gates_TE.scalar_type();
  Gradients grad;
  if (needed[0]) grad.x_TD = at::zeros(x_TD.sizes(), x_TD.options().dtype(sums));
  if (needed[1]) grad.gates_TE = at::zeros(gates_TE.sizes(), gates_TE.options());
  if (needed[2]) grad.gate_up_proj = at::empty(gate_up_proj.sizes(), gate_up_proj.options());
  if (needed[3]) grad.down_proj = at::empty(down_proj.sizes(), down_proj.options());
  const Assignment pairs = assign(at::nonzero(gates_TE.detach().t()), gates_TE.size(1));
  const BackwardInputs in{plain(grad_y_TD), plain(x_TD), plain(gates_TE), plain(pre_activations_AG)};
  dispatch(x_TD, [&](auto scalar, auto product) {
    backward<decltype(scalar), decltype(product)>(in, pairs, plain(gate_up_proj), plain(down_proj), grad);
  });
  if (needed[0]) grad.x_TD = grad.x_TD.to(x_TD.scalar_type());
  return {grad.x_TD, grad.gates_TE, grad.gate_up_proj, grad.down_proj};
}

}  // namespace

TORCH_LIBRARY_IMPL(dtopp, CPU, m) {
  m.impl("moe_ffn", moe_ffn_cpu);
  m.impl("moe_ffn_forward", moe_ffn_forward_cpu);
  m.impl("moe_ffn_backward", moe_ffn_backward_cpu);
}

}  // namespace dtopp
