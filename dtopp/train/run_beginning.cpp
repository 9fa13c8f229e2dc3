#include "dtopp/train/run_beginning.h"

#include <map>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/config/config.h"
#include "dtopp/models/registry/make_model.h"
#include "dtopp/optim/schedule.h"
#include "dtopp/train/run_resuming.h"

namespace dtopp {
namespace {

std::map<std::string, std::vector<int64_t>> shapes_of(const std::vector<ParameterSpec>& specs) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const ParameterSpec& spec : specs) shapes.emplace(spec.name, spec.shape);
  return shapes;
}

std::string describe(const std::map<std::string, std::vector<int64_t>>& shapes, const std::string& name) {
  const auto found = shapes.find(name);
  return found == shapes.end() ? "none" : c10::str(at::IntArrayRef(found->second));
}

void require_same_tensors(const Checkpoint& checkpoint, const std::vector<ParameterSpec>& specs) {
  const auto there = shapes_of(make_model(checkpoint.config()).parameters), here = shapes_of(specs);
  if (there == here) return;
  for (const auto* shapes : {&here, &there}) {
    for (const auto& [name, shape] : *shapes) {
      if (describe(here, name) != describe(there, name))
        throw UsageError("training.initialize_from: " + checkpoint.path().string() +
                         " has another model: " + name + " is " + describe(there, name) + " there and " +
                         describe(here, name) + " here; choose a checkpoint of the same model");
    }
  }
}

// Whether a key may differ from the run that a cool-down continues.
bool may_change(const std::string& key) {
  return !affects_result(key) || key.starts_with("optimizer.") || key.starts_with("data.") ||
         key == "training.steps" || key == "training.initialize_from" || key == "training.cooldown_from";
}

void require_same_run(const Checkpoint& checkpoint, const RunConfig& there, const RunConfig& here) {
  std::string keys;
  for (const std::string& key : differing_keys(here, there)) {
    if (!may_change(key)) keys += (keys.empty() ? "" : ", ") + key;
  }
  const std::string what = "training.cooldown_from: " + checkpoint.path().string();
  if (!keys.empty())
    throw UsageError(what + " has another configuration (different: " + keys +
                     "); use the values of that run");
  if (checkpoint.state().step >= here.training.steps)
    throw UsageError(what + " has made " + std::to_string(checkpoint.state().step) +
                     " steps, training.steps " + std::to_string(here.training.steps) +
                     " leaves none; raise it");
}

void warn_of_other_past(const Checkpoint& checkpoint, const RunConfig& there, const RunConfig& here,
                        const ConsoleLog& log) {
  const int64_t step = checkpoint.state().step;
  const auto rate = [&](const RunConfig& config) {
    return learning_rate(config.optimizer, step, config.training.steps);
  };
  if (rate(there) != rate(here))
    log.warning("step " + std::to_string(step) + " had a learning rate of " +
                config_detail::print_value(rate(there)) + ", but this schedule gives " +
                config_detail::print_value(rate(here)) + "; choose schedules that agree at this step");
}

// With another tokenizer, token ids mean other words than those the parameters were trained on.
void warn_of_other_tokenizer(const Checkpoint& checkpoint, const TrainingData& data, const ConsoleLog& log) {
  if (!checkpoint.has_tokenizer() || data.tokenizer_json.empty()) return;
  const std::string there = read_file(checkpoint.tokenizer_path());
  const auto parsed = [](const std::string& text) { return nlohmann::json::parse(text, nullptr, false); };
  if (there == data.tokenizer_json || parsed(there) == parsed(data.tokenizer_json)) return;
  log.warning("data.train was prepared with another tokenizer than that of " + checkpoint.path().string() +
              "; prepare it with --tokenizer " + checkpoint.tokenizer_path().string());
}

// Opens the checkpoint that `key` names. Its error messages start with the key.
Checkpoint open_named(const char* key, const std::string& path, CheckpointUse use, Collectives& ranks,
                      const ConsoleLog& log) {
  try {
    return named_checkpoint(path, use, ranks, log);
  } catch (const UsageError& error) {
    throw UsageError(std::string(key) + ": " + error.what());
  }
}

void cool_down(Trainer& trainer, const RunConfig& config, const Checkpoint& checkpoint,
               const ConsoleLog& log) {
  const RunConfig there = checkpoint.config();
  require_same_run(checkpoint, there, config);
  warn_of_other_past(checkpoint, there, config, log);
  warn_of_other_tokenizer(checkpoint, trainer.data(), log);
  trainer.restore(checkpoint);
  log.message("continuing from " + checkpoint.path().string());
}

}  // namespace

std::optional<std::filesystem::path> begin_or_resume(Trainer& trainer, const RunConfig& config,
                                                     const ConsoleLog& log) {
  if (const auto own = checkpoint_to_resume(config.output, trainer.ranks(), log)) {
    trainer.restore(*own);
    log.message("resuming from " + own->path().string());
    return own->path();
  }
  const TrainingConfig& training = config.training;
  if (!training.cooldown_from.empty()) {
    const Checkpoint checkpoint = open_named("training.cooldown_from", training.cooldown_from,
                                             CheckpointUse::kTraining, trainer.ranks(), log);
    cool_down(trainer, config, checkpoint, log);
  } else if (!training.initialize_from.empty()) {
    const Checkpoint checkpoint = open_named("training.initialize_from", training.initialize_from,
                                             CheckpointUse::kInference, trainer.ranks(), log);
    require_same_tensors(checkpoint, trainer.parameters().specs());
    warn_of_other_tokenizer(checkpoint, trainer.data(), log);
    trainer.initialise_from(checkpoint);
    log.message("starting from the parameters of " + checkpoint.path().string());
  } else {
    trainer.initialise();
  }
  return std::nullopt;
}

}  // namespace dtopp
