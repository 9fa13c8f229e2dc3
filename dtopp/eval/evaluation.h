// Measures the loss of a diffusion transformer on held-out images, as validation during training does.
//
// Image i has the same noise and time t for every model (image_batches.h), so losses are comparable.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "dtopp/inference/diffusion_model.h"
#include "dtopp/inference/shared_batches.h"
#include "dtopp/models/validation_sums.h"

namespace dtopp::eval {

// Opens all images of `folder` as held-out data.
//
// Throws: UsageError if their layout differs from that of the checkpoint's training images; DataError if they
//         are damaged
models::TrainingData open_evaluation_images(const checkpoint::Checkpoint& checkpoint,
                                            const config::RunConfig& config, const fs::path& folder);

// Measures the first `images` in batches that are distributed over the ranks. The progress of the watch
// counts images.
//
// Returns:    the same result on every rank
// Throws:     Stopped if a stop is requested on any rank
// Collective: every rank of `ranks`, in the same order
models::ValidationResult measure_diffusion(const inference::DiffusionModel& model,
                                           const moe::Routing& routing, const models::TrainingData& data,
                                           int64_t images, int64_t batch_size,
                                           distributed::Collectives& ranks, inference::Watch& watch);

// Returns the thresholds p at which the first held-out images activate `targets` experts
// (solve_on_validation).
//
// Collective: if `model.routing.ranks` is set, every rank, with the same result
moe::Routing solve_for_images(const inference::DiffusionModel& model, const models::TrainingData& data,
                              const std::vector<double>& targets);

struct DiffusionEvaluation {
  int64_t images = 0;
  models::ValidationResult raw;
  std::optional<models::ValidationResult> ema;  // the EMA's, if the run keeps one
};

// Returns the losses and the active experts, in total, per interval of t ("loss_t0" is next to the picture)
// and per layer.
nlohmann::ordered_json to_json(const DiffusionEvaluation& evaluation);

// Returns a table: totals, then one line per interval of t with active experts by layer.
std::string format_table(const DiffusionEvaluation& evaluation);

// Writes the predictions of `model`, with its own thresholds, for the first `images` to a safetensors file.
//
// The metadata hold "objective". "condition" is the class or the text and is missing if the model has
// neither. The progress of the watch counts images.
//
// Shapes: "x0", "noise", "prediction" f32 [N, C, H, W]; "t" f32 [N]; "condition" i64 [N] or f32 [N, L, S]
// Throws: Stopped if a stop is requested; DataError if the file cannot be written
// Collective: no; this rank computes all images
void dump_predictions(const inference::DiffusionModel& model, const models::TrainingData& data,
                      int64_t images, int64_t batch_size, const fs::path& path, inference::Watch& watch);

}  // namespace dtopp::eval
