#include "dtopp/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace dtopp::optim {
namespace {

// The progress of `step` from `begin` to `end`, from 0 to 1.
double progress(int64_t step, int64_t begin, int64_t end) {
  const int64_t length = std::max<int64_t>(end - begin, 1);
  return std::clamp(static_cast<double>(step - begin) / static_cast<double>(length), 0.0, 1.0);
}

double along_cosine(const config::OptimizerConfig& config, double share) {
  return config.min_lr + (config.lr - config.min_lr) * 0.5 * (1.0 + std::cos(std::numbers::pi * share));
}

// Exactly lr and min_lr at the ends.
double along_line(const config::OptimizerConfig& config, double share) {
  return std::lerp(config.lr, config.min_lr, share);
}

}  // namespace

double learning_rate(const config::OptimizerConfig& config, int64_t step, int64_t steps) {
  if (step < config.warmup_steps)
    return config.lr * static_cast<double>(step) / static_cast<double>(config.warmup_steps);
  switch (config.schedule) {
    case config::Schedule::kCosine:
      return along_cosine(config, progress(step, config.warmup_steps, steps));
    case config::Schedule::kLinear:
      return along_line(config, progress(step, config.warmup_steps, steps));
    case config::Schedule::kWsd:
      return along_line(config, progress(step, steps - config.decay_steps, steps));
    case config::Schedule::kConstant:
      break;
  }
  return config.lr;
}

LearningRates learning_rates(const config::OptimizerConfig& config, int64_t step, int64_t steps) {
  const double lr = learning_rate(config, step, steps);
  return {lr, lr * config.router_lr_factor * progress(step, 0, config.router_warmup_steps)};
}

// AdamW with decoupled weight decay (Loshchilov and Hutter 2019).

namespace {

// A range of this many numbers or a multiple has no tail in at::_fused_adamw_, whose threads take whole cache
// lines. Each number then has the same bits in any longer range.
constexpr int64_t kWithoutTail = 64;

// Joins ranges that follow each other if that changes no bit: each tensor costs the host as long as the
// update of thousands of numbers.
std::vector<distributed::ElementRange> join(const std::vector<distributed::ElementRange>& ranges) {
  std::vector<distributed::ElementRange> joined;
  for (const distributed::ElementRange& range : ranges) {
    if (!joined.empty() && joined.back().end == range.begin && joined.back().size() % kWithoutTail == 0) {
      joined.back().end = range.end;
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

class AdamW final : public Optimizer {
 public:
  explicit AdamW(const config::OptimizerConfig& config) : config_(config) {}

  std::vector<std::string> slots(const parameters::ParameterSpec& /*spec*/) const override {
    return {"exp_avg", "exp_avg_sq"};
  }

  void step(std::span<const ParameterShard> shards, const StepScalars& scalars) const override {
    const at::Tensor skipped = scalars.applied.logical_not().to(at::kFloat);
    for (const auto& [router, decay] :
         {std::pair(false, true), {false, false}, {true, true}, {true, false}}) {
      std::vector<at::Tensor> parameters, gradients, exp_avg, exp_avg_sq;
      for (const ParameterShard& shard : shards) {
        if (shard.spec->is_router() != router || shard.spec->weight_decay() != decay) continue;
        for (const distributed::ElementRange& range : join(shard.updates)) {
          const auto part = [&](const at::Tensor& x) { return x.narrow(0, range.begin, range.size()); };
          parameters.push_back(part(shard.main_param));
          gradients.push_back(part(shard.gradient));
          exp_avg.push_back(part(shard.slots[0]));
          exp_avg_sq.push_back(part(shard.slots[1]));
        }
      }
      if (parameters.empty()) continue;
      const std::vector<at::Tensor> updates(parameters.size(), scalars.updates);
      at::_fused_adamw_(parameters, gradients, exp_avg, exp_avg_sq, {}, updates,
                        router ? scalars.rates.router : scalars.rates.lr, config_.betas[0], config_.betas[1],
                        decay ? config_.weight_decay : 0.0, config_.eps, /*amsgrad=*/false,
                        /*maximize=*/false, scalars.divisor, /*found_inf=*/skipped);
    }
  }

 private:
  config::OptimizerConfig config_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const config::OptimizerConfig& config) {
  return std::make_unique<AdamW>(config);
}

}  // namespace dtopp::optim
