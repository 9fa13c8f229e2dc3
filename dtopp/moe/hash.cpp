// Selects K experts by the token's id: in every layer (routing.method hash), or in the first ones
// (routing.hash_layers). Nothing is learned: a learned router has to beat it.
//
// Every layer draws K different experts per id at random. The draw depends on the layer and the id only, not
// on a run's seed. A larger K adds experts to those of a smaller one. All gates are 1 / K.
//
// Source:        Roller et al., Hash Layers (arXiv 2106.04426)
#include "dtopp/base/random.h"
#include "dtopp/moe/router.h"
#include "dtopp/ops/route/route.h"

namespace dtopp::moe {
namespace {

// int32 [V, K]: the first K positions of a random order of the experts, per id.
Tensor draw_experts(int64_t layer, int64_t num_ids, int64_t num_experts, int64_t top_k) {
  const RandomStream stream(/*seed=*/0, "hash router " + std::to_string(layer));
  Tensor expert_VK = at::empty({num_ids, top_k}, at::kInt);
  auto* expert = expert_VK.mutable_data_ptr<int32_t>();
  std::vector<int32_t> order(num_experts);
  for (int64_t id = 0; id < num_ids; ++id) {
    std::iota(order.begin(), order.end(), 0);
    for (int64_t n = 0; n < top_k; ++n) {
      const auto bits = stream.bits(static_cast<uint64_t>(id * num_experts + n));
      const uint64_t number = uint64_t{bits[0]} << 32 | bits[1];
      const int64_t drawn = n + static_cast<int64_t>(number % static_cast<uint64_t>(num_experts - n));
      std::swap(order[n], order[drawn]);
      *expert++ = order[n];
    }
  }
  return expert_VK;
}

class HashRouter final : public Router {
 public:
  using Router::Router;
  ops::RouteOutput select(const RouterInput& input) override { return select_by_id(input); }
};

}  // namespace

ops::RouteOutput Router::select_by_id(const RouterInput& input) {
  const int64_t top_k = config::top_k_of(config());
  Tensor& expert_VK = expert_LVK_.at(input.layer);
  if (!expert_VK.defined() || expert_VK.size(1) < top_k)
    expert_VK = draw_experts(input.layer, config_.model.vocab_size, num_experts(), top_k).to(device_);
  const Tensor expert_TK = expert_VK.narrow(1, 0, top_k).index_select(0, input.ids_T).to(at::kLong);
  const auto real = at::device(device_).dtype(at::kFloat);
  const Tensor map_TE = at::zeros({expert_TK.size(0), num_experts()}, real.dtype(at::kBool));
  map_TE.scatter_(1, expert_TK, true);
  ops::RouteOutput output;
  output.gates_TE = map_TE.to(at::kFloat) * (1.0 / static_cast<double>(top_k));
  ops::set_counts(map_TE, output);
  output.mean_prob_E = at::zeros({num_experts()}, real);  // there are no probabilities
  output.entropy = output.router_z = at::zeros({}, real);
  return output;
}

std::unique_ptr<Router> make_hash_router(const config::RunConfig& config, const at::Device& device) {
  return std::make_unique<HashRouter>(config, device);
}

}  // namespace dtopp::moe
