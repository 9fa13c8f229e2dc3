// linear_cross_entropy on a CUDA device, one chunk of tokens after another.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops::cuda {

struct LossInputs {
  Tensor x_TD, weight_VD, targets_T;
  double z_weight;
  int64_t ignore_index;
  bool need_x, need_weight;
};

struct LossOutputs {
  Tensor loss, nll, z;               // f32 (f64) []
  Tensor grad_x_TD, grad_weight_VD;  // of the inputs' type; empty if not needed
};

// Returns the number of tokens whose logits are formed at once.
int64_t tokens_per_chunk(int64_t tokens, int64_t vocabulary, at::ScalarType logits);

LossOutputs form_loss(const LossInputs& in, int64_t chunk);

}  // namespace dtopp::ops::cuda
