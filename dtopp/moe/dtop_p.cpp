// DTop-p: Top-p whose threshold p a controller moves after each step, so that tokens activate T experts.
//
// dtop_p_bias: P and p determine the number n of experts of a token, as in DTop-p. A bias b per expert
// determines which: the n experts with the largest s + b (moe/expert_bias.h). n does not depend on b, so the
// bias and the controller do not act on each other within a step. Two metrics show what balance costs:
// mass, the mean probability of a token's experts together, and that of as many likeliest experts.
//
// Zero experts (model.zero_experts) join a token's set like the others. The controller counts the others
// only.
//
// Source:        paper, Eqs. 4-6, 8 and 9
#include "dtopp/moe/dtop_p.h"

#include <limits>

#include "dtopp/base/format.h"
#include "dtopp/moe/expert_bias.h"
#include "dtopp/moe/router.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/ops/route/cumulative_prob_bins.h"
#include "dtopp/ops/route/route.h"

namespace dtopp::moe {
namespace {

constexpr double kMostOwed = 0.5;  // relative to T: the limit of sum_e
// The share of sum_e that one step corrects. A full correction would follow the noise of every batch. With
// one half, thresholds miss by 1.2 instead of 1.4 times the distance that the required threshold moves
// between steps.
constexpr double kMadeUpFor = 0.5;
constexpr double kMostMadeUpFor = 0.1;  // relative to T: the limit of one correction

// Divisors are tensors: a device multiplies by the reciprocal of a scalar, which rounds differently.
Tensor number(double value, const Tensor& like) { return at::full({}, value, like.options()); }

class DTopPRouter final : public Router {
 public:
  DTopPRouter(const config::RunConfig& config, const at::Device& device, std::optional<ExpertBias> bias)
      : Router(config, device),
        controller_(Router::config(), config.model.num_experts, config.model.num_layers, device),
        zero_experts_(config.model.zero_experts),
        stride_(cumulative_prob_stride(config.model.router_columns(), config.model.tokens_per_sample(),
                                       config.training.global_batch_size * config.model.tokens_per_sample())),
        used_threshold_C_(controller_.thresholds()),
        bias_(std::move(bias)) {}

  ops::RouteOutput select(const RouterInput& input) override {
    ops::RouteOutput output = route_by(input, /*top_k=*/0, controller_.threshold(input.layer),
                                       bias_ ? bias_->of_layer(input.layer) : Tensor());
    if (!input.training) return output;
    output.statistics = ops::cumulative_prob_histogram(input.logits_TE.detach(), input.scale.detach(),
                                                       enum_name(config().normalization),
                                                       config().max_experts, stride_, zero_experts_);
    if (bias_) output.statistics = at::cat({output.statistics, output.mass});
    if (bias_ && bias_->statistics_size() > 0) {
      const Tensor s_SE =
          softmax_inputs({input.layer, bias_->sampled(input.logits_TE.detach()), input.scale.detach()},
                         config().normalization);
      output.statistics =
          at::cat({output.statistics,
                   bias_->statistics(input.layer, s_SE, bias_->sampled(output.gates_TE.detach()).ne(0))});
    }
    if (zero_experts_ > 0) {
      const Tensor zero_Z = output.tokens_per_expert_E.narrow(0, num_experts(), zero_experts_);
      output.statistics = at::cat({output.statistics, zero_Z.sum().view({1})});
    }
    return output;
  }
  void set_step(int64_t step) override {
    Router::set_step(step);
    if (!config().schedule.empty()) controller_.set_targets(config().experts, next_experts());
  }
  void start_at(const std::vector<double>& thresholds) override {
    controller_.start_at(thresholds);
    used_threshold_C_ = controller_.thresholds();
  }
  std::vector<int64_t> statistics_shape() const override {
    // Zero experts add the number of zero experts that tokens took. A bias adds RouteOutput::mass and
    // ExpertBias::statistics, which are per layer.
    const int64_t of_bias = bias_ ? bias_->statistics_size() : 0;
    return {of_bias > 0 ? num_layers() : controller_.thresholds().numel(),
            ops::kCumulativeProbBins + (zero_experts_ > 0 ? 1 : 0) + (bias_ ? 2 : 0) + of_bias};
  }

