#include "dtopp/ops/norm/norm.h"

#include <ATen/record_function.h>

#include "dtopp/ops/core/call_op.h"
#include "dtopp/ops/gemm/cpu_kernel.h"
#include "dtopp/ops/norm/norm_row_cpu.h"

namespace dtopp::ops {
namespace {

// Rows whose gradients are summed together. The bits of a sum do not depend on the number of threads, because
// this does not.
constexpr int64_t kChunk = 64;

// Samples of S rows with D numbers each. The rows of a sample share their scale, shift or gate.
struct RowSizes {
  int64_t B, S, D;

  // per_sample [B, 1, D], or [D] for one sample
  RowSizes(const Tensor& x, const Tensor& per_sample)
      : B(per_sample.dim() == 1 ? 1 : per_sample.size(0)),
        S(per_sample.numel() == 0 ? 0 : x.numel() / per_sample.numel()),
        D(x.size(-1)) {}

  int64_t chunks() const { return (S + kChunk - 1) / kChunk; }  // per sample
};

// The memory of one row.
struct RowPlace {
  int64_t row, sample;  // offsets of the row and of the sample's shift, scale or gate
  int64_t chunk;
};

// Calls body(place, buffer) for each row. The buffer holds `buffers` rows.
template <typename Body>
void for_rows(const RowSizes& s, int64_t buffers, const Body& body) {
  at::parallel_for(0, s.B * s.chunks(), 1, [&](int64_t begin, int64_t end) {
    std::vector<float> buffer(buffers * s.D);
    run_widest([&] {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        const int64_t sample = chunk / s.chunks(), first = chunk % s.chunks() * kChunk;
        for (int64_t i = first; i < std::min(first + kChunk, s.S); ++i)
          body(RowPlace{(sample * s.S + i) * s.D, sample * s.D, chunk}, buffer.data());
      }
    });
  });
}

// The gradient of a scale, shift or gate, as one sum in fp32 per chunk of rows.
struct ChunkSums {
  Tensor sums_BCD;

  explicit ChunkSums(const RowSizes& s) : sums_BCD(at::zeros({s.B, s.chunks(), s.D}, at::kFloat)) {}

