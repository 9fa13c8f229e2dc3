// The CUDA kernels of linear_cross_entropy and token_log_probs, as plain functions of device pointers. A row
// of logits belongs to one token and spans the vocabulary.
#pragma once

#include "dtopp/ops/cuda/cuda_types.h"

namespace dtopp::ops::cuda {

// A chunk of rows. A target that is neither in [0, V) nor ignored prints a line and traps. The launch and
// every later call on the device then fail, as with torch's own losses.
template <typename Real>
struct LogitRows {
  const Real* logits_NV;
  const int64_t* targets_N;
  int64_t rows, vocabulary;
  int64_t first;  // token index of the first row, for the message
};

// Rows of the loss mean(nll + z_weight lse^2) over `counted` targets. Scalar is the gradient's type.
template <typename Scalar>
struct LossRows {
  LogitRows<Accumulator<Scalar>> in;
  int64_t ignore_index;
  double z_weight;
  const int64_t* counted;  // []
  double *nll_N, *z_N;     // -log softmax[target] and lse^2; 0 if ignored
  Scalar* gradient_NV;     // d loss / d logits, 0 if ignored; null: do not form it
};

template <typename Scalar>
void form_loss_rows(const LossRows<Scalar>& loss, Stream stream);

template <typename Real>
struct LogProbRows {
  LogitRows<Real> in;
  Real* log_probs_N;
  int64_t* greedy_N;  // the likeliest id, the lowest if several are equally likely
};

template <typename Real>
void form_log_probs(const LogProbRows<Real>& out, Stream stream);

}  // namespace dtopp::ops::cuda
