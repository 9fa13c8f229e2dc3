// The parts of `dtopp evaluate`: the perplexity of a text, the experts its tokens use, the tasks, and the
// loss on images.
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
  std::string data;                          // tasks: the folder with their files
  std::string images;                        // diffusion: a folder of prepared images
  std::string dump;                          // tasks, diffusion
  std::string dump_routing, replay_routing;  // perplexity
  std::string output;
  int64_t limit = 0;  // items of each data set, or images; 0: all
  int64_t batch_size = 8;
  int64_t processes = 0;      // to start; 0: this one is all, or a rank
  std::vector<double> sweep;  // numbers of active experts
  bool dry_run = false;
  bool paper = false;
  bool json = false;
};

// The checkpoint that rank 0 finds by the name that the user gave, opened by all. UsageError where several
// ranks cannot compute on the device wanted.
Checkpoint open_shared_checkpoint(const EvaluateOptions& options, Collectives& ranks);

// RanksDiffer where a rank has another checkpoint, batch size or `amount` of what is measured than rank 0.
void require_same_work(const EvaluateOptions& options, const Checkpoint& checkpoint,
                       const nlohmann::ordered_json& amount, Collectives& ranks);

// Rank 0 draws how far the ranks are in `total` of what `unit` names; a signal stops them.
BatchHooks watch(const char* label, const char* unit, uint64_t total, const Collectives& ranks);

// --text, read with the checkpoint's tokenizer where it is no token data.
EvaluationText open_text(const EvaluateOptions& options, const Checkpoint& checkpoint,
                         const ModelConfig& config);

// For rank 0: writes the results to --output where that is named, and prints them: with --json, else the
// table.
void report(const EvaluateOptions& options, const nlohmann::ordered_json& json, const std::string& table);

// Each is called by every rank, with the same options.
void evaluate_perplexity(const EvaluateOptions& options, Collectives& ranks);
void evaluate_activations(const EvaluateOptions& options, Collectives& ranks);
void evaluate_diffusion(const EvaluateOptions& options, Collectives& ranks);
void evaluate_tasks(const EvaluateOptions& options, Collectives& ranks);

}  // namespace dtopp::cli
