// Selects the K experts with the largest probability plus bias. The bias balances the load without a
// loss.
//
// The gates are those of the probabilities alone. After each step, with c the tokens per expert of a layer:
//
//   bias_e <- bias_e + routing.bias_rate * sign(mean(c) - c_e)
//
// Source:        Wang et al., Auxiliary-Loss-Free Load Balancing (arXiv 2408.15664)
#include <memory>

#include "dtopp/config/config.h"
#include "dtopp/moe/router.h"

namespace dtopp::moe {
namespace {

class TopKBiasRouter final : public Router {
 public:
  TopKBiasRouter(const config::RunConfig& config, const at::Device& device)
      : Router(config, device),
        bias_LE_(at::zeros({num_layers(), num_experts()}, at::device(device).dtype(at::kDouble))) {
    if (!(config.routing.bias_rate > 0)) throw config::InvalidValue("routing.bias_rate", "must be positive");
  }

  ops::RouteOutput select(const RouterInput& input) override {
    const RouterInput detached = {input.layer, input.logits_TE.detach(), input.scale.detach()};
    const at::Tensor prob_TE = at::softmax(softmax_inputs(detached, config().normalization), -1);
    const at::Tensor score_TE = prob_TE + bias_LE_[input.layer].to(at::kFloat);
    // A stable sort keeps the lower index first among equals.
    const at::Tensor order_TE = std::get<1>(score_TE.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true));
    const at::Tensor map_TE = at::zeros_like(score_TE, at::kBool);
    map_TE.scatter_(1, order_TE.narrow(1, 0, config::top_k_of(config())), true);
    return route_to(input, map_TE);
  }

  void update(const StepCounts& counts, const at::Tensor& applied) override {
    Router::update(counts, applied);
    // In whole numbers: sign(mean - c) = sign(sum - E c).
    const at::Tensor& c_LE = counts.tokens_per_expert_LE;
    const at::Tensor sign_LE = (c_LE.sum(1, /*keepdim=*/true) - c_LE * num_experts()).sign().to(at::kDouble);
    bias_LE_ = at::where(applied, bias_LE_ + sign_LE * config().bias_rate, bias_LE_);
  }

  ops::NamedTensors state() const override {
    ops::NamedTensors state = Router::state();
    state.emplace_back("bias_LE", bias_LE_);
    return state;
  }
  ops::NamedTensors metrics() const override {
    return {{"bias_spread", std::get<0>(bias_LE_.max(1)) - std::get<0>(bias_LE_.min(1))}};
  }

 protected:
  void set_state(const std::string& name, const at::Tensor& value) override {
    if (name != "bias_LE") return Router::set_state(name, value);
    bias_LE_ = value;
  }

 private:
  at::Tensor bias_LE_;  // f64
};

}  // namespace

std::unique_ptr<Router> make_top_k_bias_router(const config::RunConfig& config, const at::Device& device) {
  return std::make_unique<TopKBiasRouter>(config, device);
}

}  // namespace dtopp::moe
