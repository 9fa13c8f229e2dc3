#include "dtopp/optim/optimizer.h"

#include <map>
#include <numbers>

#include "dtopp/ops/optimizer/orthogonalize.h"

namespace dtopp::optim {
namespace {

// The progress of `step` from `begin` to `end`, from 0 to 1.
double progress(int64_t step, int64_t begin, int64_t end) {
  const int64_t length = std::max<int64_t>(end - begin, 1);
  return std::clamp(static_cast<double>(step - begin) / static_cast<double>(length), 0.0, 1.0);
}

// Exactly lr and min_lr at the ends.
double along_line(const config::OptimizerConfig& config, double share) {
  return std::lerp(config.lr, config.min_lr, share);
}

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
    const Tensor skipped = scalars.applied.logical_not().to(at::kFloat);
    for (const auto& [router, decay] :
         {std::pair(false, true), {false, false}, {true, true}, {true, false}}) {
      std::vector<Tensor> parameters, gradients, exp_avg, exp_avg_sq;
      for (const ParameterShard& shard : shards) {
        if (shard.spec->is_router() != router || shard.spec->weight_decay() != decay) continue;
        for (const distributed::ElementRange& range : join(shard.updates)) {
          const auto part = [&](const Tensor& x) { return x.narrow(0, range.begin, range.size()); };
          parameters.push_back(part(shard.main_param));
          gradients.push_back(part(shard.gradient));
          exp_avg.push_back(part(shard.slots[0]));
          exp_avg_sq.push_back(part(shard.slots[1]));
        }
      }
      if (parameters.empty()) continue;
      const std::vector<Tensor> updates(parameters.size(), scalars.updates);
      at::_fused_adamw_(parameters, gradients, exp_avg, exp_avg_sq, {}, updates,
                        router ? scalars.rates.router : scalars.rates.lr, config_.betas[0], config_.betas[1],
                        decay ? config_.weight_decay : 0.0, config_.eps, /*amsgrad=*/false,
                        /*maximize=*/false, scalars.divisor, /*found_inf=*/skipped);
    }
  }

 private:
  config::OptimizerConfig config_;
};

// An update then has the root mean square of AdamW's, whose rate it can have.
// Source: Liu et al., Muon is Scalable for LLM Training (arXiv 2502.16982), section 2.2
constexpr double kUpdateRms = 0.2;
constexpr int64_t kElementsAtOnce = int64_t{1} << 22, kMatricesAtOnce = 64;

class Muon final : public Optimizer {
 public:
  Muon(const config::OptimizerConfig& config, bool bf16) : config_(config), adamw_(config), bf16_(bf16) {}

  std::vector<std::string> slots(const parameters::ParameterSpec& spec) const override {
    return applies_to(spec) ? std::vector<std::string>{"momentum_buffer"} : adamw_.slots(spec);
  }

  distributed::ShardPolicy shard_policy(const parameters::ParameterSpec& spec) const override {
    return applies_to(spec) ? distributed::ShardPolicy::kWholeMatrix : distributed::ShardPolicy::kElements;
  }

  double flops(const parameters::ParameterSpec& spec) const override {
    if (!applies_to(spec)) return 0;
    const Shape shape = shape_of(spec);
    const int64_t matrices = spec.count() / (shape.rows * shape.columns);
    return static_cast<double>(matrices) *
           ops::orthogonalize_flops(static_cast<double>(shape.rows), static_cast<double>(shape.columns));
  }

  void step(std::span<const ParameterShard> shards, const StepScalars& scalars) const override {
    std::vector<ParameterShard> others;
    std::map<Shape, std::vector<Matrices>> by_shape;
    for (const ParameterShard& shard : shards) {
      if (!applies_to(*shard.spec)) {
        others.push_back(shard);
        continue;
      }
      const Shape shape = shape_of(*shard.spec);
      const auto matrices = [&](const Tensor& x) { return x.view({-1, shape.rows, shape.columns}); };
      const Matrices all{matrices(shard.main_param), matrices(shard.gradient), matrices(shard.slots[0])};
      const int64_t most = shape.most_at_once();
      for (int64_t first = 0; first < all.main_param.size(0); first += most)
        by_shape[shape].push_back(all.part(first, std::min(most, all.main_param.size(0) - first)));
    }
    adamw_.step(others, scalars);
    for (const auto& [shape, parts] : by_shape) {
      const int64_t most = shape.most_at_once();
      for (size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
        for (int64_t count = 0; end < parts.size(); ++end) {
          count += parts[end].main_param.size(0);
          if (end > begin && count > most) break;
        }
        update(std::span(parts).subspan(begin, end - begin), shape, scalars);
      }
    }
  }

