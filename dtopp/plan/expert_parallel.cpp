
#include "dtopp/config/config.h"
#include "dtopp/plan/plan.h"

namespace dtopp::plan {
namespace {

constexpr double kForwardShare = 1.0 / 3;  // of a training step's FLOPs
// An update reads parameter, moments and gradient in fp32; it writes the first three and a copy in bf16.
constexpr double kUpdateBytes = 4 * 4 + 3 * 4 + 2;

// Links within and between nodes are used at the same time.
double seconds_on_links(const SentBytes& sent, const device::DeviceRates& rates) {
  return std::max(sent.inside / (rates.inside * device::AssumedShares::kInside),
                  sent.between / (rates.between * device::AssumedShares::kBetween));
}

// The part of a communication of `seconds` that a pass does not hide. `end` is the share of it before or
// after all computation.
double exposed(double seconds, double pass, double end) {
  return std::max(end * seconds, seconds - device::AssumedShares::kHiding * pass);
}

void require_divides(const char* key, int64_t part, int64_t whole, const char* what) {
  if (whole % part != 0) throw config::InvalidValue(key, part, " does not divide the ", whole, " ", what);
}

}  // namespace

StepTime plan_step_time(const Plan& plan, const device::DeviceRates& rates) {
  const Communication& sent = plan.communication;
  const auto ranks = static_cast<double>(plan.dims.world_size);
  const auto micro_steps = static_cast<double>(sent.micro_steps);
  const double peak = plan.precision == config::Precision::kBf16 ? rates.bf16_flops : rates.fp32_flops;
  // FLOPs of the mean rank.
  const auto flops = [&](uint64_t per_token) {
    return static_cast<double>(per_token) * static_cast<double>(plan.tokens_per_step) / ranks;
  };
  const auto compute = [&](double count) {
    return count * sent.busiest_share / (peak * device::AssumedShares::kCompute);
  };

  StepTime time;
  const double model_flops = flops(plan.flops_per_token), forward = compute(model_flops * kForwardShare);
  time.compute = compute(model_flops + flops(plan.recomputed_flops_per_token));
  time.rows = seconds_on_links(sent.dispatch + sent.combine, rates) * sent.busiest_share;
  const double backward = time.compute - forward;
  // The EP group reduces gradients in every micro-step; all other reductions happen in the last one.
  time.gradients =
      exposed(seconds_on_links(sent.ep_gradients, rates), backward, sent.bucket_share) +
      exposed(seconds_on_links(sent.edp_gradients, rates), backward / micro_steps, sent.bucket_share);
  time.parameters =
      exposed(seconds_on_links(sent.parameters, rates), forward / micro_steps, sent.bucket_share);
  time.update = static_cast<double>(plan.parameters) / ranks * kUpdateBytes /
                    (rates.memory * device::AssumedShares::kMemory) +
                plan.optimizer_flops / ranks / (peak * device::AssumedShares::kCompute);
  time.mfu = model_flops / (peak * time.seconds());
  return time;
}

void check_dims(const distributed::ParallelDims& dims, const config::ModelConfig& model) {
  const char* degree = "parallel.expert_parallel";
  if (dims.world_size < 1) throw config::InvalidValue("--ranks", "must be at least 1");
  if (dims.nodes < 1) throw config::InvalidValue("--nodes", "must be at least 1");
  if (dims.ep_size < 1) throw config::InvalidValue(degree, "must be at least 1");
  require_divides("--nodes", dims.nodes, dims.world_size, "ranks");
  require_divides(degree, dims.ep_size, dims.node_size(), "ranks of a node");
  require_divides(degree, dims.ep_size, model.num_experts, "experts of a layer");
}

std::vector<int64_t> possible_expert_parallel(const distributed::ParallelDims& dims,
                                              const config::ModelConfig& model) {
  std::vector<int64_t> degrees;
  for (int64_t degree = 1; degree <= dims.node_size(); ++degree)
    if (dims.node_size() % degree == 0 && model.num_experts % degree == 0) degrees.push_back(degree);
  return degrees;
}

std::vector<Plan> plans_by_expert_parallel(const config::RunConfig& config,
                                           const distributed::ParallelDims& dims, config::Device device) {
  check_dims({dims.world_size, dims.nodes}, config.model);
  std::vector<Plan> plans;
  for (const int64_t degree : possible_expert_parallel(dims, config.model))
    plans.push_back(make_plan(config, {dims.world_size, dims.nodes, degree}, device));
  return plans;
}

Recommendation recommend(const std::vector<Plan>& plans, const device::PlanDevice& device) {
  const auto bytes = [](uint64_t count) { return format_bytes(static_cast<double>(count)); };
  const auto fits = [&](const Plan& plan) { return plan.memory_bytes() <= device.memory_bytes; };
  const std::string room = bytes(device.memory_bytes) + " of " + device.name;
  const auto first = std::ranges::find_if(plans, fits);
  if (first == plans.end()) {
    const Plan& least =
        *std::ranges::min_element(plans, {}, [](const Plan& plan) { return plan.memory_bytes(); });
    const int64_t degree = least.dims.ep_size;
    return {degree, "none fits the " + room + "; this one needs the least, " + bytes(least.memory_bytes()),
            degree};
  }
  const int64_t degree = first->dims.ep_size;
  Recommendation best = {degree, bytes(first->memory_bytes()) + " fit the " + room, degree};
  best.reason += first == plans.begin()
                     ? ", so no rows have to be exchanged"
                     : ", the fewest ranks that do: " + std::to_string(std::prev(first)->dims.ep_size) +
                           " would need " + bytes(std::prev(first)->memory_bytes());
  if (!device.rates) return best;
  const auto seconds = [&](const Plan& plan) { return plan_step_time(plan, *device.rates).seconds(); };
  double shortest = seconds(*first);
  for (const Plan& plan : plans) {
    if (!fits(plan) || seconds(plan) >= shortest) continue;
    shortest = seconds(plan);
    best.fastest = plan.dims.ep_size;
  }
  if (best.fastest != degree)
    best.reason += "; " + std::to_string(best.fastest) + " would have the shortest step";
  return best;
}

int64_t expert_parallel_of(const config::RunConfig& config, const distributed::ParallelDims& dims,
                           config::Device device, uint64_t memory_bytes) {
  distributed::ParallelDims wanted = dims;
  wanted.ep_size = config.parallel.expert_parallel.ranks.value_or(1);
  check_dims(wanted, config.model);
  if (config.parallel.expert_parallel.ranks || dims.world_size == 1) return wanted.ep_size;
  return recommend(plans_by_expert_parallel(config, dims, device), {.memory_bytes = memory_bytes})
      .expert_parallel;
}

}  // namespace dtopp::plan
