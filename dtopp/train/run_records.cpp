#include "dtopp/train/run_records.h"

#include <chrono>
#include <numeric>

#include "dtopp/base/format.h"
#include "dtopp/models/mixed_sources.h"
#include "dtopp/runs/count_ranges.h"

namespace dtopp::train {
namespace {

std::string layer_key(size_t layer, const char* name) { return format("layer_%02zu/%s", layer, name); }

void add_activations(const std::string& prefix, const moe::ActivationSummary& summary,
                     runs::MetricRecord& record) {
  record.values.emplace_back(prefix + "active_experts", summary.mean);
  record.values.emplace_back(prefix + "active_experts_std", summary.deviation);
  record.values.emplace_back(prefix + "imbalance", summary.imbalance);
  record.values.emplace_back(prefix + "dead_experts", static_cast<double>(summary.dead_experts));
}

// The value that all layers share, or their mean.
double shared_or_mean(const std::vector<double>& values) {
  if (values.size() == 1) return values[0];
  double mean = 0;
  for (const double value : values) mean += value / static_cast<double>(values.size());
  return mean;
}

// Shares of all (token, layer) pairs.
void add_shares(const moe::ActivationStatistics& activations, bool may_be_empty, runs::MetricRecord& record) {
  const at::Tensor histogram = activations.histogram().sum(0).cpu();
  const auto* pairs_N = histogram.const_data_ptr<int64_t>();
  const auto all = static_cast<double>(activations.tokens() * activations.num_layers());
  for (const runs::CountRange& range : runs::count_ranges(histogram.numel() - 1)) {
    const int64_t pairs = std::reduce(pairs_N + range.first, pairs_N + range.last + 1);
    record.values.emplace_back(range.metric(), static_cast<double>(pairs) / all);
  }
  if (may_be_empty) record.values.emplace_back("moe/empty_share", static_cast<double>(pairs_N[0]) / all);
}

void add_routing(const StepResult& result, const config::ModelConfig& model, runs::MetricRecord& record) {
  auto& values = record.values;
  const moe::ActivationSummary all = result.activations.summary();
  add_activations("moe/", all, record);
  if (model.shared_experts > 0)
    values.emplace_back("moe/active_ffn", all.mean + static_cast<double>(model.shared_experts));
  values.emplace_back("moe/token_mean_std", result.activations.token_mean_deviation());
  // Otherwise every token has the same number of experts.
  const bool may_be_empty = model.zero_experts > 0 || result.may_select_none;
  if (may_be_empty || result.router_values("threshold") != nullptr)
    add_shares(result.activations, may_be_empty, record);
  for (const auto& [name, by_layer] : result.router)
    values.emplace_back("moe/" + name, shared_or_mean(by_layer));
  for (size_t layer = 0; layer < static_cast<size_t>(result.activations.num_layers()); ++layer) {
    add_activations("moe/" + layer_key(layer, ""), result.activations.summary(static_cast<int64_t>(layer)),
                    record);
    for (const auto& [name, by_layer] : result.router)
      values.emplace_back("moe/" + layer_key(layer, name.c_str()), by_layer[by_layer.size() > 1 ? layer : 0]);
    if (!result.scales.empty()) values.emplace_back("moe/" + layer_key(layer, "scale"), result.scales[layer]);
  }
}

void add_held_out_routing(const std::string& prefix, const moe::ActivationStatistics& activations,
                          runs::MetricRecord& record) {
  if (activations.num_layers() == 0) return;
  const moe::ActivationSummary all = activations.summary();
  record.values.emplace_back(prefix + "active_experts", all.mean);
  record.values.emplace_back(prefix + "active_experts_std", all.deviation);
  record.values.emplace_back(prefix + "token_mean_std", activations.token_mean_deviation());
}

}  // namespace

runs::MetricRecord record_now(int64_t step, int64_t tokens) {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return {step, tokens, std::chrono::duration<double>(since_1970).count(), {}};
}

void add_step(const StepResult& result, const config::ModelConfig& model, runs::MetricRecord& record) {
  auto& values = record.values;
  values.emplace_back("train/loss", result.loss);
  for (const auto& [name, value] : result.losses) values.emplace_back("train/" + name, value);
  values.emplace_back("train/lr", result.lr);
  values.emplace_back("train/grad_norm", result.grad_norm);
  values.emplace_back("train/skipped_steps", static_cast<double>(result.skipped_steps));
  if (result.activations.num_layers() > 0) add_routing(result, model, record);
}

void add_sources(const models::TrainingData& data, int64_t position, runs::MetricRecord& record) {
  if (!data.sources) return;
  for (const models::SourceUse& use : data.sources->use(static_cast<uint64_t>(position))) {
    record.values.emplace_back("data/" + use.name + "/share", use.share);
    record.values.emplace_back("data/" + use.name + "/epoch", use.epochs);
  }
}

void add_work(const StepResult& result, const plan::Plan& plan, runs::MetricRecord& record) {
  const auto tokens = static_cast<double>(result.tokens), pairs = static_cast<double>(result.assignments);
  const auto layers = static_cast<double>(result.activations.num_layers());
  double flops = tokens * static_cast<double>(plan.fixed_flops_per_token);
  if (layers > 0) {
    flops += pairs * (static_cast<double>(plan.flops_per_expert) / layers);
    record.values.emplace_back("train/active_experts_mean", pairs / (tokens * layers));
  }
  record.values.emplace_back("train/active_flops", flops);
}

void add_rates(const StepRates& rates, double data_share, runs::MetricRecord& record) {
  auto& values = record.values;
  values.emplace_back("throughput/tokens_per_second", rates.tokens_per_second);
  values.emplace_back("throughput/seconds", rates.seconds);
  values.emplace_back("throughput/tflops", rates.tflops);
  if (rates.mfu) values.emplace_back("throughput/mfu", *rates.mfu);
  values.emplace_back("throughput/data_share", data_share);
  values.emplace_back("memory/resident_bytes", static_cast<double>(rates.memory_bytes));
  values.emplace_back("memory/peak_bytes", static_cast<double>(rates.memory_peak_bytes));
  if (rates.sent_bytes) values.emplace_back("comm/bytes", *rates.sent_bytes);
  if (rates.exposed_share) values.emplace_back("comm/exposed_share", *rates.exposed_share);
}

void add_saving(const SaveTimes& times, runs::MetricRecord& record) {
  record.values.emplace_back("checkpoint/stall_seconds", times.stall);
  record.values.emplace_back("checkpoint/write_seconds", times.write);
}

void add_validation(const models::ValidationResult& result, runs::MetricRecord& record) {
  record.values.emplace_back("val/loss", result.loss);
  if (result.ema_loss) record.values.emplace_back("val/ema_loss", *result.ema_loss);
  for (const models::ValidationGroup& group : result.groups) {
    record.values.emplace_back("val/loss_" + group.name, group.loss);
    if (group.active_experts_L.empty()) continue;
    double sum = 0;
    for (const double active : group.active_experts_L) sum += active;
    record.values.emplace_back("val/active_experts_" + group.name,
                               sum / static_cast<double>(group.active_experts_L.size()));
  }
  add_held_out_routing("val/", result.activations, record);
  for (int64_t layer = 0; layer < result.activations.num_layers(); ++layer) {
    record.values.emplace_back("val/" + layer_key(static_cast<size_t>(layer), "active_experts"),
                               result.activations.summary(layer).mean);
  }
  if (result.mixture_loss) record.values.emplace_back("val/mixture_loss", *result.mixture_loss);
  for (const models::ValidationSource& source : result.sources) {
    const std::string prefix = "val/" + source.name + "/";
    record.values.emplace_back(prefix + "loss", source.loss);
    add_held_out_routing(prefix, source.activations, record);
  }
}

}  // namespace dtopp::train
