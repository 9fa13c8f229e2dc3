// Threads share the columns of the weights, as for few rows in moe_ffn_cpu.h: first those of the hidden
// layers of all experts, then those of the result. A token's experts are added in ascending order.
#include "dtopp/ops/moe_ffn/moe_ffn_by_row.h"

#include <array>

#include "dtopp/ops/core/bfloat16_loops.h"
#include "dtopp/ops/gemm/dot_products.h"
#include "dtopp/ops/moe_ffn/moe_ffn.h"
#include "dtopp/ops/moe_ffn/moe_ffn_cpu.h"

namespace dtopp::ops {
namespace {

using Number = c10::BFloat16;

constexpr int64_t kDotRows = DotProducts::kMostRows, kHalfPanel = kPanelColumns / 2;
// Rows of an expert for which the products take as long as reading the weights.
constexpr int64_t kRowsPerReading = 8;
constexpr int64_t kShareWeights = int64_t{1} << 17;  // in about the time that waking a thread takes

int64_t cost(const Assignment& pairs, int64_t e) {
  return pairs.count(e) == 0 ? 0 : pairs.count(e) + kRowsPerReading;
}

// Calls body(expert, first column, last column) for the columns of all experts with pairs.
template <typename Body>
void for_dot_columns(const Assignment& pairs, int64_t experts, int64_t columns, int64_t step,
                     int64_t weights_per_column, const Body& body) {
  std::vector<int64_t> used;
  int64_t total = 0;
  for (int64_t e = 0; e < experts; ++e) {
    if (pairs.count(e) > 0) used.push_back(e);
    total += cost(pairs, e);
  }
  const int64_t weights = total / kRowsPerReading * columns * weights_per_column;
  const int64_t shares = std::clamp<int64_t>(weights / kShareWeights, 1, at::get_num_threads());
  for_even_shares<VectorTiles<float>>(
      0, static_cast<int64_t>(used.size()), columns, step, shares,
      [&](int64_t i) { return cost(pairs, used[i]); },
      [&](int64_t i, int64_t begin, int64_t end, int64_t /*share*/) { body(used[i], begin, end); });
}

// Calls body(first pair, number of pairs) for blocks of an expert's pairs.
template <typename Body>
void for_pair_blocks(const Assignment& pairs, int64_t e, const Body& body) {
  for (int64_t a = pairs.offset_E1[e]; a < pairs.offset_E1[e + 1]; a += kDotRows)
    body(a, std::min(kDotRows, pairs.offset_E1[e + 1] - a));
}

at::Tensor by_dot_products(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                           const at::Tensor& down_proj) {
  const int64_t T = x_TD.size(0), D = x_TD.size(1), F = down_proj.size(2), E = gates_TE.size(1);
  const Assignment pairs = assign_in_order(gates_TE);
  const at::Tensor act_AF = at::empty({static_cast<int64_t>(pairs.token_A.size()), F}, x_TD.options());
  const at::Tensor sum_TD = at::empty(x_TD.sizes(), gates_TE.options());
  at::Tensor y_TD = at::empty(x_TD.sizes(), x_TD.options());
  const auto *x = x_TD.const_data_ptr<Number>(), *gate_up = gate_up_proj.const_data_ptr<Number>(),
             *down = down_proj.const_data_ptr<Number>();
  const auto* gates = gates_TE.const_data_ptr<float>();
  auto* act = act_AF.mutable_data_ptr<Number>();
  auto* sum = sum_TD.mutable_data_ptr<float>();
  auto* y = y_TD.mutable_data_ptr<Number>();
  for_dot_columns(pairs, E, F, kHalfPanel, 2 * D, [&](int64_t e, int64_t begin, int64_t end) {
    alignas(64) std::array<float, kDotRows * kPanelColumns> tile;
    std::array<const Number*, kDotRows> rows{};
    for_pair_blocks(pairs, e, [&](int64_t a, int64_t count) {
      for (int64_t m = 0; m < count; ++m) rows[m] = x + pairs.token_A[a + m] * D;
      for (int64_t f = begin; f < end; f += kHalfPanel) {
        const int64_t columns = std::min(kHalfPanel, end - f);
        const Number *gate = gate_up + (e * 2 * F + f) * D, *up = gate + F * D;
        DotProducts::multiply(rows.data(), count, gate, columns, D, tile.data(), kPanelColumns, up);
        DotProducts::multiply(rows.data(), count, up, columns, D, tile.data() + kHalfPanel, kPanelColumns,
                              gate + columns * D);
        bfloat16_loops().swiglu(tile.data(), count, columns, act + a * F + f, F, nullptr, 0, F);
      }
    });
  });
  const int64_t panels = round_up(D, kPanelColumns) / kPanelColumns;
  const int64_t weights = static_cast<int64_t>(pairs.token_A.size()) * F * kPanelColumns;
  at::parallel_for(0, panels, std::max<int64_t>(kShareWeights / std::max<int64_t>(weights, 1), 1),
                   [&](int64_t first, int64_t last) {
                     const int64_t begin = first * kPanelColumns, end = std::min(last * kPanelColumns, D);
                     for (int64_t t = 0; t < T; ++t) std::fill(sum + t * D + begin, sum + t * D + end, 0.0F);
                     alignas(64) std::array<float, kDotRows * kPanelColumns> tile;
                     std::array<const Number*, kDotRows> rows{};
                     for (int64_t e = 0; e < E; ++e) {
                       for_pair_blocks(pairs, e, [&](int64_t a, int64_t count) {
                         for (int64_t m = 0; m < count; ++m) rows[m] = act + (a + m) * F;
                         for (int64_t d = begin; d < end; d += kPanelColumns) {
                           const int64_t columns = std::min<int64_t>(kPanelColumns, end - d);
                           DotProducts::multiply(rows.data(), count, down + (e * D + d) * F, columns, F,
                                                 tile.data(), kPanelColumns);
                           bfloat16_loops().add_rows(tile.data(), count, columns,
                                                     {sum + d, D, pairs.token_A.data() + a, gates + e, E});
                         }
                       });
                     }
                     for (int64_t t = 0; t < T; ++t)
                       bfloat16_loops().convert(sum + t * D + begin, y + t * D + begin, end - begin);
                   });
  return y_TD;
}

}  // namespace

at::Tensor moe_ffn_by_row(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                          const at::Tensor& down_proj) {
  check_moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj, /*capacity=*/0);
  if (!DotProducts::multiply_rows_of(x_TD, x_TD.size(0)))
    return moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj);
  return by_dot_products(plain(x_TD), plain(gates_TE), plain(gate_up_proj), plain(down_proj));
}

}  // namespace dtopp::ops
