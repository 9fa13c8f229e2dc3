#include "dtopp/config/optimizer_config.h"

#include "dtopp/config/config.h"
#include "dtopp/config/value_bounds.h"

namespace dtopp::config {
namespace {

using detail::print_value;

void validate_schedule(const OptimizerConfig& config, int64_t steps) {
  require_at_least("optimizer.warmup_steps", 0, config.warmup_steps);
  if (config.warmup_steps > steps)
    throw InvalidValue("optimizer.warmup_steps",
                       print_value(config.warmup_steps) + " is above training.steps " + print_value(steps));
  require_at_least("optimizer.decay_steps", 0, config.decay_steps);
  if (config.schedule != Schedule::kWsd) return;
  if (config.decay_steps == 0)
    throw InvalidValue("optimizer.decay_steps",
                       "is not set; schedule wsd needs the number of last steps in which lr falls to min_lr");
  if (config.decay_steps > steps - config.warmup_steps)
    throw InvalidValue("optimizer.decay_steps",
                       print_value(config.decay_steps) + " is above training.steps " + print_value(steps) +
                           " minus optimizer.warmup_steps " + print_value(config.warmup_steps));
}

}  // namespace

void validate(const OptimizerConfig& config, int64_t steps) {
  if (!(config.lr > 0)) throw InvalidValue("optimizer.lr", "must be above 0, is " + print_value(config.lr));
  require_not_negative("optimizer.min_lr", config.min_lr);
  if (config.min_lr > config.lr)
    throw InvalidValue("optimizer.min_lr",
                       print_value(config.min_lr) + " is above optimizer.lr " + print_value(config.lr));
  validate_schedule(config, steps);
  if (!(config.router_lr_factor > 0))
    throw InvalidValue("optimizer.router_lr_factor",
                       "must be above 0, is " + print_value(config.router_lr_factor));
  require_at_least("optimizer.router_warmup_steps", 0, config.router_warmup_steps);
  if (config.betas.size() != 2) throw InvalidValue("optimizer.betas", "must be two numbers, [0.9, 0.95]");
  for (const double beta : config.betas) {
    if (!(beta >= 0 && beta < 1))
      throw InvalidValue("optimizer.betas", "must lie in [0, 1), one is " + print_value(beta));
  }
  if (!(config.eps > 0)) throw InvalidValue("optimizer.eps", "must be above 0");
  require_not_negative("optimizer.weight_decay", config.weight_decay);
  require_not_negative("optimizer.grad_clip", config.grad_clip);
}

}  // namespace dtopp::config
