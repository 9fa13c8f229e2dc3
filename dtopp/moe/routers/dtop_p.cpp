// DTop-p: Top-p whose threshold p a controller moves after each step, so that tokens activate T experts.
//
// Source:        paper, Eqs. 4-6, 8 and 9
#include <memory>

#include "dtopp/base/enum_name.h"
#include "dtopp/moe/cumulative_prob_sampling.h"
#include "dtopp/moe/router.h"
#include "dtopp/moe/threshold_controller.h"
#include "dtopp/ops/route/cumulative_prob_bins.h"
#include "dtopp/ops/route/cumulative_prob_histogram.h"

namespace dtopp::moe {
namespace {

class DTopPRouter final : public Router {
 public:
  DTopPRouter(const config::RunConfig& config, const at::Device& device)
      : Router(config, device),
        controller_(config.routing, config.model.num_experts, config.model.num_layers, device),
        stride_(cumulative_prob_stride(config.model.num_experts, config.model.tokens_per_sample(),
                                       config.training.global_batch_size * config.model.tokens_per_sample())),
        used_threshold_C_(controller_.thresholds()) {}

  ops::RouteOutput select(const RouterInput& input) override {
    ops::RouteOutput output = route_by(input, /*top_k=*/0, controller_.threshold(input.layer));
    if (input.training)
      output.statistics =
          ops::cumulative_prob_histogram(input.logits_TE.detach(), input.scale.detach(),
                                         enum_name(config().normalization), config().max_experts, stride_);
    return output;
  }
  std::vector<int64_t> statistics_shape() const override {
    return {controller_.thresholds().numel(), ops::kCumulativeProbBins};
  }

  void update(const StepCounts& counts, const at::Tensor& applied) override {
    Router::update(counts, applied);
    used_threshold_C_ = controller_.thresholds();
    controller_.update({counts.tokens_per_expert_LE.sum(1), counts.tokens, counts.statistics, stride_},
                       applied);
  }

  ops::NamedTensors state() const override {
    ops::NamedTensors state = Router::state();
    for (auto& tensor : controller_.state()) state.push_back(std::move(tensor));
    return state;
  }
  ops::NamedTensors metrics() const override {
    return {{"threshold", used_threshold_C_}, {"threshold_solved", controller_.solved()}};
  }

 protected:
  void set_state(const std::string& name, const at::Tensor& value) override {
    if (!controller_.set_state(name, value)) Router::set_state(name, value);
    used_threshold_C_ = controller_.thresholds();
  }

 private:
  ThresholdController controller_;
  int64_t stride_;               // of the tokens whose cumulative probabilities are counted
  at::Tensor used_threshold_C_;  // by the last step, or else by the next
};

}  // namespace

std::unique_ptr<Router> make_dtop_p_router(const config::RunConfig& config, const at::Device& device) {
  return std::make_unique<DTopPRouter>(config, device);
}

}  // namespace dtopp::moe
