// Selects the top_k likeliest experts of each token.
#include "dtopp/moe/expert_bias.h"
#include "dtopp/moe/router.h"

namespace dtopp::moe {
namespace {

class TopKRouter final : public Router {
 public:
  using Router::Router;

  ops::RouteOutput select(const RouterInput& input) override {
    return route_by(input, config::top_k_of(config()), /*threshold=*/{});
  }
};

// Top-k with biases over E experts and Z zero experts, which compute nothing: tokens take 0 to K experts.
//
// A token takes K = routing.max_experts of the E + Z, by probability plus bias. The gates are those of the
// probabilities. After each step of M tokens, with c the tokens per expert of a layer:
//
//   bias_e <- bias_e + routing.bias_rate * (T / E - c_e / M)    T = routing.experts; zero experts have none
//
// The law drives every expert to the load T / E. This balances the experts and holds their mean number at T.
//
// Source:        LongCat-Flash (arXiv 2509.01322); MoE++ (arXiv 2410.07348)
class TopKZeroRouter final : public Router {
 public:
  TopKZeroRouter(const config::RunConfig& config, const at::Device& device)
      : Router(config, device),
        zero_experts_(config.model.zero_experts),
        bias_(config, device),
        zero_share_L_(at::zeros({num_layers()}, at::device(device).dtype(at::kDouble))) {}

  ops::RouteOutput select(const RouterInput& input) override {
    const Tensor bias_C =
        at::constant_pad_nd(bias_.bias_LE()[input.layer].to(at::kFloat), {0, zero_experts_});
    return route_by(input, config().max_experts, /*threshold=*/{}, bias_C, "probability");
  }

  void update(const StepCounts& counts, const Tensor& applied) override {
    Router::update(counts, applied);
    const Tensor load_LE =
        counts.tokens_per_expert_LE.to(at::kDouble) * (1 / static_cast<double>(counts.tokens));
    const Tensor error_LE = config().experts[0] / static_cast<double>(num_experts()) - load_LE;
    if (moves_biases()) bias_.add(error_LE, applied);
    zero_share_L_ = 1 - load_LE.sum(1) * (1 / static_cast<double>(config().max_experts));
  }

  ops::NamedTensors metrics() const override {
    ops::NamedTensors metrics = bias_.metrics();
    metrics.emplace_back("zero_share", zero_share_L_);
    return metrics;
  }

 protected:
  void list_state(ops::StateTensors& list) override {
    Router::list_state(list);
    bias_.list_state(list);
  }
  void loaded() override { bias_.loaded(); }

 private:
  int64_t zero_experts_;
  ExpertBias bias_;
  Tensor zero_share_L_;  // f64: of the last step
};

}  // namespace

std::unique_ptr<Router> make_top_k_router(const config::RunConfig& config, const at::Device& device) {
  return std::make_unique<TopKRouter>(config, device);
}

std::unique_ptr<Router> make_top_k_zero_router(const config::RunConfig& config, const at::Device& device) {
  return std::make_unique<TopKZeroRouter>(config, device);
}

}  // namespace dtopp::moe
