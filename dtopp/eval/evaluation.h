// The loss of a diffusion transformer on held-out images, as training validates it: image i has the same
// noise and t whatever model is measured (image_batches.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "dtopp/inference/diffusion/diffusion_model.h"
#include "dtopp/inference/shared_batches.h"
#include "dtopp/models/validation_sums.h"

namespace dtopp {

// The model's held-out images: all of `folder`. UsageError where they are not like those the checkpoint's
// model was trained on, DataError where they are damaged.
TrainingData open_evaluation_images(const Checkpoint& checkpoint, const RunConfig& config,
                                    const std::filesystem::path& folder);

// Over the first `images`, in batches that the ranks share out; the result is every rank's. `hooks` counts
// images. Stopped.
ValidationResult measure_diffusion(const DiffusionModel& model, const RoutingInputs& routing,
                                   const TrainingData& data, int64_t images, int64_t batch_size,
                                   Collectives& ranks, const BatchHooks& hooks);

// p at which the first held-out images choose `targets` experts (solve_on_validation).
RoutingInputs solve_for_images(const DiffusionModel& model, const TrainingData& data,
                               const std::vector<double>& targets);

struct DiffusionEvaluation {
  int64_t images = 0;
  ValidationResult raw;
  std::optional<ValidationResult> average;  // where the run keeps one
};

// The file that docs/pictures.md describes.
nlohmann::ordered_json to_json(const DiffusionEvaluation& evaluation);

// A line each for t and layers.
std::string format_table(const DiffusionEvaluation& evaluation);

// Writes a safetensors file of the first `images`, in their order: f32 "x0", "noise" and "prediction",
// [N, C, H, W], "t", f32 [N], "condition", the classes, i64 [N], or else the text, f32 [N, L, S]; the
// metadata name the "objective". Predictions are those of `model` with its own thresholds. `hooks` counts
// images. Stopped; DataError where it cannot be written.
void dump_predictions(const DiffusionModel& model, const TrainingData& data, int64_t images,
                      int64_t batch_size, const std::filesystem::path& path, const BatchHooks& hooks);

}  // namespace dtopp
