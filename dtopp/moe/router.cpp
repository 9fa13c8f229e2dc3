#include "dtopp/moe/router.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "dtopp/base/format.h"
#include "dtopp/ops/core/host_copy.h"

namespace dtopp::moe {
namespace {

constexpr int64_t kCheapExperts = 16, kLargestStride = 8;
constexpr int64_t kFewestOfProbs = 2048, kFewestOfLogits = 1024;

// The largest power of two that is at most `wanted` and divides a sample.
int64_t stride_of(int64_t wanted, int64_t tokens_per_sample) {
  const auto stride = std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(wanted, 1)));
  const int64_t dividing = tokens_per_sample & -tokens_per_sample;  // its largest power of two
  return std::min(static_cast<int64_t>(stride), dividing);
}

}  // namespace

int64_t cumulative_prob_stride(int64_t num_experts, int64_t tokens_per_sample, int64_t tokens_per_step) {
  return stride_of(std::min({kLargestStride, num_experts / kCheapExperts, tokens_per_step / kFewestOfProbs}),
                   tokens_per_sample);
}

int64_t logit_sum_stride(int64_t tokens_per_sample, int64_t tokens_per_step) {
  return stride_of(tokens_per_step / kFewestOfLogits, tokens_per_sample);
}

namespace {

constexpr char kTokensPerExpert[] = "tokens_per_expert_LE";

}  // namespace

at::Tensor softmax_inputs(const RouterInput& input, config::Normalization normalization) {
  if (normalization == config::Normalization::kNone) return input.logits_TE;
  const at::Tensor centered_TE = input.logits_TE - input.logits_TE.mean({-1}, /*keepdim=*/true);
  const at::Tensor variance_T1 = centered_TE.square().mean({-1}, /*keepdim=*/true);
  const at::Tensor s_TE = centered_TE * (variance_T1 + ops::kVarianceEpsilon).rsqrt();
  return normalization == config::Normalization::kDynamic ? s_TE * input.scale : s_TE;
}

Router::Router(const config::RunConfig& config, const at::Device& device)
    : config_(config.routing),
      configured_(config.routing),
      router_z_on_(config.loss.router_z_on),
      steps_(config.training.steps),
      num_layers_(config.model.num_layers),
      num_experts_(config.model.num_experts),
      num_logits_(config.model.router_columns()),
      num_ids_(config.model.vocab_size),
      logit_sums_size_(moe::logit_sums_size(config)),
      step_tokens_(config.training.global_batch_size * config.model.tokens_per_sample()),
      logit_sum_stride_(moe::logit_sum_stride(config.model.tokens_per_sample(), step_tokens_)),
      device_(device),
      no_threshold_(at::zeros({}, at::device(device).dtype(at::kDouble))),
      expert_LVK_(static_cast<size_t>(num_layers_)) {
  Router::set_step(0);
  if (config_.expert_normalization == config::ExpertNormalization::kRunning)
    expert_normalization_ = std::make_shared<ExpertNormalization>(config, device);
  if (config.loss.batch_statistics == config::BatchStatistics::kGlobal)
    tokens_per_expert_LE_ = at::zeros({num_layers_, num_experts_}, at::device(device).dtype(at::kLong));
}

ops::RouteOutput Router::select_likeliest(const RouterInput& input, const at::Tensor& counts_T) const {
  const RouterInput detached = {input.layer, input.logits_TE.detach(), input.scale.detach()};
  const at::Tensor s_TE = softmax_inputs(detached, config_.normalization);
  // A stable sort keeps the lower index first among equals.
  const at::Tensor order_TE = std::get<1>(s_TE.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true));
  const at::Tensor ranks_E = at::arange(s_TE.size(1), order_TE.options());
  const at::Tensor rank_TE = at::empty_like(order_TE).scatter_(1, order_TE, ranks_E.expand_as(order_TE));
  return route_to(input, rank_TE < counts_T.unsqueeze(1));
}

bool Router::moves_biases() const {
  return static_cast<double>(step_) < config_.bias_until * static_cast<double>(steps_);
}

void Router::set_step(int64_t step) {
  step_ = step;
  config_.experts = config::experts_at(configured_, step, steps_);
  next_experts_ = config::experts_at(configured_, step + 1, steps_);
}

void Router::start_at(const std::vector<double>& /*thresholds*/) {
  throw std::logic_error("Router::start_at: this method has no controller");
}

void Router::update(const StepCounts& counts, const at::Tensor& applied) {
  if (tokens_per_expert_LE_.defined())
    tokens_per_expert_LE_ = at::where(applied, counts.tokens_per_expert_LE, tokens_per_expert_LE_);
  if (expert_normalization_)
    expert_normalization_->update(counts.logit_sums_LS, tokens_in_logit_sums(), applied);
}

