// Makes reads of uninitialized memory visible, for tests.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

// Fills memory that torch allocates with NaN (integers: with the largest value) for the lifetime of the
// object.
class PoisonedMemory {
 public:
  PoisonedMemory() {
    context_.setDeterministicAlgorithms(true, /*warn_only=*/true);
    context_.setDeterministicFillUninitializedMemory(true);
  }
  ~PoisonedMemory() {
    context_.setDeterministicAlgorithms(deterministic_, warn_only_);
    context_.setDeterministicFillUninitializedMemory(fill_);
  }
  PoisonedMemory(const PoisonedMemory&) = delete;
  PoisonedMemory& operator=(const PoisonedMemory&) = delete;

 private:
  at::Context& context_ = at::globalContext();
  bool deterministic_ = context_.deterministicAlgorithms();
  bool warn_only_ = context_.deterministicAlgorithmsWarnOnly();
  bool fill_ = context_.deterministicFillUninitializedMemory();
};

}  // namespace dtopp::ops
