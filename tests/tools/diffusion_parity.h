// Computes a diffusion transformer's outputs, for comparison with other implementations.
#pragma once

namespace dtopp {

// INPUT holds every parameter by name, "threshold" F64 [L], and a batch: "x0", "noise", "t", "class", "text".
// Writes to OUTPUT "prediction", every loss, every gradient, the activation histograms and "sample_loss".
void compute_diffusion(const char* config, const char* input, const char* output);

// Trains from the first step on the pictures of INPUT: "x0" F32 [N, C, H, W], "label" I64, "text".
//
// Writes to OUTPUT the batches' tensors, the "initial/" and "final/" parameters, and under "step/N/" each
// step's losses, gradient norm, active experts and thresholds. "validation/" holds the losses of the trained
// model on the same pictures.
void train_diffusion(const char* config, const char* input, const char* output);

}  // namespace dtopp