at::Tensor Router::logit_sums(const at::Tensor& logits_TC, const at::Tensor& x_TD) const {
  return moe::logit_sums(logits_TC, expert_normalization_ ? x_TD : at::Tensor(), logit_sum_stride_);
}

std::vector<int64_t> Router::logit_sums_shape() const {
  if (logit_sums_size_ == 0) return {0};
  return {num_layers_, logit_sums_size_};
}

at::Tensor Router::common_logit_share(const at::Tensor& logit_sums_LS) const {
  return moe::common_logit_share(logit_sums_LS, num_logits_, tokens_in_logit_sums());
}

ops::NamedTensors Router::state() const {
  ops::NamedTensors state;
  if (tokens_per_expert_LE_.defined()) state.emplace_back(kTokensPerExpert, tokens_per_expert_LE_);
  if (expert_normalization_)
    for (auto& tensor : expert_normalization_->state()) state.push_back(std::move(tensor));
  return state;
}

void Router::load_state(const ops::NamedTensors& loaded) {
  const ops::NamedTensors own = state();
  for (const auto& tensor : loaded) {
    if (std::ranges::none_of(own, [&](const auto& known) { return known.first == tensor.first; }))
      throw std::invalid_argument("router: this method has no state " + tensor.first);
  }
  for (const auto& [name, tensor] : own) {
    const at::Tensor& value = ops::find_tensor(loaded, name, "router");
    if (value.sizes() != tensor.sizes() || value.scalar_type() != tensor.scalar_type())
      throw std::invalid_argument(c10::str("router: ", name, " is ", value.scalar_type(), " ", value.sizes(),
                                           ", expected ", tensor.scalar_type(), " ", tensor.sizes()));
    set_state(name, ops::to_device(value, device_));
  }
}

void Router::set_state(const std::string& name, const at::Tensor& value) {
  if (expert_normalization_ && expert_normalization_->set_state(name, value)) return;
  if (name != kTokensPerExpert) throw std::logic_error("Router::set_state: unknown state " + name);
  tokens_per_expert_LE_ = value;
}

std::vector<double> Router::metric(std::string_view name) const {
  for (const auto& [candidate, values] : metrics()) {
    if (candidate != name) continue;
    const at::Tensor host = values.cpu().contiguous();
    return {host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel()};
  }
  return {};
}

at::Tensor Router::share_E(int64_t layer, const at::Tensor& own_E) const {
  if (!tokens_per_expert_LE_.defined()) return own_E;
  const at::Tensor counts_E = tokens_per_expert_LE_[layer].to(at::kDouble);
  const at::Tensor share_E = (counts_E / static_cast<double>(step_tokens_)).to(at::kFloat);
  return at::where(share_E.sum() > 0, share_E, own_E);
}

ops::RouteOutput Router::with_l2_gates(ops::RouteOutput output) const {
  if (config_.renormalize != config::Renormalize::kL2) return output;
  // Gates that sum to 1: their squares sum to 1 / E or more, or to 0 for a token without experts.
  const at::Tensor square_T1 = output.gates_TE.square().sum({1}, /*keepdim=*/true);
  const at::Tensor gates_TE =
      output.gates_TE * at::where(square_T1 == 0, at::ones({}, square_T1.options()), square_T1).rsqrt();
  // Other gates stay 0, also if the sum is NaN.
  output.gates_TE = at::where(output.gates_TE == 0, at::zeros({}, gates_TE.options()), gates_TE);
  return output;
}

ops::RouteOutput Router::route_by(const RouterInput& input, int64_t top_k, const at::Tensor& threshold,
                                  const at::Tensor& bias_E, std::string_view bias_on) const {
  return with_l2_gates(ops::route(input.logits_TE, input.scale, top_k > 0 ? no_threshold_ : threshold,
                                  enum_name(config_.normalization), top_k, config_.max_experts,
                                  config_.renormalize != config::Renormalize::kNo,
                                  bias_E.defined() ? std::optional(bias_E) : std::nullopt, bias_on));
}

ops::RouteOutput Router::route_above(const RouterInput& input, std::string_view gate, const at::Tensor& cut_E,
                                     int64_t first_experts) const {
  return ops::route(input.logits_TE, input.scale, no_threshold_, enum_name(config_.normalization),
                    first_experts, /*max_experts=*/0, /*renormalize=*/false, std::nullopt, "logit", gate,
                    cut_E.defined() ? std::optional(cut_E) : std::nullopt);
}

ops::RouteOutput Router::route_to(const RouterInput& input, const at::Tensor& routing_map_TE) const {
  return with_l2_gates(ops::route_selected(input.logits_TE, input.scale, routing_map_TE,
                                           enum_name(config_.normalization),
                                           config_.renormalize != config::Renormalize::kNo));
}

}  // namespace dtopp::moe
