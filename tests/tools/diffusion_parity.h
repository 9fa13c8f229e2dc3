// What a diffusion transformer computes, for comparison with other implementations.
#pragma once

namespace dtopp {

// INPUT holds every parameter by its name, "threshold" F64 [L], and a batch: "x0", "noise", "t", "class",
// "text". OUTPUT gets "prediction", every loss, every gradient, the activation histograms, and "sample_loss".
void compute_diffusion(const char* config, const char* input, const char* output);

// Trains on the pictures of INPUT from the first step on: "x0" F32 [N, C, H, W], "label" I64, "text". OUTPUT
// gets the batches' tensors, "initial/" and "final/" parameters, and of each step "step/N/" its losses,
// gradient norm, active experts and thresholds; then the "validation/" of the trained model over the same
// pictures.
void train_diffusion(const char* config, const char* input, const char* output);

}  // namespace dtopp
