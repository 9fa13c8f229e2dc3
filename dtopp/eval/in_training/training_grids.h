// The pictures that a diffusion transformer makes of itself while it trains.
#pragma once

#include "dtopp/train/run.h"

namespace dtopp {

// Every diffusion.samples_every steps a grid in <output>/samples/step-XXXXXXXX.png: eight pictures of each of
// diffusion.sample_classes, or of the first eight classes, from the same noise each time; of a model without
// classes 64. 25 steps of the objective's first sampler, guided by 4 where the model can be, with p solved
// for the experts the run trains for. Nothing where the model makes latents or needs text. DataError where
// the prepared images or the file cannot be read or written; pictures that are not finite are left out.
Drawing training_grids(const RunConfig& config);

}  // namespace dtopp
