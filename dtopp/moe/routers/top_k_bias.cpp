// Selects the K experts with the largest score plus bias. The bias balances the load without a loss
// (moe/expert_bias.h).
//
// The scores are sigmoid(z), and the gates are the selected experts' scores over their sum.
//
// Source:        DeepSeek-V3 (arXiv 2412.19437), section 2.1.2
#include <memory>

#include "dtopp/moe/expert_bias.h"

namespace dtopp::moe {
namespace {

class TopKBiasRouter final : public Router {
 public:
  TopKBiasRouter(const config::RunConfig& config, const at::Device& device)
      : Router(config, device), bias_(config, device) {}

  ops::RouteOutput select(const RouterInput& input) override {
    // softmax(log sigmoid(z)) = sigmoid(z) / sum of sigmoid(z)
    const RouterInput scores = {input.layer, at::log_sigmoid(input.logits_TE), input.scale};
    return route_by(scores, config::top_k_of(config()), /*threshold=*/{}, bias_.of_layer(input.layer),
                    "score");
  }

  void update(const StepCounts& counts, const at::Tensor& applied) override {
    Router::update(counts, applied);
    bias_.update(counts.tokens_per_expert_LE, applied);
  }

  ops::NamedTensors state() const override {
    ops::NamedTensors state = Router::state();
    for (auto& tensor : bias_.state()) state.push_back(std::move(tensor));
    return state;
  }
  ops::NamedTensors metrics() const override { return bias_.metrics(); }

 protected:
  void set_state(const std::string& name, const at::Tensor& value) override {
    if (!bias_.set_state(name, value)) Router::set_state(name, value);
  }

 private:
  ExpertBias bias_;
};

}  // namespace

std::unique_ptr<Router> make_top_k_bias_router(const config::RunConfig& config, const at::Device& device) {
  return std::make_unique<TopKBiasRouter>(config, device);
}

}  // namespace dtopp::moe
