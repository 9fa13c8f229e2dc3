// Selects the K experts with the largest score plus bias. The bias balances the load without a loss
// (moe/expert_bias.h).
//
// The scores are sigmoid(z), and the gates are the selected experts' scores over their sum, times
// routing.gate_scale.
//
// loss.sequence_balance keeps the load even within each sequence too. With L tokens per sequence, of which
// c_e select expert e, and P the scores over their sum over all E experts, it is the mean over sequences of
//
//   sum_e f_e mean(P_e)        f_e = E c_e / (K L), a constant
//
// Source:        DeepSeek-V3 (arXiv 2412.19437), section 2.1.2
#include "dtopp/moe/expert_bias.h"

namespace dtopp::moe {
namespace {

class TopKBiasRouter final : public Router {
 public:
  TopKBiasRouter(const config::RunConfig& config, const at::Device& device)
      : Router(config, device),
        bias_(config, device),
        sequence_length_(config.loss.sequence_balance > 0 ? config.model.tokens_per_sample() : 0) {}

  ops::RouteOutput select(const RouterInput& input) override {
    // softmax(log sigmoid(z)) = sigmoid(z) / sum of sigmoid(z)
    const RouterInput scores = {input.layer, at::log_sigmoid(input.logits_TE), input.scale};
    ops::RouteOutput output =
        route_by(scores, config::top_k_of(config()), /*threshold=*/{}, bias_.of_layer(input.layer), "score");
    output.router_z = router_z(input.logits_TE);
    if (input.training && bias_.statistics_size() > 0)
      output.statistics = bias_.statistics(input.layer, bias_.sampled(input.logits_TE.detach()).sigmoid(),
                                           bias_.sampled(output.gates_TE.detach()).ne(0));
    if (input.training && sequence_length_ > 0)
      output.sequence_balance = sequence_balance(scores.logits_TE, output.gates_TE.detach().ne(0));
    if (config().gate_scale != 1) output.gates_TE = output.gates_TE * config().gate_scale;
    return output;
  }

  std::vector<int64_t> statistics_shape() const override {
    if (bias_.statistics_size() == 0) return {0};
    return {num_layers(), bias_.statistics_size()};
  }
  void update(const StepCounts& counts, const Tensor& applied) override {
    Router::update(counts, applied);
    if (moves_biases()) bias_.update(counts, counts.statistics, applied);
  }

  ops::NamedTensors metrics() const override { return bias_.metrics(); }

 protected:
  void list_state(ops::StateTensors& list) override {
    Router::list_state(list);
    bias_.list_state(list);
  }
  void loaded() override { bias_.loaded(); }

 private:
  // The router z-loss is of the logits z, not of the scores' logarithms, which the softmax gets.
  static Tensor router_z(const Tensor& logits_TE) {
    const auto tokens = static_cast<double>(std::max<int64_t>(logits_TE.size(0), 1));
    return at::logsumexp(logits_TE, {-1}).square().sum() * (1 / tokens);
  }

  Tensor sequence_balance(const Tensor& log_score_TE, const Tensor& map_TE) const {
    const auto by_sequence = [&](const Tensor& of_TE) {
      return of_TE.reshape({-1, sequence_length_, num_experts()});
    };
    const double even = static_cast<double>(config::top_k_of(config()) * sequence_length_) /
                        static_cast<double>(num_experts());  // tokens per expert and sequence
    const Tensor share_BE = by_sequence(map_TE).sum(1).to(at::kFloat) * (1 / even);
    const Tensor prob_BE = by_sequence(log_score_TE.softmax(-1)).mean(1);
    return (share_BE * prob_BE).sum(1).mean();
  }

  ExpertBias bias_;
  int64_t sequence_length_;  // 0: without loss.sequence_balance
};

}  // namespace

std::unique_ptr<Router> make_top_k_bias_router(const config::RunConfig& config, const at::Device& device) {
  return std::make_unique<TopKBiasRouter>(config, device);
}

}  // namespace dtopp::moe
