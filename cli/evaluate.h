// Declares the commands `dtopp evaluate tasks | text | experts | images` and the parts that they share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cli/console.h"
#include "cli/inference.h"
#include "dtopp/distributed/collectives/collectives.h"
#include "dtopp/tasks/evaluation_files.h"

namespace dtopp::cli {

// The options of all four commands.
struct EvaluateOptions {
  InferenceOptions inference;
  std::string output;
  int64_t batch_size = 8;
  int64_t processes = 0;  // processes to start; 0: this process evaluates, alone or as a rank
  bool json = false;
};

// Adds --output, --batch-size, --json and --processes.
void add_evaluate_options(CLI::App& verb, EvaluateOptions& options);

// Adds --text, which is required and may occur several times.
void add_text_option(CLI::App& verb, std::vector<std::string>& texts);

// Adds --sweep-target, which cannot be combined with the options in `excluded`.
void add_sweep_option(CLI::App& verb, std::vector<double>& targets, const std::vector<std::string>& excluded);

// Throws UsageError if the model cannot meet a target of --sweep-target (require_target).
void require_sweep(const std::vector<double>& targets, const config::RunConfig& config);

// Calls measure(ranks) on every rank. With --processes, this process starts the ranks and exits with their
// status.
void evaluate_on_ranks(const EvaluateOptions& options,
                       const std::function<void(distributed::Collectives&)>& measure);

// Opens, on every rank, the checkpoint that rank 0 finds for options.inference.checkpoint. Throws UsageError
// if its model has another type, or if there are several ranks and the device is not the CPU.
checkpoint::Checkpoint open_shared_checkpoint(const EvaluateOptions& options, config::ModelType type,
                                              distributed::Collectives& ranks);

// Throws RanksDiffer if a rank's checkpoint, batch size, precision or `amount` of data differs from that of
// rank 0.
void require_same_work(const EvaluateOptions& options, const checkpoint::Checkpoint& checkpoint,
                       const nlohmann::ordered_json& amount, distributed::Collectives& ranks);

// Opens the texts in `paths` as sources of one. Plain text is encoded with the checkpoint's tokenizer.
eval::EvaluationText open_texts(const EvaluateOptions& options, const std::vector<std::string>& paths,
                                const checkpoint::Checkpoint& checkpoint, const config::ModelConfig& config);

// Returns the checkpoint's step, --target-experts, the precision and the thresholds p of `routing`, which
// label results.
tasks::EvaluatedModel evaluated_model(const EvaluateOptions& options,
                                      const checkpoint::Checkpoint& checkpoint, const moe::Routing& routing);

// Returns the kind of the results of `paths`, from their names without folders and endings:
// "text-sweep-train+validation", at most 120 bytes.
std::string kind_of(std::string kind, const std::vector<std::string>& paths);

// Returns the file for results of `kind` (see results_file); empty without --output and on other ranks than
// rank 0. Call it before the evaluation, because it refuses a file that would be lost.
std::filesystem::path output_file(const EvaluateOptions& options, const std::string& kind,
                                  const tasks::EvaluatedModel& model, const distributed::Collectives& ranks,
                                  const nlohmann::ordered_json& measured);

// Returns the members of `model` and `results` as one object.
nlohmann::ordered_json labeled(const tasks::EvaluatedModel& model, const nlohmann::ordered_json& results);

// Writes the results to `file`, unless its name is empty, and prints them as JSON (--json) or as the table.
// Only rank 0 calls it.
void report(const EvaluateOptions& options, const std::filesystem::path& file,
            const nlohmann::ordered_json& json, const std::string& table);

}  // namespace dtopp::cli