 private:
  struct Shape {
    int64_t rows, columns;
    int64_t most_at_once() const { return std::max(kElementsAtOnce / (rows * columns), kMatricesAtOnce); }
    auto operator<=>(const Shape&) const = default;
  };
  // [n, rows, columns] each
  struct Matrices {
    Tensor main_param, gradient, momentum;
    Matrices part(int64_t first, int64_t count) const {
      return {main_param.narrow(0, first, count), gradient.narrow(0, first, count),
              momentum.narrow(0, first, count)};
    }
  };

  static Shape shape_of(const parameters::ParameterSpec& spec) {
    return {spec.shape.end()[-2] / spec.stacked, spec.shape.end()[-1]};
  }
  // A single row or column is no matrix: its step would have the same length for any gradient.
  static bool applies_to(const parameters::ParameterSpec& spec) {
    using enum parameters::ParameterRole;
    if (spec.role != kMatrix && spec.role != kExpert) return false;
    const Shape shape = shape_of(spec);
    return shape.rows > 1 && shape.columns > 1;
  }

  // Calls body(part, first) for parts of `parts`, whose first matrix has that number. On a CPU a part is one
  // matrix, which one thread updates: the tail of a vectorized loop must not depend on the other matrices.
  template <typename Body>
  static void for_parts(std::span<const Matrices> parts, const Body& body) {
    int64_t first = 0;
    for (const Matrices& part : parts) {
      const int64_t count = part.main_param.size(0);
      if (part.main_param.is_cpu()) {
        at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
          const at::AutoDispatchBelowADInplaceOrView guard;
          for (int64_t i = begin; i < end; ++i) body(part.part(i, 1), first + i);
        });
      } else {
        body(part, first);
      }
      first += count;
    }
  }

  // In a step that is not applied, the momentum stands in for the gradient, and nothing moves.
  void update(std::span<const Matrices> parts, const Shape& shape, const StepScalars& scalars) const {
    int64_t count = 0;
    for (const Matrices& part : parts) count += part.main_param.size(0);
    const Tensor directions = at::empty({count, shape.rows, shape.columns}, parts[0].main_param.options());
    for_parts(parts, [&](const Matrices& part, int64_t first) {
      const Tensor gradient = at::where(scalars.applied, part.gradient / scalars.divisor, part.momentum);
      part.momentum.lerp_(gradient, 1 - config_.momentum);
      directions.narrow(0, first, part.main_param.size(0))
          .copy_(gradient.lerp(part.momentum, config_.momentum));
    });
    const Tensor steps = ops::orthogonalize(directions, bf16_);
    const double lr = scalars.rates.lr;
    const double scale = kUpdateRms * std::sqrt(static_cast<double>(std::max(shape.rows, shape.columns)));
    const Tensor applied = scalars.applied.to(at::kFloat);
    const Tensor kept = at::where(scalars.applied, 1 - lr * config_.weight_decay, 1.0).to(at::kFloat);
    for_parts(parts, [&](const Matrices& part, int64_t first) {
      part.main_param.mul_(kept).addcmul_(steps.narrow(0, first, part.main_param.size(0)), applied,
                                          -lr * scale);
    });
  }

  config::OptimizerConfig config_;
  AdamW adamw_;
  bool bf16_;
};

}  // namespace

double learning_rate(const config::OptimizerConfig& config, int64_t step, int64_t steps) {
  if (step < config.warmup_steps)
    return config.lr * static_cast<double>(step) / static_cast<double>(config.warmup_steps);
  switch (config.schedule) {
    case config::Schedule::kCosine:
      return config.min_lr +
             (config.lr - config.min_lr) * 0.5 *
                 (1.0 + std::cos(std::numbers::pi * progress(step, config.warmup_steps, steps)));
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

std::unique_ptr<Optimizer> make_optimizer(const config::OptimizerConfig& config, bool bf16) {
  if (config.method == config::OptimizerMethod::kMuon) return std::make_unique<Muon>(config, bf16);
  return std::make_unique<AdamW>(config);
}

}  // namespace dtopp::optim