  float* of(int64_t chunk) const { return sums_BCD.mutable_data_ptr<float>() + chunk * sums_BCD.size(2); }
  Tensor total(const Tensor& like) const {
    return sums_BCD.sum({1}).view(like.sizes()).to(like.scalar_type());
  }
};

bool has_norm_kernel(const Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

// y = n * scale, or with a shift n * (1 + scale) + shift, of the normalized row n.
struct NormFunction : torch::autograd::Function<NormFunction> {
  // Returns y and x.
  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& scale,
                               const std::optional<Tensor>& shift, double eps, bool centered) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Tensor dense_x = x.contiguous(), scales = scale.contiguous();
    const Tensor shifts = shift ? shift->contiguous() : Tensor();
    context->save_for_backward({dense_x, scales});
    context->saved_data["eps"] = eps;
    context->saved_data["centered"] = centered;
    context->saved_data["shifted"] = shift.has_value();
    context->set_materialize_grads(false);
    const RowSizes s(dense_x, scales);
    Tensor y = at::empty(x.sizes(), x.options());
    dispatch_scalar(x, [&](auto scalar) {
      using Scalar = decltype(scalar);
      const auto *x = dense_x.const_data_ptr<Scalar>(), *scale = scales.const_data_ptr<Scalar>(),
                 *shift = shifts.defined() ? shifts.const_data_ptr<Scalar>() : nullptr;
      auto* to = y.mutable_data_ptr<Scalar>();
      for_rows(s, 1, [&](const RowPlace& place, float* normal) {
        const float inverse = center(x + place.row, s.D, static_cast<float>(eps), centered, normal);
        const Scalar* scale_D = scale + place.sample;
        Scalar* y_D = to + place.row;
        if (shift == nullptr) {
#pragma omp simd
          for (int64_t d = 0; d < s.D; ++d) store(y_D + d, normal[d] * inverse * load(scale_D[d]));
          return;
        }
        const Scalar* shift_D = shift + place.sample;
#pragma omp simd
        for (int64_t d = 0; d < s.D; ++d)
          store(y_D + d, normal[d] * inverse * (1 + load(scale_D[d])) + load(shift_D[d]));
      });
    });
    return {y, x};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    if (!grads[0].defined()) return {grads[1], {}, {}, {}, {}};
    RECORD_FUNCTION("dtopp::norm_backward",
                    (std::array<c10::IValue, 4>{grads[0], grads[1], saved[0], saved[1]}));
    const Tensor grad_y = grads[0].contiguous();
    const Tensor residual = grads[1].defined() ? grads[1].contiguous() : grads[1];
    const RowSizes s(grad_y, saved[1]);
    const ChunkSums grad_scale(s);
    std::optional<ChunkSums> grad_shift;
    if (context->saved_data["shifted"].toBool()) grad_shift.emplace(s);
    Tensor grad_x = at::empty(saved[0].sizes(), saved[0].options());
    const auto eps = static_cast<float>(context->saved_data["eps"].toDouble());
    const bool centered = context->saved_data["centered"].toBool();
    const float offset = grad_shift ? 1 : 0;
    dispatch_scalar(grad_y, [&](auto scalar) {
      using Scalar = decltype(scalar);
      const auto *grads = grad_y.const_data_ptr<Scalar>(), *x = saved[0].const_data_ptr<Scalar>(),
                 *scale = saved[1].const_data_ptr<Scalar>(),
                 *more = residual.defined() ? residual.const_data_ptr<Scalar>() : nullptr;
      auto* to = grad_x.mutable_data_ptr<Scalar>();
      for_rows(s, 2, [&](const RowPlace& place, float* normal) {
        float *row = normal + s.D, *scale_sum = grad_scale.of(place.chunk);
        const float inverse = center(x + place.row, s.D, eps, centered, normal);
        const Scalar *grad_D = grads + place.row, *scale_D = scale + place.sample;
#pragma omp simd
        for (int64_t d = 0; d < s.D; ++d) {
          const float grad = load(grad_D[d]);
          normal[d] *= inverse;
          scale_sum[d] += grad * normal[d];
          row[d] = grad * (offset + load(scale_D[d]));
        }
        if (grad_shift) {
          float* shift_sum = grad_shift->of(place.chunk);
#pragma omp simd
          for (int64_t d = 0; d < s.D; ++d) shift_sum[d] += load(grad_D[d]);
        }
        store_norm_gradient(normal, row, s.D, inverse, centered, more == nullptr ? nullptr : more + place.row,
                            to + place.row);
      });
    });
    variable_list all = {grad_x, grad_scale.total(saved[1])};
    if (grad_shift) all.push_back(grad_shift->total(saved[1]));
    RECORD_OUTPUTS(all);
    all.resize(5);  // one per argument of forward()
    return all;
  }
};

