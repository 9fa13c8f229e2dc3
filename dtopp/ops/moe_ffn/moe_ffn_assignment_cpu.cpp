#include <bit>

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

void add_steps(const at::Tensor& pairs_A2, int64_t experts, Assignment& out) {
  const auto pair = pairs_A2.accessor<int64_t, 2>();
  const ExpertTree tree = expert_tree(experts);
  out.step_A.resize(out.token_A.size());
  std::vector<PartialSum> tokens;
  for (int64_t a = 0; a < pairs_A2.size(0); ++a) {
    const auto token = static_cast<size_t>(pair[a][1]);
    if (token >= tokens.size()) tokens.resize(std::max(token + 1, 2 * tokens.size()));
    PartialSum& sum = tokens[token];
    if (sum.pair >= 0) {
      const uint64_t level = uint64_t{1} << join_level(tree, static_cast<uint32_t>(sum.expert),
                                                       static_cast<uint32_t>(pair[a][0]));
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

}  // namespace

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
  for (int64_t e = 0; e < experts; ++e) out.offset_E1[e + 1] += out.offset_E1[e];
  add_steps(pairs_A2, experts, out);
  return out;
}

Assignment assign_in_order(const at::Tensor& gates_TE) {
  Assignment out;
  const auto gate = gates_TE.accessor<float, 2>();
  out.offset_E1.push_back(0);
  for (int64_t e = 0; e < gate.size(1); ++e) {
    for (int64_t t = 0; t < gate.size(0); ++t) {
      if (gate[t][e] != 0) out.token_A.push_back(t);
    }
    out.offset_E1.push_back(static_cast<int64_t>(out.token_A.size()));
  }
  return out;
}

double mean_rows(const Assignment& pairs) {
  int64_t used = 0;
  for (size_t e = 0; e + 1 < pairs.offset_E1.size(); ++e) used += pairs.count(static_cast<int64_t>(e)) > 0;
  return static_cast<double>(pairs.token_A.size()) / static_cast<double>(std::max<int64_t>(used, 1));
}

int64_t most_pairs(const Assignment& pairs) {
  int64_t most = 0;
  for (size_t e = 0; e + 1 < pairs.offset_E1.size(); ++e) {
    most = std::max(most, pairs.count(static_cast<int64_t>(e)));
  }
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
    for (int64_t e = group.first; e < group.last; ++e) {
      before += find_pair(pairs, e, token) - pairs.offset_E1[e];
    }
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
