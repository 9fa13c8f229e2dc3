// Declares the parts of `dtopp evaluate`: perplexity and activations of a text, tasks, and the loss on
// images.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cli/inference.h"
#include "dtopp/distributed/collectives/collectives.h"
#include "dtopp/inference/shared_batches.h"

namespace dtopp::cli {

struct EvaluateOptions {
  InferenceOptions inference;
  std::string tasks;
  std::string text;                          // perplexity, activations
  std::string data;                          // tasks: the folder with the task files
  std::string images;                        // diffusion: a folder of prepared images
  std::string dump;                          // tasks, diffusion
  std::string dump_routing, replay_routing;  // perplexity
  std::string output;
  int64_t limit = 0;  // maximum of items per data set, or of images; 0: no limit
  int64_t batch_size = 8;
  int64_t processes = 0;      // processes to start; 0: this process evaluates, alone or as a rank
  std::vector<double> sweep;  // targets of active experts
  bool dry_run = false;
  bool paper = false;
  bool json = false;
};

// Opens, on every rank, the checkpoint that rank 0 finds for options.inference.checkpoint. Throws UsageError
// if there are several ranks and the device is not the CPU.
Checkpoint open_shared_checkpoint(const EvaluateOptions& options, Collectives& ranks);

// Throws RanksDiffer if a rank's checkpoint, batch size or `amount` of data differs from that of rank 0.
void require_same_work(const EvaluateOptions& options, const Checkpoint& checkpoint,
                       const nlohmann::ordered_json& amount, Collectives& ranks);

// Returns hooks that stop on a signal. On rank 0 they also draw the progress of all ranks towards `total`
// units.
BatchHooks watch(const char* label, const char* unit, uint64_t total, const Collectives& ranks);

// Opens --text. Plain text is encoded with the checkpoint's tokenizer.
EvaluationText open_text(const EvaluateOptions& options, const Checkpoint& checkpoint,
                         const ModelConfig& config);

// Writes the results to --output, if it is given, and prints them as JSON (--json) or as the table. Only rank
// 0 calls it.
void report(const EvaluateOptions& options, const nlohmann::ordered_json& json, const std::string& table);

// Every rank calls the same function with the same options.
void evaluate_perplexity(const EvaluateOptions& options, Collectives& ranks);
void evaluate_activations(const EvaluateOptions& options, Collectives& ranks);
void evaluate_diffusion(const EvaluateOptions& options, Collectives& ranks);
void evaluate_tasks(const EvaluateOptions& options, Collectives& ranks);

}  // namespace dtopp::cli
