#include "dtopp/plan/step_time.h"

#include <algorithm>

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
                (rates.memory * device::AssumedShares::kMemory);
  time.mfu = model_flops / (peak * time.seconds());
  return time;
}

}  // namespace dtopp::plan
