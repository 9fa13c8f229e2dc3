#include "dtopp/plan/rank_layout.h"

#include <string>

#include "dtopp/config/config.h"

namespace dtopp {
namespace {

void require_divides(const char* key, int64_t part, int64_t whole, const char* what) {
  if (whole % part != 0)
    throw InvalidValue(key,
                       std::to_string(part) + " does not divide the " + std::to_string(whole) + " " + what);
}

}  // namespace

void check_layout(const RankLayout& layout, const ModelConfig& model) {
  const char* degree = "parallel.expert_parallel";
  if (layout.ranks < 1) throw InvalidValue("--ranks", "must be at least 1");
  if (layout.nodes < 1) throw InvalidValue("--nodes", "must be at least 1");
  if (layout.expert_parallel < 1) throw InvalidValue(degree, "must be at least 1");
  require_divides("--nodes", layout.nodes, layout.ranks, "ranks");
  require_divides(degree, layout.expert_parallel, layout.node_ranks(), "ranks of a node");
  require_divides(degree, layout.expert_parallel, model.num_experts, "experts of a layer");
}

std::vector<int64_t> possible_expert_parallel(const RankLayout& layout, const ModelConfig& model) {
  std::vector<int64_t> degrees;
  for (int64_t degree = 1; degree <= layout.node_ranks(); ++degree) {
    if (layout.node_ranks() % degree == 0 && model.num_experts % degree == 0) degrees.push_back(degree);
  }
  return degrees;
}

}  // namespace dtopp
