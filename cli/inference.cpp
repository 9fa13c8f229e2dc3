#include "cli/inference.h"

#include "cli/console.h"
#include "cli/option_checks.h"
#include "dtopp/base/errors.h"
#include "dtopp/data/text/prepare_text.h"
#include "dtopp/device/device.h"
#include "dtopp/inference/expert_budget.h"
#include "dtopp/runs/run_directory.h"

namespace dtopp::cli {

void add_checkpoint_option(CLI::App& command, InferenceOptions& options) {
  command
      .add_option("checkpoint", options.checkpoint,
                  "checkpoint, or run directory (its newest checkpoint is used)")
      ->required();
}

void add_checkpoint_options(CLI::App& command, InferenceOptions& options) {
  add_checkpoint_option(command, options);
  command.add_option("--device", options.device, "device: auto, cpu or cuda")
      ->transform(choice<config::Device>())
      ->default_str("auto");
  add_checked(command, "--threads", options.threads, "number of CPU threads; 0: one per core",
              not_negative<int64_t>());
}

void add_inference_options(CLI::App& command, InferenceOptions& options, const std::string& default_text) {
  add_checkpoint_options(command, options);
  add_precision_option(command, options);
  command.add_option("--tokenizer", options.tokenizer, "tokenizer.json file, for a checkpoint without one");
  add_checked(command, "--target-experts", options.target_experts,
              "mean number of active experts per token; p is solved for it", positive<double>());
  command.add_option("--target-text", options.target_text,
                     "text file on which p is solved for --target-experts (default: " + default_text + ")");
}

void add_precision_option(CLI::App& command, InferenceOptions& options) {
  command
      .add_option("--precision", options.precision,
                  "number format of the weights and products: fp32, bf16 (half the memory), or auto: bf16 if "
                  "the device has instructions for it")
      ->transform(choice<config::Precision>())
      ->default_str("fp32");
}

checkpoint::Checkpoint open_named_checkpoint(const InferenceOptions& options, config::ModelType type) {
  checkpoint::Checkpoint checkpoint = runs::open_checkpoint(options.checkpoint, ConsoleLog(stderr));
  if (checkpoint.config().model.type == type) return checkpoint;
  const char* what = type == config::ModelType::kLanguageModel
                         ? ": the model is a diffusion transformer; use sample, or evaluate images"
                         : ": the model is a language model; use generate, or evaluate text";
  throw UsageError(checkpoint.path(), what);
}

at::Device set_up_device(const InferenceOptions& options) {
  const at::Device device = device::compute_device(options.device, "--device");
  if (options.threads > 0) at::set_num_threads(static_cast<int>(options.threads));
  if (!device.is_cpu())
    std::fprintf(stderr, "dtopp: computing on %s\n", device::describe_device(device).c_str());
  return device;
}

at::ScalarType compute_type(const InferenceOptions& options) {
  return device::compute_type(options.precision, device::compute_device(options.device, "--device"));
}

eval::EvaluationText open_texts(const InferenceOptions& options, const std::vector<std::string>& paths,
                                const checkpoint::Checkpoint& checkpoint, const config::ModelConfig& config) {
  const StopScope begins(stop_token());
  std::optional<eval::EvaluationText> all;
  for (const std::string& path : paths) {
    eval::EvaluationText text =
        eval::is_token_data(path)
            ? eval::EvaluationText(path, config.vocab_size)
            : eval::EvaluationText(
                  path, inference::load_tokenizer(checkpoint, options.tokenizer, config.vocab_size));
    if (all)
      all->append(std::move(text));
    else
      all.emplace(std::move(text));
  }
  if (paths.size() > 1) all->source_names();  // fails early if a path occurs twice
  return std::move(*all);
}

inference::InferenceModel load_model(const InferenceOptions& options,
                                     const checkpoint::Checkpoint& checkpoint) {
  return inference::load_inference_model(checkpoint, set_up_device(options), compute_type(options));
}

Tensor target_windows(const InferenceOptions& options, const checkpoint::Checkpoint& checkpoint,
                      const config::ModelConfig& config, const eval::EvaluationText* text) {
  if (!options.target_text.empty()) {
    const auto ids = data::encode_file(
        options.target_text, inference::load_tokenizer(checkpoint, options.tokenizer, config.vocab_size));
    return inference::solving_windows(ids, config.sequence_length, options.target_text);
  }
  if (text != nullptr) return text->beginning(config.sequence_length);
  const std::vector<config::DataSource> validation = checkpoint.config().data.validation;
  if (validation.empty())
    throw UsageError(
        "--target-text: is missing, and the run has no validation data; p is solved for another number of "
        "experts on this text file");
  return eval::EvaluationText(validation.front().path, config.vocab_size).beginning(config.sequence_length);
}

void meet_target(inference::InferenceModel& model, const InferenceOptions& options,
                 const checkpoint::Checkpoint& checkpoint, const eval::EvaluationText* text) {
  if (options.target_experts == 0) {
    if (!options.target_text.empty()) throw UsageError("--target-text: needs --target-experts");
    return;
  }
  const Tensor windows_BL = target_windows(options, checkpoint, model.config.model, text);
  model.routing = solve_thresholds(model, windows_BL, options.target_experts);
}

}  // namespace dtopp::cli