  void update(const StepCounts& counts, const Tensor& applied) override {
    Router::update(counts, applied);
    used_threshold_C_ = controller_.thresholds();
    Tensor statistics_CS = counts.statistics;
    if (bias_) {
      const int64_t of_bias = bias_->statistics_size(), others = statistics_CS.size(1) - of_bias;
      if (moves_biases()) bias_->update(counts, statistics_CS.narrow(1, others, of_bias), applied);
      statistics_CS = statistics_CS.narrow(1, 0, others);
      if (of_bias > 0 && !controller_.per_layer()) statistics_CS = statistics_CS.sum(0, /*keepdim=*/true);
    }
    // Without the layers that route by token id.
    const Tensor taken_L = counts.tokens_per_expert_LE.sum(1).slice(0, config().hash_layers);
    const Tensor histogram_CM = statistics_CS.narrow(1, 0, ops::kCumulativeProbBins);
    controller_.update({taken_L, counts.tokens, histogram_CM, stride_}, applied);
    if (bias_) {
      const int64_t tokens = counts.tokens * (controller_.per_layer() ? 1 : taken_L.numel());
      mass_C2_ = statistics_CS.narrow(1, ops::kCumulativeProbBins, 2).to(at::kDouble) *
                 (ops::kMassPerUnit / static_cast<double>(std::max<int64_t>(tokens, 1)));
    }
    if (zero_experts_ == 0) return;
    const Tensor zero_C = statistics_CS.select(1, ops::kCumulativeProbBins).to(at::kDouble);
    zero_share_C_ = zero_C / (zero_C + (controller_.per_layer() ? taken_L : taken_L.sum()));
  }

  ops::NamedTensors metrics() const override {
    ops::NamedTensors metrics = {{"threshold", used_threshold_C_},
                                 {"threshold_solved", controller_.solved()}};
    if (zero_share_C_.defined()) metrics.emplace_back("zero_share", zero_share_C_);
    if (bias_) metrics.push_back(bias_->metrics()[0]);
    if (mass_C2_.defined()) {
      metrics.emplace_back("mass", mass_C2_.select(1, 0));
      metrics.emplace_back("mass_unbiased", mass_C2_.select(1, 1));
    }
    return metrics;
  }

 protected:
  void list_state(ops::StateTensors& list) override {
    Router::list_state(list);
    controller_.list_state(list);
    if (bias_) bias_->list_state(list);
  }
  void loaded() override {
    used_threshold_C_ = controller_.thresholds();
    if (bias_) bias_->loaded();
  }

