#include "dtopp/train/console_line.h"

#include <algorithm>

#include "dtopp/base/format.h"

namespace dtopp::train {
namespace {

// 2.9e-3 rather than printf's 2.9e-03.
std::string scientific(double value) {
  std::string text = format("%.1e", value);
  const size_t exponent = text.find('e') + 2;
  if (text[exponent] == '0') text.erase(exponent, 1);
  if (text[exponent - 1] == '+') text.erase(exponent - 1, 1);
  return text;
}

std::string threshold_text(const std::vector<double>& thresholds) {
  const auto [low, high] = std::minmax_element(thresholds.begin(), thresholds.end());
  const std::string least = format("%.3f", *low), most = format("%.3f", *high);
  return least == most ? least : least + "-" + most;
}

std::string routing_text(const config::RunConfig& config, const StepResult& result) {
  const config::RoutingConfig& routing = config.routing;
  if (result.activations.num_layers() == 0) return "";
  const moe::ActivationSummary summary = result.activations.summary();
  std::string text = format(" | experts %.2f", summary.mean);
  if (config::holds_target(routing.method))
    text += format("/%.3g", config::mean_experts_at(routing, result.step - 1, config.training.steps));
  if (const auto* p = result.router_values("threshold")) text.append(" | p ").append(threshold_text(*p));
  return text.append(format(" | imbalance %.1f", summary.imbalance));
}

}  // namespace

std::string run_line(const config::RunConfig& config, const plan::Plan& plan, int64_t steps) {
  const auto count = [](auto number) { return format_count(static_cast<double>(number)); };
  std::string line = count(plan.parameters) + " parameters";
  if (plan.active_parameters != plan.parameters)
    line += ", " + count(plan.active_parameters) + " active per token";
  return line + "; " + std::to_string(steps) + " steps of " +
         std::to_string(config.training.global_batch_size) + " x " +
         std::to_string(config.model.tokens_per_sample()) +
         " tokens: " + count(plan.tokens_per_step * static_cast<uint64_t>(steps)) + " tokens";
}

std::string device_line(const std::string& device, const std::string& precision,
                        const StepYardstick& yardstick, const std::string& output) {
  const auto gflops = [](double rate) { return std::to_string(static_cast<int64_t>(rate / 1e9)); };
  return "training on " + device + " in " + precision + ", measured at " + gflops(yardstick.matrix_rate) +
         " GFLOP/s" + (yardstick.peak_rate ? " (data sheet: " + gflops(*yardstick.peak_rate) + ")" : "") +
         "; output: " + output;
}

std::string console_line(const config::RunConfig& config, int64_t step, const StepResult& result,
                         const StepRates& rates) {
  std::string line = "step " + std::to_string(step) + "/" + std::to_string(config.training.steps);
  line.append(format(" | loss %.3f", without_nan_sign(result.loss)));
  if (result.skipped) line.append(" | skipped");
  line.append(" | ").append(format_count(rates.tokens_per_second)).append(" tok/s");
  line.append(" | ").append(format_duration(rates.seconds));
  if (rates.seconds_left >= 0.05)
    line.append(", ").append(format_duration(rates.seconds_left)).append(" left");
  line.append(routing_text(config, result));
  line.append(format(" | grad %.2f", without_nan_sign(result.grad_norm)));
  if (!result.skipped) line.append(" | lr ").append(scientific(result.lr));
  if (rates.mfu) line.append(format(" | MFU %.0f %%", *rates.mfu * 100));
  return line.append(" | ").append(format_bytes(static_cast<double>(rates.memory_bytes)));
}

std::string validation_line(int64_t step, const models::ValidationResult* loss,
                            const Measurements& measured) {
  std::string parts;
  const auto add = [&](const std::string& name, double value) {
    parts += (parts.empty() ? " " : ", ") + name + " " + std::to_string(without_nan_sign(value));
  };
  if (loss != nullptr) add("loss", loss->loss);
  if (loss != nullptr && loss->activations.num_layers() > 0)
    add("active experts", loss->activations.summary().mean);
  for (const auto& [name, value] : measured) add(name, value);
  return "validation at step " + std::to_string(step) + ":" + parts;
}

std::string skipped_line(const StepResult& result, const std::string& output) {
  return "step " + std::to_string(result.step) +
         " was skipped: its loss or gradient is not finite or too large (" +
         std::to_string(result.consecutive_skips) + " in a row); see dtopp replay " + output + " --step " +
         std::to_string(result.step);
}

std::string out_of_memory_line(const config::RunConfig& config, std::optional<int64_t> planned) {
  const int64_t size = config.training.micro_batch_size;
  const bool recomputes = config.training.recompute == config::Recompute::kLayer;
  const std::string smaller = size == 1
                                  ? "make the model smaller"
                                  : "lower training.micro_batch_size to " +
                                        std::to_string(planned && *planned < size ? *planned : size / 2);
  return "out of memory with training.micro_batch_size=" + std::to_string(size) + ": " +
         (recomputes ? "" : "set training.recompute to layer, or ") + smaller;
}

std::string given_up_line(const config::RunConfig& config, const StepResult& result,
                          const std::filesystem::path& checkpoint) {
  return "step " + std::to_string(result.step) + ": " + std::to_string(result.consecutive_skips) +
         " non-finite steps in a row (training.max_skips " + std::to_string(config.training.max_skips) +
         "); lower optimizer.lr or check the data; the parameters before the skipped steps are in " +
         checkpoint.string();
}

}  // namespace dtopp::train
