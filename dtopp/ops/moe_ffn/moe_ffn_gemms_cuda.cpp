#include "dtopp/ops/moe_ffn/moe_ffn_gemms_cuda.h"

#include "dtopp/ops/moe_ffn/cuda/fused/fused_gemm.h"

namespace dtopp::ops::cuda {
namespace {

bool is_fused(const Pairs& pairs, ExpertGemm gemm) { return pairs.gemms.is_fused(gemm); }

FusedGemm fused_gemm(const Pairs& pairs, int64_t hidden, int64_t ffn) {
  return {read<int32_t>(pairs.offsets_E1),
          read<int32_t>(pairs.token_A),
          pairs.offsets_E1.size(0) - 1,
          hidden,
          ffn,
          current_stream(pairs.offsets_E1)};
}

at::Tensor empty_rows(const Pairs& pairs, int64_t width, const at::Tensor& like) {
  return at::empty({pairs.capacity(), width}, like.options());
}

const Bfloat16* bf16(const at::Tensor& tensor) { return read<Bfloat16>(tensor); }
Bfloat16* write_bf16(const at::Tensor& tensor) { return write<Bfloat16>(tensor); }

// Returns the gradient of a weight that the kernel called by `launch` writes, in the type of `like`. Returns
// an undefined tensor if the gradient went to a sum.
template <typename Launch>
at::Tensor write_gradient(at::IntArrayRef shape, const at::Tensor& like, const AccumulationTarget& target,
                          const Launch& launch) {
  if (target.sum.defined()) {
    launch(WeightGradient{nullptr, write<float>(target.sum), target.add});
    return {};
  }
  at::Tensor rounded = at::empty(shape, like.options());
  launch(WeightGradient{write_bf16(rounded)});
  return rounded;
}

bool is_aligned(const at::Tensor& tensor) {
  return begins_aligned(tensor) && tensor.size(-1) * tensor.element_size() % kAlignment == 0;
}

}  // namespace

GemmChoice choose_gemms(const at::Tensor& gate_up_EGD, const at::Tensor& down_EDF) {
  constexpr int64_t kMostGroups = 1023;  // limit of at::_grouped_mm
  if (gate_up_EGD.scalar_type() != at::kBFloat16 || !is_aligned(gate_up_EGD) || !is_aligned(down_EDF))
    return {};
  GemmChoice choice{fused_kernels(current_capability()), gate_up_EGD.size(0) <= kMostGroups};
  if (choice.fused.any() && !supports_fused_gemm(down_EDF.size(1), down_EDF.size(2))) choice.fused.reset();
  return choice;
}

ActivatedPairs activate_pairs(const Pairs& pairs, const at::Tensor& x_TD, const at::Tensor& gate_up_EGD) {
  const int64_t ffn = gate_up_EGD.size(1) / 2;
  ActivatedPairs out;
  out.act_AF = empty_rows(pairs, ffn, x_TD);
  if (is_fused(pairs, ExpertGemm::kActivation)) {
    out.pre_AG = empty_rows(pairs, 2 * ffn, x_TD);
    fused_activation(fused_gemm(pairs, x_TD.size(1), ffn),
                     {bf16(x_TD), bf16(gate_up_EGD), write_bf16(out.pre_AG), write_bf16(out.act_AF)});
    return out;
  }
  out.pre_AG = multiply_pairs(pairs, gather_pairs(pairs, x_TD), gate_up_EGD.transpose(1, 2));
  dispatch(x_TD, [&](auto scalar) {
    using Scalar = decltype(scalar);
    swiglu(read<Scalar>(out.pre_AG), pairs.rows(), ffn, write<Scalar>(out.act_AF), current_stream(x_TD));
  });
  return out;
}

at::Tensor project_pairs(const Pairs& pairs, const at::Tensor& act_AF, const at::Tensor& down_EDF) {
  if (!is_fused(pairs, ExpertGemm::kProjection))
    return multiply_pairs(pairs, act_AF, down_EDF.transpose(1, 2));
  at::Tensor out_AD = empty_rows(pairs, down_EDF.size(1), act_AF);
  fused_projection(fused_gemm(pairs, down_EDF.size(1), down_EDF.size(2)), bf16(act_AF), bf16(down_EDF),
                   write_bf16(out_AD));
  return out_AD;
}

ActivationGradient activation_gradient(const Pairs& pairs, const at::Tensor& dy_TD, const at::Tensor& pre_AG,
                                       const at::Tensor& down_EDF) {
  const int64_t ffn = down_EDF.size(2);
  const auto gate_gradients = [&](int64_t parts) {
    return at::empty({pairs.capacity(), parts}, pairs.gate_A.options());
  };
  ActivationGradient out{at::empty_like(pre_AG), empty_rows(pairs, ffn, pre_AG), {}, {}};
  if (is_fused(pairs, ExpertGemm::kActivationGradient)) {
    out.grad_gate_AP = gate_gradients(gate_parts(ffn));
    fused_activation_gradient(
        fused_gemm(pairs, dy_TD.size(1), ffn),
        {bf16(dy_TD), bf16(down_EDF), bf16(pre_AG), read<float>(pairs.gate_A), write_bf16(out.d_pre_AG),
         write_bf16(out.scaled_AF), write<float>(out.grad_gate_AP)});
    return out;
  }
  out.dy_AD = gather_pairs(pairs, dy_TD);
  out.grad_gate_AP = gate_gradients(1);
  const at::Tensor da_AF = multiply_pairs(pairs, out.dy_AD, down_EDF);
  dispatch(pre_AG, [&](auto scalar) {
    using Scalar = decltype(scalar);
    using Real = Accumulator<Scalar>;
    swiglu_backward<Scalar>(
        {read<Scalar>(pre_AG), read<Scalar>(da_AF), read<Real>(pairs.gate_A), ffn,
         write<Scalar>(out.d_pre_AG), write<Scalar>(out.scaled_AF), write<Real>(out.grad_gate_AP)},
        pairs.rows(), current_stream(pre_AG));
  });
  if (is_fused(pairs, ExpertGemm::kDownGradient))
    out.dy_AD.reset();  // the fused kernel gathers these rows itself
  return out;
}

at::Tensor down_gradient(const Pairs& pairs, const at::Tensor& dy_TD, const ActivationGradient& gradient,
                         const AccumulationTarget& target) {
  if (!is_fused(pairs, ExpertGemm::kDownGradient)) {
    const at::Tensor dy_AD = gradient.dy_AD.defined() ? gradient.dy_AD : gather_pairs(pairs, dy_TD);
    return target.take(sum_pair_products(pairs, dy_AD, gradient.scaled_AF));
  }
  const int64_t hidden = dy_TD.size(1), ffn = gradient.scaled_AF.size(1);
  const FusedGemm layer = fused_gemm(pairs, hidden, ffn);
  return write_gradient({layer.experts, hidden, ffn}, dy_TD, target, [&](const WeightGradient& out_EDF) {
    fused_down_gradient(layer, bf16(dy_TD), bf16(gradient.scaled_AF), out_EDF);
  });
}

at::Tensor input_gradient(const Pairs& pairs, const at::Tensor& d_pre_AG, const at::Tensor& gate_up_EGD) {
  if (!is_fused(pairs, ExpertGemm::kInputGradient)) return multiply_pairs(pairs, d_pre_AG, gate_up_EGD);
  const int64_t hidden = gate_up_EGD.size(2);
  at::Tensor dx_AD = empty_rows(pairs, hidden, d_pre_AG);
  fused_input_gradient(fused_gemm(pairs, hidden, gate_up_EGD.size(1) / 2), bf16(d_pre_AG), bf16(gate_up_EGD),
                       write_bf16(dx_AD));
  return dx_AD;
}

at::Tensor gate_up_gradient(const Pairs& pairs, const at::Tensor& d_pre_AG, const at::Tensor& x_TD,
                            const AccumulationTarget& target) {
  if (!is_fused(pairs, ExpertGemm::kGateUpGradient))
    return target.take(sum_pair_products(pairs, d_pre_AG, gather_pairs(pairs, x_TD)));
  const int64_t hidden = x_TD.size(1), gate_up = d_pre_AG.size(1);
  const FusedGemm layer = fused_gemm(pairs, hidden, gate_up / 2);
  return write_gradient({layer.experts, gate_up, hidden}, x_TD, target, [&](const WeightGradient& out_EGD) {
    fused_gate_up_gradient(layer, bf16(d_pre_AG), bf16(x_TD), out_EGD);
  });
}

}  // namespace dtopp::ops::cuda
