#include "dtopp/ops/moe_ffn/moe_ffn_pairs_cuda.h"

#include <limits>

namespace dtopp::ops::cuda {
namespace {

std::vector<int64_t> read_on_host(const at::Tensor& offsets_E1) {
  const at::Tensor offsets = offsets_E1.to(at::kCPU, at::kLong);
  return {offsets.const_data_ptr<int64_t>(), offsets.const_data_ptr<int64_t>() + offsets.size(0)};
}

// Returns cumulative ends, the format of at::_grouped_mm.
at::Tensor ends_of(const Pairs& pairs) { return pairs.offsets_E1.slice(0, 1); }

template <typename Body>
void for_experts(const Pairs& pairs, const Body& body) {
  for (size_t e = 0; e + 1 < pairs.host_offsets_E1.size(); ++e)
    body(static_cast<int64_t>(e), pairs.host_offsets_E1[e], pairs.host_offsets_E1[e + 1]);
}

template <typename Real>
void fill(const GateTable<Real>& table, const at::Tensor& counts_EB, int64_t capacity, Pairs& pairs,
          Stream stream) {
  fill_pairs<Real>(table, read<int32_t>(counts_EB),
                   {read<int32_t>(pairs.offsets_E1), capacity, write<int32_t>(pairs.token_A),
                    write<Real>(pairs.gate_A), write<int32_t>(pairs.position_TE)},
                   stream);
}

}  // namespace

at::Tensor aligned(const at::Tensor& tensor) {
  const at::Tensor contiguous = tensor.contiguous();
  return begins_aligned(contiguous) ? contiguous : contiguous.clone();
}

Pairs make_pairs(const at::Tensor& gates_TE, int64_t capacity, const GemmChoice& gemms) {
  const int64_t tokens = gates_TE.size(0), experts = gates_TE.size(1);
  check_number_of_experts("moe_ffn", experts);
  TORCH_CHECK(capacity >= 0 && std::max(capacity, tokens * experts) <= kMostPairs,
              "moe_ffn: expected at most 2^31 - 1 tokens times experts and capacity from 0 to that, got ",
              tokens, " tokens, ", experts, " experts and ", capacity);
  const Stream stream = current_stream(gates_TE);
  const auto integer = gates_TE.options().dtype(at::kInt);
  const at::Tensor counts_EB = at::empty({experts, pair_blocks(tokens)}, integer);
  const at::Tensor totals_E = at::empty({experts}, integer);
  Pairs pairs{at::empty({experts + 1}, integer), {}, {}, at::empty({tokens, experts}, integer), gemms, {}};
  const auto with_table = [&](const auto& body) {
    if (gates_TE.scalar_type() == at::kDouble)
      return body(GateTable<double>{read<double>(gates_TE), tokens, experts});
    body(GateTable<float>{read<float>(gates_TE), tokens, experts});
  };
  with_table([&](const auto& table) {
    count_pairs(table, write<int32_t>(counts_EB), write<int32_t>(totals_E), stream);
  });
  offset_pairs(read<int32_t>(totals_E), experts, capacity > 0 ? capacity : kMostPairs,
               write<int32_t>(pairs.offsets_E1), stream);
  const bool on_host = gemms.need_offsets_on_host();
  if (on_host) pairs.host_offsets_E1 = read_on_host(pairs.offsets_E1);
  const int64_t rows = capacity > 0 ? capacity
                       : on_host    ? pairs.host_offsets_E1.back()
                                    : pairs.offsets_E1[experts].item<int>();
  pairs.token_A = at::empty({rows}, integer);
  pairs.gate_A = at::empty({rows}, gates_TE.options());
  with_table([&](const auto& table) { fill(table, counts_EB, rows, pairs, stream); });
  return pairs;
}

at::Tensor gather_pairs(const Pairs& pairs, const at::Tensor& x_TD) {
  const int64_t hidden = x_TD.size(1);
  at::Tensor rows_AD = at::empty({pairs.capacity(), hidden}, x_TD.options());
  dispatch(x_TD, [&](auto scalar) {
    using Scalar = decltype(scalar);
    gather_rows(read<Scalar>(x_TD), read<int32_t>(pairs.token_A), pairs.rows(), hidden,
                write<Scalar>(rows_AD), current_stream(x_TD));
  });
  return rows_AD;
}

at::Tensor multiply_pairs(const Pairs& pairs, const at::Tensor& rows_AK, const at::Tensor& weight_EKN) {
  if (pairs.gemms.grouped) return at::_grouped_mm(rows_AK, weight_EKN, ends_of(pairs));
  at::Tensor out_AN = at::empty({rows_AK.size(0), weight_EKN.size(2)}, rows_AK.options());
  for_experts(pairs, [&](int64_t e, int64_t begin, int64_t end) {
    at::Tensor out = out_AN.slice(0, begin, end);
    at::mm_out(out, rows_AK.slice(0, begin, end), weight_EKN[e]);
  });
  return out_AN;
}

at::Tensor sum_pair_products(const Pairs& pairs, const at::Tensor& left_AM, const at::Tensor& right_AN) {
  const int64_t experts = pairs.offsets_E1.size(0) - 1;
  if (pairs.gemms.grouped) {
    at::Tensor out_EMN = at::_grouped_mm(left_AM.t(), right_AN, ends_of(pairs));
    // at::_grouped_mm does not define its result for experts without pairs.
    clear_unused_experts(read<int32_t>(pairs.offsets_E1), experts, left_AM.size(1) * right_AN.size(1),
                         write<Bfloat16>(out_EMN), current_stream(left_AM));
    return out_EMN;
  }
  at::Tensor out_EMN = at::empty({experts, left_AM.size(1), right_AN.size(1)}, left_AM.options());
  for_experts(pairs, [&](int64_t e, int64_t begin, int64_t end) {
    at::Tensor out = out_EMN[e];
    at::mm_out(out, left_AM.slice(0, begin, end).t(), right_AN.slice(0, begin, end));
  });
  return out_EMN;
}

at::Tensor sum_pairs(const Pairs& pairs, const at::Tensor& rows_AD, const at::Tensor& gates_TE) {
  const int64_t tokens = pairs.position_TE.size(0), experts = pairs.position_TE.size(1),
                hidden = rows_AD.size(1);
  at::Tensor sums_TD = at::empty({tokens, hidden}, rows_AD.options());
  dispatch(rows_AD, [&](auto scalar) {
    using Scalar = decltype(scalar);
    sum_rows<Scalar>(
        {read<Scalar>(rows_AD), read<int32_t>(pairs.position_TE), read_if<Accumulator<Scalar>>(gates_TE),
         tokens, experts, hidden, expert_tree(experts), write<Scalar>(sums_TD)},
        current_stream(rows_AD));
  });
  return sums_TD;
}

}  // namespace dtopp::ops::cuda
