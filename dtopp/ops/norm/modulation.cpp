#include "dtopp/ops/norm/modulation.h"

#include <vector>

#include <ATen/record_function.h>

#include "dtopp/ops/core/check_tensor.h"
#include "dtopp/ops/gemm/cpu_kernel.h"
#include "dtopp/ops/norm/norm_row_cpu.h"

namespace dtopp::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows whose gradients are summed together. The bits of a sum do not depend on the number of threads, because
// this does not.
constexpr int64_t kChunk = 64;

struct ModulationSizes {
  int64_t B, S, D;

  explicit ModulationSizes(const at::Tensor& x_BSD) : B(x_BSD.size(0)), S(x_BSD.size(1)), D(x_BSD.size(2)) {}

  int64_t chunks() const { return (S + kChunk - 1) / kChunk; }  // per sample
};

// The memory of one row.
struct RowPlace {
  int64_t row, sample;  // offsets of the row and of the sample's shift, scale or gate
  int64_t chunk;
};

// Calls body(place, buffer) for each row. The buffer holds `buffers` rows.
template <typename Body>
void for_rows(const ModulationSizes& s, int64_t buffers, const Body& body) {
  at::parallel_for(0, s.B * s.chunks(), 1, [&](int64_t begin, int64_t end) {
    std::vector<float> buffer(static_cast<size_t>(buffers * s.D));
    run_widest([&] {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        const int64_t sample = chunk / s.chunks(), first = chunk % s.chunks() * kChunk;
        for (int64_t i = first; i < std::min(first + kChunk, s.S); ++i)
          body(RowPlace{(sample * s.S + i) * s.D, sample * s.D, chunk}, buffer.data());
      }
    });
  });
}

// A gradient [B, 1, D], as one sum in fp32 per chunk of rows.
struct ChunkSums {
  at::Tensor sums_BCD;

  explicit ChunkSums(const ModulationSizes& s) : sums_BCD(at::zeros({s.B, s.chunks(), s.D}, at::kFloat)) {}

  float* of(int64_t chunk) const { return sums_BCD.mutable_data_ptr<float>() + chunk * sums_BCD.size(2); }
  at::Tensor total(at::ScalarType type) const { return sums_BCD.sum({1}, true).to(type); }
};

bool has_modulation_kernel(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

struct ModulatedNorm : torch::autograd::Function<ModulatedNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& shift,
                            const at::Tensor& scale, double eps) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const at::Tensor x_BSD = x.contiguous(), shift_B1D = shift.contiguous(), scale_B1D = scale.contiguous();
    context->save_for_backward({x_BSD, scale_B1D});
    context->saved_data["eps"] = eps;
    at::Tensor y_BSD = at::empty(x.sizes(), x.options());
    dispatch_scalar(x, [&](auto scalar) {
      forward_rows<decltype(scalar)>(x_BSD, shift_B1D, scale_B1D, static_cast<float>(eps), y_BSD);
    });
    return y_BSD;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    RECORD_FUNCTION("dtopp::modulated_norm_backward",
                    (std::array<c10::IValue, 3>{grads[0], saved[0], saved[1]}));
    const at::Tensor grad_y_BSD = grads[0].contiguous();
    const ModulationSizes s(grad_y_BSD);
    const ChunkSums grad_shift(s), grad_scale(s);
    at::Tensor grad_x_BSD = at::empty(saved[0].sizes(), saved[0].options());
    dispatch_scalar(grad_y_BSD, [&](auto scalar) {
      backward_rows<decltype(scalar)>(grad_y_BSD, saved[0], saved[1],
                                      static_cast<float>(context->saved_data["eps"].toDouble()), grad_x_BSD,
                                      grad_shift, grad_scale);
    });
    const at::ScalarType type = grad_x_BSD.scalar_type();
    variable_list all = {grad_x_BSD, grad_shift.total(type), grad_scale.total(type)};
    RECORD_OUTPUTS(all);
    all.emplace_back();  // of eps
    return all;
  }

 private:
  template <typename Scalar>
  static void forward_rows(const at::Tensor& x_BSD, const at::Tensor& shift_B1D, const at::Tensor& scale_B1D,
                           float eps, const at::Tensor& y_BSD) {
    const ModulationSizes s(x_BSD);
    const auto *x = x_BSD.const_data_ptr<Scalar>(), *shift = shift_B1D.const_data_ptr<Scalar>(),
               *scale = scale_B1D.const_data_ptr<Scalar>();
    auto* y = y_BSD.mutable_data_ptr<Scalar>();
    for_rows(s, 1, [&](const RowPlace& place, float* normal) {
      const float inverse = centre(x + place.row, s.D, eps, true, normal);
      const Scalar *shift_D = shift + place.sample, *scale_D = scale + place.sample;
      Scalar* y_D = y + place.row;
#pragma omp simd
      for (int64_t d = 0; d < s.D; ++d)
        store(y_D + d, normal[d] * inverse * (1 + load(scale_D[d])) + load(shift_D[d]));
    });
  }

  template <typename Scalar>
  static void backward_rows(const at::Tensor& grad_y_BSD, const at::Tensor& x_BSD,
                            const at::Tensor& scale_B1D, float eps, const at::Tensor& grad_x_BSD,
                            const ChunkSums& grad_shift, const ChunkSums& grad_scale) {
    const ModulationSizes s(x_BSD);
    const auto *grad_y = grad_y_BSD.const_data_ptr<Scalar>(), *x = x_BSD.const_data_ptr<Scalar>(),
               *scale = scale_B1D.const_data_ptr<Scalar>();
    auto* grad_x = grad_x_BSD.mutable_data_ptr<Scalar>();
    for_rows(s, 2, [&](const RowPlace& place, float* normal) {
      float *row = normal + s.D, *shift_sum = grad_shift.of(place.chunk),
            *scale_sum = grad_scale.of(place.chunk);
      const float inverse = centre(x + place.row, s.D, eps, true, normal);
      const Scalar *grad_D = grad_y + place.row, *scale_D = scale + place.sample;
#pragma omp simd
      for (int64_t d = 0; d < s.D; ++d) {
        const float grad = load(grad_D[d]);
        normal[d] *= inverse;
        shift_sum[d] += grad;
        scale_sum[d] += grad * normal[d];
        row[d] = grad * (1 + load(scale_D[d]));
      }
      store_norm_gradient(normal, row, s.D, inverse, true, grad_x + place.row);
    });
  }
};

