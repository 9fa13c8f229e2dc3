#include "dtopp/moe/router.h"

#include <bit>

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

Tensor softmax_inputs(const RouterInput& input, config::Normalization normalization) {
  if (normalization == config::Normalization::kNone) return input.logits_TE;
  const Tensor centered_TE = input.logits_TE - input.logits_TE.mean({-1}, /*keepdim=*/true);
  const Tensor variance_T1 = centered_TE.square().mean({-1}, /*keepdim=*/true);
  const Tensor s_TE = centered_TE * (variance_T1 + ops::kVarianceEpsilon).rsqrt();
  return normalization == config::Normalization::kDynamic ? s_TE * input.scale : s_TE;
}

Router::Router(const config::RunConfig& config, const at::Device& device)
    : config_(config),
      configured_(config.routing),
      logit_sum_stride_(moe::logit_sum_stride(config.model.tokens_per_sample(), step_tokens())),
      device_(device),
      no_threshold_(at::zeros({}, at::device(device).dtype(at::kDouble))),
      expert_LVK_(num_layers()) {
  Router::set_step(0);
  if (config.routing.expert_normalization == config::ExpertNormalization::kRunning)
    expert_normalization_ = std::make_shared<ExpertNormalization>(config, device);
  if (config.loss.batch_statistics == config::BatchStatistics::kGlobal)
    tokens_per_expert_LE_ = at::zeros({num_layers(), num_experts()}, at::device(device).dtype(at::kLong));
}

ops::RouteOutput Router::select_likeliest(const RouterInput& input, const Tensor& counts_T) const {
  const RouterInput detached = {input.layer, input.logits_TE.detach(), input.scale.detach()};
  const Tensor s_TE = softmax_inputs(detached, config().normalization);
  // A stable sort keeps the lower index first among equals.
  const Tensor order_TE = std::get<1>(s_TE.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true));
  const Tensor ranks_E = at::arange(s_TE.size(1), order_TE.options());
  const Tensor rank_TE = at::empty_like(order_TE).scatter_(1, order_TE, ranks_E.expand_as(order_TE));
  return route_to(input, rank_TE < counts_T.unsqueeze(1));
}

bool Router::moves_biases() const {
  return static_cast<double>(step_) < config().bias_until * static_cast<double>(config_.training.steps);
}

void Router::set_step(int64_t step) {
  step_ = step;
  config_.routing.experts = config::experts_at(configured_, step, config_.training.steps);
  next_experts_ = config::experts_at(configured_, step + 1, config_.training.steps);
}

void Router::start_at(const std::vector<double>& /*thresholds*/) {
  throw std::logic_error("Router::start_at: this method has no controller");
}

void Router::update(const StepCounts& counts, const Tensor& applied) {
  if (tokens_per_expert_LE_.defined())
    tokens_per_expert_LE_ = at::where(applied, counts.tokens_per_expert_LE, tokens_per_expert_LE_);
  if (expert_normalization_)
    expert_normalization_->update(counts.logit_sums_LS, tokens_in_logit_sums(), applied);
}

Tensor Router::logit_sums(const Tensor& logits_TC, const Tensor& x_TD) const {
  return moe::logit_sums(logits_TC, expert_normalization_ ? x_TD : Tensor(), logit_sum_stride_);
}

std::vector<int64_t> Router::logit_sums_shape() const {
  const int64_t size = logit_sums_size(config_);
  return size == 0 ? std::vector<int64_t>{0} : std::vector<int64_t>{num_layers(), size};
}

Tensor Router::common_logit_share(const Tensor& logit_sums_LS) const {
  return moe::common_logit_share(logit_sums_LS, config_.model.router_columns(), tokens_in_logit_sums());
}

ops::NamedTensors Router::state() const {
  ops::StateTensors list;
  const_cast<Router*>(this)->list_state(list);  // only load_state() replaces a tensor of the list
  return ops::values_of(list);
}

void Router::list_state(ops::StateTensors& list) {
  if (tokens_per_expert_LE_.defined()) list.emplace_back("tokens_per_expert_LE", &tokens_per_expert_LE_);
  if (expert_normalization_) expert_normalization_->list_state(list);
}

void Router::load_state(const ops::NamedTensors& state) {
  ops::StateTensors own;
  list_state(own);
  for (const auto& tensor : state) {
    if (std::ranges::none_of(own, [&](const auto& known) { return known.first == tensor.first; }))
      throw std::invalid_argument("router: this method has no state " + tensor.first);
  }
  for (const auto& [name, tensor] : own) {
    const Tensor& value = ops::find_tensor(state, name, "router");
    if (value.sizes() != tensor->sizes() || value.scalar_type() != tensor->scalar_type())
      throw std::invalid_argument(c10::str("router: ", name, " is ", value.scalar_type(), " ", value.sizes(),
                                           ", expected ", tensor->scalar_type(), " ", tensor->sizes()));
    *tensor = ops::to_device(value, device_);
  }
  if (expert_normalization_) expert_normalization_->loaded();
  loaded();
}

std::vector<double> Router::metric(std::string_view name) const {
  for (const auto& [candidate, values] : metrics()) {
    if (candidate != name) continue;
    const Tensor host = values.cpu().contiguous();
    return {host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel()};
  }
  return {};
}

Tensor Router::share_E(int64_t layer, const Tensor& own_E) const {
  if (!tokens_per_expert_LE_.defined()) return own_E;
  const Tensor counts_E = tokens_per_expert_LE_[layer].to(at::kDouble);
  const Tensor share_E = (counts_E / static_cast<double>(step_tokens())).to(at::kFloat);
  return at::where(share_E.sum() > 0, share_E, own_E);
}

ops::RouteOutput Router::with_l2_gates(ops::RouteOutput output) const {
  if (config().renormalize != config::Renormalize::kL2) return output;
  // Gates that sum to 1: their squares sum to 1 / E or more, or to 0 for a token without experts.
  const Tensor square_T1 = output.gates_TE.square().sum({1}, /*keepdim=*/true);
  const Tensor gates_TE =
      output.gates_TE * at::where(square_T1 == 0, at::ones({}, square_T1.options()), square_T1).rsqrt();
  // Other gates stay 0, also if the sum is NaN.
  output.gates_TE = at::where(output.gates_TE == 0, at::zeros({}, gates_TE.options()), gates_TE);
  return output;
}

ops::RouteOutput Router::route_by(const RouterInput& input, int64_t top_k, const Tensor& threshold,
                                  const Tensor& bias_E, std::string_view bias_on) const {
  return with_l2_gates(ops::route(input.logits_TE, input.scale, top_k > 0 ? no_threshold_ : threshold,
                                  enum_name(config().normalization), top_k, config().max_experts,
                                  config().renormalize != config::Renormalize::kNo,
                                  bias_E.defined() ? std::optional(bias_E) : std::nullopt, bias_on));
}

ops::RouteOutput Router::route_above(const RouterInput& input, std::string_view gate, const Tensor& cut_E,
                                     int64_t first_experts) const {
  return ops::route(input.logits_TE, input.scale, no_threshold_, enum_name(config().normalization),
                    first_experts, /*max_experts=*/0, /*renormalize=*/false, std::nullopt, "logit", gate,
                    cut_E.defined() ? std::optional(cut_E) : std::nullopt);
}

ops::RouteOutput Router::route_to(const RouterInput& input, const Tensor& routing_map_TE) const {
  return with_l2_gates(ops::route_selected(input.logits_TE, input.scale, routing_map_TE,
                                           enum_name(config().normalization),
                                           config().renormalize != config::Renormalize::kNo));
}

}  // namespace dtopp::moe
