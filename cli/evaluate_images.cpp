#include <algorithm>
#include <memory>

#include <nlohmann/json.hpp>

#include "cli/evaluate.h"
#include "cli/option_checks.h"
#include "cli/stop_signals.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/stop_scope.h"
#include "dtopp/eval/evaluation.h"

namespace dtopp::cli {
namespace {

struct ImagesOptions : EvaluateOptions {
  std::string images;  // a folder of prepared images
  std::string dump;
  int64_t limit = 0;  // maximum of images; 0: no limit
};

// Measures the raw parameters or their EMA. Thresholds are solved first if targets_of returns targets.
models::ValidationResult measure(const EvaluateOptions& options, inference::ParameterKind kind,
                                 inference::DiffusionModel& model, const models::TrainingData& data,
                                 int64_t images, distributed::Collectives& ranks) {
  model.routing.ranks = &ranks;
  const auto targets = inference::targets_of(model.config, kind, options.inference.target_experts);
  if (!targets.empty()) model.routing = eval::solve_for_images(model, data, targets);
  ConsoleWatch watch(ranks);
  watch.begin(kind == inference::ParameterKind::kRaw ? "images" : "EMA", "images",
              static_cast<uint64_t>(images));
  return eval::measure_diffusion(model, model.routing, data, images, options.batch_size, ranks, watch);
}

models::TrainingData open_images(const ImagesOptions& options, const checkpoint::Checkpoint& checkpoint,
                                 const config::RunConfig& config) {
  const StopScope begins(stop_token());
  return eval::open_evaluation_images(checkpoint, config, options.images);
}

void evaluate_images(const ImagesOptions& options, distributed::Collectives& ranks) {
  if (!options.dump.empty() && ranks.size() > 1)
    throw UsageError("--dump: needs a single process; omit --processes");
  const checkpoint::Checkpoint checkpoint =
      open_shared_checkpoint(options, config::ModelType::kDiffusionTransformer, ranks);
  const at::Device device = set_up_device(options.inference);
  inference::DiffusionModel model =
      inference::load_diffusion_model(checkpoint, inference::ParameterKind::kRaw, device);
  const models::TrainingData data = open_images(options, checkpoint, model.config);
  eval::DiffusionEvaluation evaluation;
  const auto all = static_cast<int64_t>(data.validation_samples);
  evaluation.images = options.limit > 0 ? std::min(options.limit, all) : all;
  require_same_work(options, checkpoint, {{"images", evaluation.images}, {"hash", data.validation_hashes}},
                    ranks);
  nlohmann::ordered_json json = {{"folder", options.images}, {"images", evaluation.images}};
  const std::string kind =
      evaluation.images < all ? "images-first-" + std::to_string(evaluation.images) : "images";
  const std::filesystem::path file = output_file(options, kind_of(kind, {options.images}),
                                                 evaluated_model(options, checkpoint, {}), ranks, json);
  evaluation.raw = measure(options, inference::ParameterKind::kRaw, model, data, evaluation.images, ranks);
  const tasks::EvaluatedModel evaluated = evaluated_model(options, checkpoint, model.routing);
  if (!options.dump.empty()) {
    ConsoleWatch watch(ranks);
    watch.begin("dump", "images", static_cast<uint64_t>(evaluation.images));
    eval::dump_predictions(model, data, evaluation.images, options.batch_size, options.dump, watch);
  }
  if (model.config.diffusion.ema_decay != 0) {
    model = inference::load_diffusion_model(checkpoint, inference::ParameterKind::kEma, device);
    evaluation.ema = measure(options, inference::ParameterKind::kEma, model, data, evaluation.images, ranks);
  }
  if (ranks.rank() > 0) return;
  json.update(to_json(evaluation));
  report(options, file, labeled(evaluated, json), eval::format_table(evaluation));
}

}  // namespace

void add_evaluate_images(CLI::App& evaluate) {
  auto options = std::make_shared<ImagesOptions>();
  CLI::App* verb =
      evaluate.add_subcommand("images", "Measure the loss of a diffusion transformer on held-out images");
  add_checkpoint_options(*verb, options->inference);
  verb->add_option("--target-experts", options->inference.target_experts,
                   "mean number of active experts per token, for which p is solved on the first images")
      ->check(positive<double>());
  verb->add_option("--images", options->images, "folder of prepared images")->required();
  verb->add_option("--limit", options->limit, "measure only the first LIMIT images")
      ->check(positive<int64_t>());
  verb->add_option("--dump", options->dump, "write images, noise, t and predictions to this safetensors file")
      ->check(in_existing_folder());
  add_evaluate_options(*verb, *options);
  verb->get_option("--dump")->excludes(verb->get_option("--processes"));
  verb->callback([options] {
    evaluate_on_ranks(*options, [&](distributed::Collectives& ranks) { evaluate_images(*options, ranks); });
  });
}

}  // namespace dtopp::cli
