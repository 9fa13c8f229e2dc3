// AdamW with decoupled weight decay (Loshchilov and Hutter 2019).
#include <utility>

#include "dtopp/optim/optimizer.h"

namespace dtopp::optim {
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
