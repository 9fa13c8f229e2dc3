// Each expert takes the tokens whose logit reaches its own threshold tau, so a token may have no expert. The
// gates are sigmoid(z).
//
// tau estimates the logit that the share T / E of all tokens reaches, so the load is even and the mean number
// of experts is T, without a loss. After step n, with cut_e the logit of rank T / E of expert e in the step:
//
//   m_e <- d m_e + (1 - d) cut_e        tau_e = m_e / (1 - d^n)        d = routing.cut_decay
//
// cut_e comes from a histogram of the step's logits and is linear inside a bin. The first step has no tau:
// its tokens take their T likeliest experts.
//
// Source:        Sun et al., Expert Threshold Routing (arXiv 2603.11535)
#include <cmath>

#include "dtopp/moe/router.h"
#include "dtopp/ops/route/route.h"

namespace dtopp::moe {
namespace {

class ExpertThresholdRouter final : public Router {
 public:
  ExpertThresholdRouter(const config::RunConfig& config, const at::Device& device)
      : Router(config, device),
        first_experts_(std::llround(config::mean_experts(Router::config()))),
        stride_(cumulative_prob_stride(config.model.num_experts, config.model.tokens_per_sample(),
                                       config.training.global_batch_size * config.model.tokens_per_sample())),
        cut_LE_(at::zeros({num_layers(), num_experts()}, at::device(device).dtype(at::kDouble))),
        steps_(at::zeros({}, at::device(device).dtype(at::kLong))) {
    loaded();
  }

  ops::RouteOutput select(const RouterInput& input) override {
    ops::RouteOutput output = route_above(input, "sigmoid", threshold_LE_[input.layer], first_experts_);
    if (input.training)
      output.statistics = ops::logit_histogram(input.logits_TE.detach(), stride_).view({-1});
    return output;
  }
  std::vector<int64_t> statistics_shape() const override {
    return {num_layers(), num_experts() * ops::kLogitBins};
  }

  void update(const StepCounts& counts, const Tensor& applied) override {
    Router::update(counts, applied);
    const int64_t tokens = counts.tokens / stride_;
    const double share = next_experts()[0] / static_cast<double>(num_experts());  // of the tokens, per expert
    const auto rank = static_cast<int64_t>(std::floor(static_cast<double>(tokens) * share + 0.5));
    const Tensor cut_LE =
        ops::ranked_logit(counts.statistics.view({num_layers(), num_experts(), ops::kLogitBins}),
                          std::clamp<int64_t>(rank, 1, std::max<int64_t>(tokens, 1)));
    const double decay = config().cut_decay;
    cut_LE_ = at::where(applied, cut_LE_ * decay + cut_LE * (1 - decay), cut_LE_);
    steps_ = steps_ + applied.to(at::kLong);
    loaded();
  }

  ops::NamedTensors metrics() const override {
    const Tensor tau_LE = threshold_LE_.to(at::kDouble);
    return {{"cut", tau_LE.mean({1})},
            {"cut_spread", std::get<0>(tau_LE.max(1)) - std::get<0>(tau_LE.min(1))}};
  }

 protected:
  void list_state(ops::StateTensors& list) override {
    Router::list_state(list);
    list.emplace_back("cut_LE", &cut_LE_);
    list.emplace_back("cut_steps", &steps_);
  }
  void loaded() override {
    const Tensor decay = at::full({}, config().cut_decay, cut_LE_.options());
    threshold_LE_ = (cut_LE_ / (1 - decay.pow(steps_))).to(at::kFloat);
  }

 private:
  int64_t first_experts_;  // per token, without thresholds
  int64_t stride_;         // of the tokens whose logits are counted
  Tensor cut_LE_;          // m, f64
  Tensor steps_;           // n, int64 []
  Tensor threshold_LE_;    // tau, f32; NaN before the first step
};

}  // namespace

std::unique_ptr<Router> make_expert_threshold_router(const config::RunConfig& config,
                                                     const at::Device& device) {
  return std::make_unique<ExpertThresholdRouter>(config, device);
}

}  // namespace dtopp::moe
