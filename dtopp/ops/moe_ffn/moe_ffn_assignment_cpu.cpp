#include <utility>

#include "dtopp/ops/moe_ffn/expert_tree.h"
#include "dtopp/ops/moe_ffn/moe_ffn_cpu.h"

namespace dtopp::ops {
namespace {

// A token's partial sums: its last pair, and one bit per occupied slot, which gives the tree level at which
// the slot joins the next one.
struct PartialSum {
  int64_t pair = -1, expert = 0;
  uint64_t levels = 0;
};

void add_steps(const Tensor& pairs_A2, int64_t experts, Assignment& out) {
  const auto pair = pairs_A2.accessor<int64_t, 2>();
  const ExpertTree tree = expert_tree(experts);
  out.step_A.resize(out.token_A.size());
  std::vector<PartialSum> tokens;
  for (int64_t a = 0; a < pairs_A2.size(0); ++a) {
    const auto token = static_cast<size_t>(pair[a][1]);
    if (token >= tokens.size()) tokens.resize(std::max(token + 1, 2 * tokens.size()));
    PartialSum& sum = tokens[token];
    if (sum.pair >= 0) {
      const int joined =
          join_level(tree, static_cast<uint32_t>(sum.expert), static_cast<uint32_t>(pair[a][0]));
      const uint64_t level = uint64_t{1} << joined;  // NOLINT: not negative, because the experts differ
      const uint64_t complete = sum.levels & (level - 1);
      out.step_A[sum.pair].merges = static_cast<uint8_t>(std::popcount(complete));
      sum.levels = (sum.levels ^ complete) | level;
    }
    out.step_A[a].slot = static_cast<uint8_t>(std::popcount(sum.levels));
    sum.pair = a;
    sum.expert = pair[a][0];
  }
  for (const PartialSum& sum : tokens)
    if (sum.pair >= 0) out.step_A[sum.pair].merges = static_cast<uint8_t>(std::popcount(sum.levels));
  for (const SumStep& step : out.step_A)
    if (step.merges == 0) out.slots = std::max<int64_t>(out.slots, step.slot + 1);
}

// Calls body(e) for the gates of a token that are not 0. Most are 0, so it skips 16 at a time.
template <typename Real, typename Body>
void for_chosen(const Real* gates_E, int64_t experts, const Body& body) {
  constexpr int64_t kBlock = 16;
  for (int64_t first = 0; first < experts; first += kBlock) {
    const int64_t last = std::min(first + kBlock, experts);
    bool any = false;
#pragma omp simd reduction(|| : any)
    for (int64_t e = first; e < last; ++e) any = any || gates_E[e] != 0;
    for (int64_t e = first; any && e < last; ++e)
      if (gates_E[e] != 0) body(e);
  }
}

// Each thread counts, then writes, the pairs of its share of the tokens.
template <typename Real>
Tensor list_pairs(const Tensor& gates_TE) {
  const int64_t tokens = gates_TE.size(0), experts = gates_TE.size(1), shares = thread_shares(tokens);
  const Real* gates = gates_TE.const_data_ptr<Real>();
  std::vector<int64_t> next_SE(shares * experts);  // the number of pairs, then the next pair's place
  const auto for_share = [&](const auto& body) {
    at::parallel_for(0, shares, 1, [&](int64_t begin, int64_t end) {
      for (int64_t share = begin; share < end; ++share) {
        for (int64_t t = tokens * share / shares; t < tokens * (share + 1) / shares; ++t)
          for_chosen(gates + t * experts, experts,
                     [&](int64_t e) { body(e, t, next_SE[share * experts + e]); });
      }
    });
  };
  for_share([](int64_t, int64_t, int64_t& count) { ++count; });
  int64_t pairs = 0;
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t share = 0; share < shares; ++share)
      pairs += std::exchange(next_SE[share * experts + e], pairs);
  Tensor pairs_A2 = at::empty({pairs, 2}, at::kLong);
  auto* out = pairs_A2.mutable_data_ptr<int64_t>();
  for_share([&](int64_t e, int64_t t, int64_t& place) {
    out[2 * place] = e;
    out[2 * place++ + 1] = t;
  });
  return pairs_A2;
}

Assignment without_steps(const Tensor& pairs_A2, int64_t experts) {
  Assignment out;
  const int64_t pairs = pairs_A2.size(0);
  const auto pair = pairs_A2.accessor<int64_t, 2>();
  out.offset_E1.assign(experts + 1, 0);
  out.token_A.resize(pairs);
  for (int64_t a = 0; a < pairs; ++a) {
    ++out.offset_E1[pair[a][0] + 1];
    out.token_A[a] = pair[a][1];
  }
  for (int64_t e = 0; e < experts; ++e) out.offset_E1[e + 1] += out.offset_E1[e];
  return out;
}

}  // namespace

Tensor pairs_of(const Tensor& gates_TE) {
  const Tensor gates = plain(gates_TE);
  return gates.scalar_type() == at::kDouble ? list_pairs<double>(gates) : list_pairs<float>(gates);
}

Assignment assign(const Tensor& pairs_A2, int64_t experts) {
  Assignment out = without_steps(pairs_A2, experts);
  add_steps(pairs_A2, experts, out);
  return out;
}

Assignment assign_in_order(const Tensor& gates_TE) {
  return without_steps(pairs_of(gates_TE), gates_TE.size(1));
}

double mean_rows(const Assignment& pairs) {
  int64_t used = 0;
  for (size_t e = 0; e + 1 < pairs.offset_E1.size(); ++e) used += pairs.count(static_cast<int64_t>(e)) > 0;
  return static_cast<double>(pairs.token_A.size()) / static_cast<double>(std::max<int64_t>(used, 1));
}

int64_t most_pairs(const Assignment& pairs) {
  int64_t most = 0;
  for (size_t e = 0; e + 1 < pairs.offset_E1.size(); ++e)
    most = std::max(most, pairs.count(static_cast<int64_t>(e)));
  return most;
}

std::vector<ExpertGroup> group_experts(const Assignment& pairs, int64_t experts, int64_t most) {
  std::vector<ExpertGroup> groups;
  for (int64_t e = 0; e < experts; ++e) {
    const bool full =
        groups.empty() || groups.back().experts() == most || groups.back().rows + pairs.count(e) > kGroupRows;
    if (full) groups.push_back({e, e, pairs.offset_E1[e], 0});
    groups.back().last = e + 1;
    groups.back().rows += pairs.count(e);
  }
  return groups;
}

int64_t most_rows(const std::vector<ExpertGroup>& groups) {
  int64_t most = 0;
  for (const ExpertGroup& group : groups) most = std::max(most, group.rows);
  return most;
}

std::vector<int64_t> token_shares(const Assignment& pairs, const ExpertGroup& group, int64_t tokens) {
  const int64_t shares = thread_shares(tokens);
  const auto pairs_before = [&](int64_t token) {
    int64_t before = 0;
    for (int64_t e = group.first; e < group.last; ++e)
      before += find_pair(pairs, e, token) - pairs.offset_E1[e];
    return before;
  };
  std::vector<int64_t> starts(shares + 1, 0);
  starts[shares] = tokens;
  for (int64_t share = 1; share < shares; ++share) {
    int64_t low = starts[share - 1], high = tokens;  // first token with enough pairs before it
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (pairs_before(middle) * shares < group.rows * share) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    starts[share] = low;
  }
  return starts;
}

}  // namespace dtopp::ops
