#include "cli/inference.h"

#include <cstdio>

#include "cli/option_checks.h"
#include "dtopp/base/errors.h"
#include "dtopp/data/text_preparation/encode_file.h"
#include "dtopp/device/compute_device.h"
#include "dtopp/device/device.h"
#include "dtopp/inference/expert_budget.h"
#include "dtopp/runs/run_directory.h"

namespace dtopp::cli {

void add_checkpoint_options(CLI::App& verb, InferenceOptions& options) {
  verb.add_option("checkpoint", options.checkpoint, "a checkpoint, or a run directory (its newest one)")
      ->required();
  verb.add_option("--device", options.device, "where to compute: auto, cpu or cuda")
      ->transform(choice<Device>())
      ->default_str("auto");
  verb.add_option("--threads", options.threads, "0: every core")->check(CLI::NonNegativeNumber);
}

void add_inference_options(CLI::App& verb, InferenceOptions& options) {
  add_checkpoint_options(verb, options);
  verb.add_option("--tokenizer", options.tokenizer, "a tokenizer.json, if the checkpoint holds none");
  verb.add_option("--target-experts", options.target_experts,
                  "active experts a token on average: p is solved for this number on --target-text")
      ->check(finite_number())
      ->check(CLI::PositiveNumber);
  verb.add_option("--target-text", options.target_text, "the text file on which --target-experts holds");
}

Checkpoint open_named_checkpoint(const InferenceOptions& options, ModelType type) {
  Checkpoint checkpoint = open_checkpoint(options.checkpoint, [](const std::string& text) {
    std::fprintf(stderr, "dtopp: warning: %s\n", text.c_str());
  });
  require_type(checkpoint, type);
  return checkpoint;
}

void require_type(const Checkpoint& checkpoint, ModelType type) {
  if (checkpoint.config().model.type == type) return;
  const char* what =
      type == ModelType::kLanguageModel
          ? ": a diffusion transformer makes no text; use sample, or evaluate --tasks diffusion"
          : ": a language model makes no pictures; use generate, or evaluate with other --tasks";
  throw UsageError(checkpoint.path().string() + what);
}

at::Device set_up_device(const InferenceOptions& options) {
  const at::Device device = compute_device(options.device, "--device");
  if (options.threads > 0) at::set_num_threads(static_cast<int>(options.threads));
  if (!device.is_cpu()) std::fprintf(stderr, "dtopp: computing on %s\n", describe_device(device).c_str());
  return device;
}

InferenceModel load_model(const InferenceOptions& options, const Checkpoint& checkpoint) {
  return load_inference_model(checkpoint, set_up_device(options));
}

at::Tensor target_windows(const InferenceOptions& options, const Checkpoint& checkpoint,
                          const ModelConfig& config, const EvaluationText* text) {
  if (options.target_text.empty()) {
    if (text == nullptr) throw UsageError("another number of experts needs --target-text FILE to solve p on");
    return text->beginning(config.sequence_length);
  }
  const auto ids =
      encode_file(options.target_text, load_tokenizer(checkpoint, options.tokenizer, config.vocab_size));
  return solving_windows(ids, config.sequence_length, options.target_text);
}

void meet_target(InferenceModel& model, const InferenceOptions& options, const Checkpoint& checkpoint,
                 const EvaluationText* text) {
  if (options.target_experts == 0) {
    if (!options.target_text.empty())
      throw UsageError("--target-text means nothing without a number of experts");
    return;
  }
  const at::Tensor windows_BL = target_windows(options, checkpoint, model.config.model, text);
  model.routing = solve_thresholds(model, windows_BL, options.target_experts);
}

}  // namespace dtopp::cli