struct AddGated : torch::autograd::Function<AddGated> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& gate, const Tensor& branch) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Tensor gate_B1D = gate.contiguous(), branch_BSD = branch.contiguous();
    context->save_for_backward({gate_B1D, branch_BSD});
    return at::addcmul(x, gate_B1D, branch_BSD);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    RECORD_FUNCTION("dtopp::add_gated_backward", (std::array<c10::IValue, 3>{grads[0], saved[0], saved[1]}));
    const Tensor grad_y_BSD = grads[0].contiguous();
    const RowSizes s(grad_y_BSD, saved[0]);
    const ChunkSums grad_gate(s);
    Tensor grad_branch_BSD = at::empty(grad_y_BSD.sizes(), grad_y_BSD.options());
    dispatch_scalar(grad_y_BSD, [&](auto scalar) {
      using Scalar = decltype(scalar);
      const auto *grad_y = grad_y_BSD.const_data_ptr<Scalar>(), *gate = saved[0].const_data_ptr<Scalar>(),
                 *branch = saved[1].const_data_ptr<Scalar>();
      auto* grad_branch = grad_branch_BSD.mutable_data_ptr<Scalar>();
      for_rows(s, 0, [&](const RowPlace& place, float* /*buffer*/) {
        float* sum = grad_gate.of(place.chunk);
        const Scalar *grad_D = grad_y + place.row, *gate_D = gate + place.sample,
                     *branch_D = branch + place.row;
        Scalar* out_D = grad_branch + place.row;
#pragma omp simd
        for (int64_t d = 0; d < s.D; ++d) {
          const float grad = load(grad_D[d]);
          sum[d] += grad * load(branch_D[d]);
          store(out_D + d, grad * load(gate_D[d]));
        }
      });
    });
    variable_list all = {grads[0], grad_gate.total(saved[0]), grad_branch_BSD};
    RECORD_OUTPUTS(all);
    return all;
  }
};

void check_modulation(const char* op, const Tensor& x_BSD, const Tensor& a_B1D, const Tensor& b, bool whole) {
  TORCH_CHECK(x_BSD.dim() == 3, op, ": expected x [B, S, D], got ", x_BSD.sizes());
  const Expected like_x{x_BSD.scalar_type(), x_BSD.device()};
  const int64_t B = x_BSD.size(0), S = x_BSD.size(1), D = x_BSD.size(2);
  check_tensor(op, whole ? "gate" : "shift", a_B1D, like_x, {B, 1, D});
  check_tensor(op, whole ? "branch" : "scale", b, like_x, {B, whole ? S : 1, D});
}

Normed run_kernel(const Tensor& x, const Tensor& scale, const std::optional<Tensor>& shift, double eps,
                  bool centered) {
  RECORD_FUNCTION("dtopp::norm", (std::array<c10::IValue, 5>{x, scale, shift, eps, centered}));
  const variable_list outputs = NormFunction::apply(x, scale, shift, eps, centered);
  RECORD_OUTPUTS(at::TensorList(outputs[0]));
  return {outputs[0], outputs[1]};
}

}  // namespace

Normed norm(const Tensor& x, const Tensor& gain_D, double eps, bool centered) {
  TORCH_CHECK(x.dim() >= 1, "norm: expected x [..., D], got a number");
  check_tensor("norm", "gain", gain_D, {x.scalar_type(), x.device()}, {x.size(-1)});
  if (has_norm_kernel(x)) return run_kernel(x, gain_D, std::nullopt, eps, centered);
  return {centered ? at::layer_norm(x, gain_D.sizes(), gain_D, {}, eps)
                   : at::rms_norm(x, gain_D.sizes(), gain_D, eps),
          x};
}

Normed modulated_norm(const Tensor& x_BSD, const Tensor& shift_B1D, const Tensor& scale_B1D, double eps) {
  check_modulation("modulated_norm", x_BSD, shift_B1D, scale_B1D, false);
  if (has_norm_kernel(x_BSD)) return run_kernel(x_BSD, scale_B1D, shift_B1D, eps, true);
  const Tensor normed_BSD = at::layer_norm(x_BSD, {x_BSD.size(2)}, {}, {}, eps);
  return {at::addcmul(shift_B1D, normed_BSD, scale_B1D + 1), x_BSD};
}

Tensor add_gated(const Tensor& x_BSD, const Tensor& gate_B1D, const Tensor& branch_BSD) {
  check_modulation("add_gated", x_BSD, gate_B1D, branch_BSD, true);
  if (has_norm_kernel(x_BSD)) return AddGated::apply(x_BSD, gate_B1D, branch_BSD);
  return at::addcmul(x_BSD, gate_B1D, branch_BSD);
}

}  // namespace dtopp::ops