 private:
  ThresholdController controller_;
  int64_t zero_experts_;
  int64_t stride_;           // of the tokens whose cumulative probabilities are counted
  Tensor used_threshold_C_;  // by the last step, or else by the next
  Tensor zero_share_C_;      // zero experts / all that tokens took in the last step; undefined without
  Tensor mass_C2_;           // of the last step, with and without the bias; undefined without
  std::optional<ExpertBias> bias_;
};

}  // namespace

ThresholdController::ThresholdController(const config::RoutingConfig& config, int64_t num_experts,
                                         int64_t num_layers, const at::Device& device)
    : config_(config) {
  const int64_t controllers = per_layer() ? num_layers : 1;
  const auto options = at::device(device).dtype(at::kDouble);
  num_experts_ = at::full({}, static_cast<double>(num_experts), options);
  threshold_C_ = at::full({controllers}, config.threshold, options);
  error_sum_C_ = at::zeros({controllers}, options);
  solved_C_ = at::full({controllers}, std::numeric_limits<double>::quiet_NaN(), options);
  steps_ = at::zeros({}, options.dtype(at::kLong));
  set_targets(config.experts, config.experts);
  edges_ = cumulative_prob_bin_edges(device);
}

void ThresholdController::set_targets(const std::vector<double>& experts,
                                      const std::vector<double>& next_experts) {
  const auto on_device = [&](const std::vector<double>& targets) {
    const Tensor target_C = at::tensor(targets, at::kDouble);
    return ops::to_device(target_C.expand(threshold_C_.sizes()).contiguous(), threshold_C_.device());
  };
  target_C_ = on_device(experts);
  next_target_C_ = on_device(next_experts);
}

void ThresholdController::start_at(const std::vector<double>& thresholds) {
  threshold_C_ = ops::to_device(at::tensor(thresholds, at::kDouble), threshold_C_.device());
  if (config_.controller == config::Controller::kPi)
    error_sum_C_ = (threshold_C_ - config_.threshold) / number(config_.ki, threshold_C_);
}

void ThresholdController::update(const RoutedStep& step, const Tensor& applied) {
  if (step.tokens == 0) return;
  const Tensor num_assignments_C =
      per_layer() ? step.num_assignments_L : step.num_assignments_L.sum().view({1});
  const int64_t tokens = per_layer() ? step.tokens : step.tokens * step.num_assignments_L.numel();
  const Tensor active_C =
      num_assignments_C.to(at::kDouble) / number(static_cast<double>(tokens), threshold_C_);
  const Tensor error_C = (target_C_ - active_C) / num_experts_;
  const bool solves = config_.controller == config::Controller::kSolve;
  Next next;
  if (step.prob_histogram_CM.defined()) {
    const ActiveExpertCurve curve(step.prob_histogram_CM, edges_);
    const Tensor below_C = curve.below(threshold_C_);
    const double sampled = static_cast<double>(tokens) / static_cast<double>(step.histogram_stride);
    // p at which a token has the given number of experts. The curve is shifted so that at the step's p it has
    // the count of all tokens.
    const auto threshold_for = [&](const Tensor& experts_C) {
      return curve.threshold(below_C + (experts_C - active_C) * sampled);
    };
    solved_C_ = threshold_for(target_C_);
    if (solves) {
      const auto limited = [&](const Tensor& sum_C, double share) {
        const Tensor most_C = target_C_ / num_experts_ * share;
        return at::maximum(at::minimum(sum_C, most_C), -most_C);
      };
      // Exclude the step that used p_0: the user chose it.
      next.error_sum_C = limited(error_sum_C_ + error_C * steps_.gt(0), kMostOwed);
      const Tensor now_C = limited(next.error_sum_C * kMadeUpFor, kMostMadeUpFor);
      next.threshold_C = threshold_for(next_target_C_ + now_C * num_experts_);
    }
  } else if (solves) {
    throw std::invalid_argument(
        "ThresholdController: this configuration needs the cumulative probabilities of each step");
  }
  if (!solves) next = paper_law(error_C);
  error_sum_C_ = at::where(applied, next.error_sum_C, error_sum_C_);
  threshold_C_ = at::where(applied, next.threshold_C, threshold_C_);
  steps_ = steps_ + applied.to(at::kLong);
}

ThresholdController::Next ThresholdController::paper_law(const Tensor& error_C) const {
  Next next{{}, error_sum_C_ + error_C};
  const Tensor p_C = error_C * config_.kp + config_.threshold + next.error_sum_C * config_.ki;
  if (config_.anti_windup) {
    const Tensor winds_up_C = p_C.gt(kMaxThreshold)
                                  .logical_and_(error_C.gt(0))
                                  .logical_or_(p_C.lt(kMinThreshold).logical_and_(error_C.lt(0)));
    next.error_sum_C = at::where(winds_up_C, error_sum_C_, next.error_sum_C);
  }
  next.threshold_C = p_C.clamp(kMinThreshold, kMaxThreshold);
  return next;
}

std::unique_ptr<Router> make_dtop_p_router(const config::RunConfig& config, const at::Device& device) {
  return std::make_unique<DTopPRouter>(config, device, std::nullopt);
}

std::unique_ptr<Router> make_dtop_p_bias_router(const config::RunConfig& config, const at::Device& device) {
  return std::make_unique<DTopPRouter>(config, device, ExpertBias(config, device));
}

}  // namespace dtopp::moe