struct AddGated : torch::autograd::Function<AddGated> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& gate,
                            const at::Tensor& branch) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const at::Tensor gate_B1D = gate.contiguous(), branch_BSD = branch.contiguous();
    context->save_for_backward({gate_B1D, branch_BSD});
    return at::addcmul(x, gate_B1D, branch_BSD);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    RECORD_FUNCTION("dtopp::add_gated_backward", (std::array<c10::IValue, 3>{grads[0], saved[0], saved[1]}));
    const at::Tensor grad_y_BSD = grads[0].contiguous();
    const ChunkSums grad_gate{ModulationSizes(grad_y_BSD)};
    at::Tensor grad_branch_BSD = at::empty(grad_y_BSD.sizes(), grad_y_BSD.options());
    dispatch_scalar(grad_y_BSD, [&](auto scalar) {
      backward_rows<decltype(scalar)>(grad_y_BSD, saved[0], saved[1], grad_branch_BSD, grad_gate);
    });
    variable_list all = {grads[0], grad_gate.total(grad_branch_BSD.scalar_type()), grad_branch_BSD};
    RECORD_OUTPUTS(all);
    return all;
  }

 private:
  template <typename Scalar>
  static void backward_rows(const at::Tensor& grad_y_BSD, const at::Tensor& gate_B1D,
                            const at::Tensor& branch_BSD, const at::Tensor& grad_branch_BSD,
                            const ChunkSums& grad_gate) {
    const ModulationSizes s(grad_y_BSD);
    const auto *grad_y = grad_y_BSD.const_data_ptr<Scalar>(), *gate = gate_B1D.const_data_ptr<Scalar>(),
               *branch = branch_BSD.const_data_ptr<Scalar>();
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
  }
};

void check_modulation(const char* op, const at::Tensor& x_BSD, const at::Tensor& a_B1D, const at::Tensor& b,
                      bool whole) {
  TORCH_CHECK(x_BSD.dim() == 3, op, ": expected x [B, S, D], got ", x_BSD.sizes());
  const Expected like_x{x_BSD.scalar_type(), x_BSD.device()};
  const int64_t B = x_BSD.size(0), S = x_BSD.size(1), D = x_BSD.size(2);
  check_tensor(op, whole ? "gate" : "shift", a_B1D, like_x, {B, 1, D});
  check_tensor(op, whole ? "branch" : "scale", b, like_x, {B, whole ? S : 1, D});
}

}  // namespace

at::Tensor modulated_norm(const at::Tensor& x_BSD, const at::Tensor& shift_B1D, const at::Tensor& scale_B1D,
                          double eps) {
  check_modulation("modulated_norm", x_BSD, shift_B1D, scale_B1D, false);
  if (has_modulation_kernel(x_BSD)) {
    RECORD_FUNCTION("dtopp::modulated_norm", (std::array<c10::IValue, 4>{x_BSD, shift_B1D, scale_B1D, eps}));
    at::Tensor y_BSD = ModulatedNorm::apply(x_BSD, shift_B1D, scale_B1D, eps);
    RECORD_OUTPUTS(at::TensorList(y_BSD));
    return y_BSD;
  }
  const at::Tensor normed_BSD = at::layer_norm(x_BSD, {x_BSD.size(2)}, {}, {}, eps);
  return at::addcmul(shift_B1D, normed_BSD, scale_B1D + 1);
}

at::Tensor add_gated(const at::Tensor& x_BSD, const at::Tensor& gate_B1D, const at::Tensor& branch_BSD) {
  check_modulation("add_gated", x_BSD, gate_B1D, branch_BSD, true);
  if (has_modulation_kernel(x_BSD)) return AddGated::apply(x_BSD, gate_B1D, branch_BSD);
  return at::addcmul(x_BSD, gate_B1D, branch_BSD);
}

}  // namespace dtopp::ops
