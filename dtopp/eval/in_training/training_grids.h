// Samples grids of pictures while a diffusion transformer trains.
#pragma once

#include "dtopp/train/run.h"

namespace dtopp::eval {

// Returns an evaluation that writes <output>/samples/step-XXXXXXXX.png every diffusion.samples_every steps
// and after the last step. It measures nothing. All ranks sample, with the EMA of the parameters if the model
// has one; only rank 0 writes.
//
// A grid holds eight pictures per class of diffusion.sample_classes, or of the first eight classes. A model
// without classes gets 64 pictures. The noise is the same in every grid. The sampler is euler (flow) or ddim
// (ddpm) with 25 steps; guidance is 4 if the model was trained with condition dropout. Thresholds p are
// solved for the run's routing.experts. Grids with pictures that are not finite are left out.
//
// Returns: the evaluation; null if the model generates latents or needs text
// Throws:  DataError if the prepared images cannot be read or the file cannot be written
std::unique_ptr<train::Periodic> make_training_grids(const config::RunConfig& config);

}  // namespace dtopp::eval
