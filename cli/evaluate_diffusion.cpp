#include <algorithm>

#include <nlohmann/json.hpp>

#include "cli/evaluate.h"
#include "dtopp/base/errors.h"
#include "dtopp/distributed/groups/rank_agreement.h"
#include "dtopp/eval/evaluation.h"

namespace dtopp::cli {
namespace {

// Measures the raw parameters or their EMA. Thresholds are solved first if targets_of returns targets.
ValidationResult measure(const EvaluateOptions& options, ParameterKind kind, DiffusionModel& model,
                         const TrainingData& data, int64_t images, Collectives& ranks) {
  model.routing.agree = agreement(ranks);
  const auto targets = targets_of(model.config, kind, options.inference.target_experts);
  if (!targets.empty()) model.routing = solve_for_images(model, data, targets);
  const char* label = kind == ParameterKind::kRaw ? "diffusion" : "EMA";
  return measure_diffusion(model, model.routing, data, images, options.batch_size, ranks,
                           watch(label, "images", static_cast<uint64_t>(images), ranks));
}

}  // namespace

void evaluate_diffusion(const EvaluateOptions& options, Collectives& ranks) {
  if (!options.dump.empty() && ranks.size() > 1)
    throw UsageError("--dump: needs a single process; omit --processes");
  const Checkpoint checkpoint = open_shared_checkpoint(options, ranks);
  const at::Device device = set_up_device(options.inference);
  DiffusionModel model = load_diffusion_model(checkpoint, ParameterKind::kRaw, device);
  const TrainingData data = open_evaluation_images(checkpoint, model.config, options.images);
  DiffusionEvaluation evaluation;
  const auto all = static_cast<int64_t>(data.validation_samples);
  evaluation.images = options.limit > 0 ? std::min(options.limit, all) : all;
  require_same_work(options, checkpoint, {{"images", evaluation.images}, {"hash", data.content_hashes}},
                    ranks);
  evaluation.raw = measure(options, ParameterKind::kRaw, model, data, evaluation.images, ranks);
  if (!options.dump.empty())
    dump_predictions(model, data, evaluation.images, options.batch_size, options.dump,
                     watch("dump", "images", static_cast<uint64_t>(evaluation.images), ranks));
  if (model.config.diffusion.ema_decay != 0) {
    model = load_diffusion_model(checkpoint, ParameterKind::kEma, device);
    evaluation.ema = measure(options, ParameterKind::kEma, model, data, evaluation.images, ranks);
  }
  if (ranks.rank() == 0) report(options, to_json(evaluation), format_table(evaluation));
}

}  // namespace dtopp::cli
