// ReMoE: a token selects the experts with a positive logit, which is also their gate. A token may have none.
//
// A loss on the gates, weighted by the load, keeps the mean number of experts a near T. Per layer:
//
//   loss = lambda E / T sum_e f_e mean(gate_e)
//
// It is the load-balance loss with mean(gate) / T as Q. After each step, over all layers:
//
//   lambda <- lambda * routing.lambda_factor if a > T, else lambda / routing.lambda_factor
//
// Half of the experts are active until lambda has grown.
//
// Source:        Wang et al., ReMoE (arXiv 2412.14711)
#include "dtopp/moe/router.h"

namespace dtopp::moe {
namespace {

constexpr double kSmallestLambda = 1e-12, kLargestLambda = 1e6;

class ReluRouter final : public Router {
 public:
  ReluRouter(const config::RunConfig& config, const at::Device& device)
      : Router(config, device),
        lambda_(at::full({1}, config.routing.lambda_0, at::device(device).dtype(at::kDouble))),
        used_lambda_(lambda_),
        factor_(at::full({}, config.routing.lambda_factor, lambda_.options())) {}

  ops::RouteOutput select(const RouterInput& input) override {
    ops::RouteOutput output = route_above(input, "relu");
    output.mean_prob_E = output.mean_prob_E / config::mean_experts(config());
    return output;
  }
  Tensor load_balance_weight() const override { return lambda_[0].to(at::kFloat); }

  void update(const StepCounts& counts, const Tensor& applied) override {
    Router::update(counts, applied);
    used_lambda_ = lambda_;
    const double wanted = config::mean_experts(config()) * static_cast<double>(counts.tokens * num_layers());
    const Tensor is_above = counts.tokens_per_expert_LE.sum().to(at::kDouble).gt(wanted);
    const Tensor next = at::where(is_above, lambda_ * factor_, lambda_ / factor_);
    lambda_ = at::where(applied, next.clamp(kSmallestLambda, kLargestLambda), lambda_);
  }

  ops::NamedTensors metrics() const override { return {{"lambda", used_lambda_}}; }

 protected:
  void list_state(ops::StateTensors& list) override {
    Router::list_state(list);
    list.emplace_back("lambda", &lambda_);
  }
  void loaded() override { used_lambda_ = lambda_; }

 private:
  Tensor lambda_, used_lambda_;  // f64 [1]: of the next step and the last one
  Tensor factor_;                // a tensor: a device multiplies by the reciprocal of a scalar divisor
};

}  // namespace

std::unique_ptr<Router> make_relu_router(const config::RunConfig& config, const at::Device& device) {
  return std::make_unique<ReluRouter>(config, device);
}

}  // namespace dtopp::moe
