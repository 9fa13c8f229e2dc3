#include "dtopp/ops/moe_ffn/moe_ffn_pairs_cuda.h"

#include "dtopp/ops/moe_ffn/cuda/fused/fused_gemm.h"

namespace dtopp::ops::cuda {
namespace {

// Returns cumulative ends, the format of at::_grouped_mm.
Tensor ends_of(const Pairs& pairs) { return pairs.offsets_E1.slice(0, 1); }

template <typename Body>
void for_experts(const Pairs& pairs, const Body& body) {
  for (size_t e = 0; e + 1 < pairs.host_offsets_E1.size(); ++e)
    body(static_cast<int64_t>(e), pairs.host_offsets_E1[e], pairs.host_offsets_E1[e + 1]);
}

// The functions below serve GEMMs without a fused kernel. gather_pairs returns x_TD[token_A]. Rows beyond the
// pairs stay uninitialized, also in the results of the GEMMs.
Tensor gather_pairs(const Pairs& pairs, const Tensor& x_TD) {
  const int64_t hidden = x_TD.size(1);
  Tensor rows_AD = at::empty({pairs.capacity(), hidden}, x_TD.options());
  dispatch(x_TD, [&](auto scalar) {
    using Scalar = decltype(scalar);
    gather_rows(read<Scalar>(x_TD), read<int32_t>(pairs.token_A), pairs.rows(), hidden,
                write<Scalar>(rows_AD), current_stream(x_TD));
  });
  return rows_AD;
}

// Returns rows_AK[a] weight_EKN[e] for the pairs a of each expert e: [A, N].
Tensor multiply_pairs(const Pairs& pairs, const Tensor& rows_AK, const Tensor& weight_EKN) {
  if (pairs.gemms.grouped) return at::_grouped_mm(rows_AK, weight_EKN, ends_of(pairs));
  Tensor out_AN = at::empty({rows_AK.size(0), weight_EKN.size(2)}, rows_AK.options());
  for_experts(pairs, [&](int64_t e, int64_t begin, int64_t end) {
    Tensor out = out_AN.slice(0, begin, end);
    at::mm_out(out, rows_AK.slice(0, begin, end), weight_EKN[e]);
  });
  return out_AN;
}

// Returns the sum over each expert's pairs a of left_AM[a]^T right_AN[a], formed in fp32 and rounded once:
// [E, M, N].
Tensor sum_pair_products(const Pairs& pairs, const Tensor& left_AM, const Tensor& right_AN) {
  const int64_t experts = pairs.offsets_E1.size(0) - 1;
  if (pairs.gemms.grouped) {
    Tensor out_EMN = at::_grouped_mm(left_AM.t(), right_AN, ends_of(pairs));
    // at::_grouped_mm does not define its result for experts without pairs.
    clear_unused_experts(read<int32_t>(pairs.offsets_E1), experts, left_AM.size(1) * right_AN.size(1),
                         write<Bfloat16>(out_EMN), current_stream(left_AM));
    return out_EMN;
  }
  Tensor out_EMN = at::empty({experts, left_AM.size(1), right_AN.size(1)}, left_AM.options());
  for_experts(pairs, [&](int64_t e, int64_t begin, int64_t end) {
    Tensor out = out_EMN[e];
    at::mm_out(out, left_AM.slice(0, begin, end).t(), right_AN.slice(0, begin, end));
  });
  return out_EMN;
}

FusedGemm fused_gemm(const Pairs& pairs, int64_t hidden, int64_t ffn) {
  return {read<int32_t>(pairs.offsets_E1),
          read<int32_t>(pairs.token_A),
          pairs.offsets_E1.size(0) - 1,
          hidden,
          ffn,
          current_stream(pairs.offsets_E1)};
}

Tensor empty_rows(const Pairs& pairs, int64_t width, const Tensor& like) {
  return at::empty({pairs.capacity(), width}, like.options());
}

const Bfloat16* bf16(const Tensor& tensor) { return read<Bfloat16>(tensor); }
Bfloat16* write_bf16(const Tensor& tensor) { return write<Bfloat16>(tensor); }

// Returns the gradient of a weight that the kernel called by `launch` writes, in the type of `like`. Returns
// an undefined tensor if the gradient went to a sum.
template <typename Launch>
Tensor write_gradient(at::IntArrayRef shape, const Tensor& like, const AccumulationTarget& target,
                      const Launch& launch) {
  if (target.sum.defined()) {
    launch(WeightGradient{nullptr, write<float>(target.sum), target.add});
    return {};
  }
  Tensor rounded = at::empty(shape, like.options());
  launch(WeightGradient{write_bf16(rounded)});
  return rounded;
}

bool is_aligned(const Tensor& tensor) {
  return begins_aligned(tensor) && tensor.size(-1) * tensor.element_size() % kAlignment == 0;
}

}  // namespace

Tensor aligned(const Tensor& tensor) {
  const Tensor contiguous = tensor.contiguous();
  return begins_aligned(contiguous) ? contiguous : contiguous.clone();
}

Pairs make_pairs(const Tensor& gates_TE, int64_t capacity, const GemmChoice& gemms) {
  const int64_t tokens = gates_TE.size(0), experts = gates_TE.size(1);
  check_number_of_experts("moe_ffn", experts);
  TORCH_CHECK(capacity >= 0 && std::max(capacity, tokens * experts) <= kMostPairs,
              "moe_ffn: expected at most 2^31 - 1 tokens times experts and capacity from 0 to that, got ",
              tokens, " tokens, ", experts, " experts and ", capacity);
  const Stream stream = current_stream(gates_TE);
  const auto integer = gates_TE.options().dtype(at::kInt);
  const Tensor counts_EB = at::empty({experts, pair_blocks(tokens)}, integer);
  const Tensor totals_E = at::empty({experts}, integer);
  Pairs pairs{at::empty({experts + 1}, integer), {}, {}, at::empty({tokens, experts}, integer), gemms, {}};
  dispatch_real(gates_TE, [&](auto real) {
    using Real = decltype(real);
    const GateTable<Real> table{read<Real>(gates_TE), tokens, experts};
    count_pairs(table, write<int32_t>(counts_EB), write<int32_t>(totals_E), stream);
    offset_pairs(read<int32_t>(totals_E), experts, capacity > 0 ? capacity : kMostPairs,
                 write<int32_t>(pairs.offsets_E1), stream);
    if (gemms.need_offsets_on_host()) {
      const Tensor offsets = pairs.offsets_E1.to(at::kCPU, at::kLong);
      pairs.host_offsets_E1.assign(offsets.const_data_ptr<int64_t>(),
                                   offsets.const_data_ptr<int64_t>() + offsets.numel());
    }
    const int64_t rows = capacity > 0                   ? capacity
                         : gemms.need_offsets_on_host() ? pairs.host_offsets_E1.back()
                                                        : pairs.offsets_E1[experts].template item<int>();
    pairs.token_A = at::empty({rows}, integer);
    pairs.gate_A = at::empty({rows}, gates_TE.options());
    fill_pairs<Real>(table, read<int32_t>(counts_EB),
                     {read<int32_t>(pairs.offsets_E1), rows, write<int32_t>(pairs.token_A),
                      write<Real>(pairs.gate_A), write<int32_t>(pairs.position_TE)},
                     stream);
  });
  return pairs;
}

Tensor sum_pairs(const Pairs& pairs, const Tensor& rows_AD, const Tensor& gates_TE) {
  const int64_t tokens = pairs.position_TE.size(0), experts = pairs.position_TE.size(1),
                hidden = rows_AD.size(1);
  Tensor sums_TD = at::empty({tokens, hidden}, rows_AD.options());
  dispatch(rows_AD, [&](auto scalar) {
    using Scalar = decltype(scalar);
    sum_rows<Scalar>(
        {read<Scalar>(rows_AD), read<int32_t>(pairs.position_TE), read_if<Accumulator<Scalar>>(gates_TE),
         tokens, experts, hidden, expert_tree(experts), write<Scalar>(sums_TD)},
        current_stream(rows_AD));
  });
  return sums_TD;
}

GemmChoice choose_gemms(const Tensor& gate_up_EGD, const Tensor& down_EDF) {
  constexpr int64_t kMostGroups = 1023;  // limit of at::_grouped_mm
  if (gate_up_EGD.scalar_type() != at::kBFloat16 || !is_aligned(gate_up_EGD) || !is_aligned(down_EDF))
    return {};
  GemmChoice choice{fused_kernels(current_capability()), gate_up_EGD.size(0) <= kMostGroups};
  if (choice.fused.any() && !supports_fused_gemm(down_EDF.size(1), down_EDF.size(2))) choice.fused.reset();
  return choice;
}

ActivatedPairs activate_pairs(const Pairs& pairs, const Tensor& x_TD, const Tensor& gate_up_EGD) {
  const int64_t ffn = gate_up_EGD.size(1) / 2;
  ActivatedPairs out;
  out.act_AF = empty_rows(pairs, ffn, x_TD);
  if (pairs.gemms.is_fused(ExpertGemm::kActivation)) {
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

Tensor project_pairs(const Pairs& pairs, const Tensor& act_AF, const Tensor& down_EDF) {
  if (!pairs.gemms.is_fused(ExpertGemm::kProjection))
    return multiply_pairs(pairs, act_AF, down_EDF.transpose(1, 2));
  Tensor out_AD = empty_rows(pairs, down_EDF.size(1), act_AF);
  fused_projection(fused_gemm(pairs, down_EDF.size(1), down_EDF.size(2)), bf16(act_AF), bf16(down_EDF),
                   write_bf16(out_AD));
  return out_AD;
}

ActivationGradient activation_gradient(const Pairs& pairs, const Tensor& dy_TD, const Tensor& pre_AG,
                                       const Tensor& down_EDF) {
  const int64_t ffn = down_EDF.size(2);
  const auto gate_gradients = [&](int64_t parts) {
    return at::empty({pairs.capacity(), parts}, pairs.gate_A.options());
  };
  ActivationGradient out{at::empty_like(pre_AG), empty_rows(pairs, ffn, pre_AG), {}, {}};
  if (pairs.gemms.is_fused(ExpertGemm::kActivationGradient)) {
    out.grad_gate_AP = gate_gradients(gate_parts(ffn));
    fused_activation_gradient(
        fused_gemm(pairs, dy_TD.size(1), ffn),
        {bf16(dy_TD), bf16(down_EDF), bf16(pre_AG), read<float>(pairs.gate_A), write_bf16(out.d_pre_AG),
         write_bf16(out.scaled_AF), write<float>(out.grad_gate_AP)});
    return out;
  }
  out.dy_AD = gather_pairs(pairs, dy_TD);
  out.grad_gate_AP = gate_gradients(1);
  const Tensor da_AF = multiply_pairs(pairs, out.dy_AD, down_EDF);
  dispatch(pre_AG, [&](auto scalar) {
    using Scalar = decltype(scalar);
    using Real = Accumulator<Scalar>;
    swiglu_backward<Scalar>(
        {read<Scalar>(pre_AG), read<Scalar>(da_AF), read<Real>(pairs.gate_A), ffn,
         write<Scalar>(out.d_pre_AG), write<Scalar>(out.scaled_AF), write<Real>(out.grad_gate_AP)},
        pairs.rows(), current_stream(pre_AG));
  });
  if (pairs.gemms.is_fused(ExpertGemm::kDownGradient))
    out.dy_AD.reset();  // the fused kernel gathers these rows itself
  return out;
}

Tensor down_gradient(const Pairs& pairs, const Tensor& dy_TD, const ActivationGradient& gradient,
                     const AccumulationTarget& target) {
  if (!pairs.gemms.is_fused(ExpertGemm::kDownGradient)) {
    const Tensor dy_AD = gradient.dy_AD.defined() ? gradient.dy_AD : gather_pairs(pairs, dy_TD);
    return target.take(sum_pair_products(pairs, dy_AD, gradient.scaled_AF));
  }
  const int64_t hidden = dy_TD.size(1), ffn = gradient.scaled_AF.size(1);
  const FusedGemm layer = fused_gemm(pairs, hidden, ffn);
  return write_gradient({layer.experts, hidden, ffn}, dy_TD, target, [&](const WeightGradient& out_EDF) {
    fused_down_gradient(layer, bf16(dy_TD), bf16(gradient.scaled_AF), out_EDF);
  });
}

Tensor input_gradient(const Pairs& pairs, const Tensor& d_pre_AG, const Tensor& gate_up_EGD) {
  if (!pairs.gemms.is_fused(ExpertGemm::kInputGradient)) return multiply_pairs(pairs, d_pre_AG, gate_up_EGD);
  const int64_t hidden = gate_up_EGD.size(2);
  Tensor dx_AD = empty_rows(pairs, hidden, d_pre_AG);
  fused_input_gradient(fused_gemm(pairs, hidden, gate_up_EGD.size(1) / 2), bf16(d_pre_AG), bf16(gate_up_EGD),
                       write_bf16(dx_AD));
  return dx_AD;
}

Tensor gate_up_gradient(const Pairs& pairs, const Tensor& d_pre_AG, const Tensor& x_TD,
                        const AccumulationTarget& target) {
  if (!pairs.gemms.is_fused(ExpertGemm::kGateUpGradient))
    return target.take(sum_pair_products(pairs, d_pre_AG, gather_pairs(pairs, x_TD)));
  const int64_t hidden = x_TD.size(1), gate_up = d_pre_AG.size(1);
  const FusedGemm layer = fused_gemm(pairs, hidden, gate_up / 2);
  return write_gradient({layer.experts, gate_up, hidden}, x_TD, target, [&](const WeightGradient& out_EGD) {
    fused_gate_up_gradient(layer, bf16(d_pre_AG), bf16(x_TD), out_EGD);
  });
}

}  // namespace dtopp::ops::cuda
