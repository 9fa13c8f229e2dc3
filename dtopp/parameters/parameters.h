// What initialisation, optimiser, checkpoint, export and counting know of a parameter. Each model type has
// one list of them; names and shapes are those of the checkpoint format (docs/files.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtopp {

// What a parameter does with a token: its decay, precision and cost follow from that.
enum class ParameterRole {
  kMatrix,        // multiplies it
  kConditioning,  // multiplies what its sample is conditioned on, once for all tokens of the sample
  kExpert,        // one slice per expert along the first dimension: those it chose multiply it
  kLookUp,        // one of its rows is taken
  kTiedLookUp,    // the same, and it multiplies the output too
  kGain,          // scales or shifts it element by element
  kRouter,        // multiplies it, in fp32 in every precision
  kRouterScale,   // theta of a routed layer, []; fp32 in every precision
};

enum class Distribution { kZero, kOne, kTruncatedNormal };  // the normal is cut at ±3 std

struct InitialValue {
  Distribution distribution = Distribution::kZero;
  double std = 0;  // of the normal before the cut
};

struct ParameterSpec {
  std::string name;            // "model.layers.3.mlp.experts.down_proj"
  std::vector<int64_t> shape;  // [] for a scalar
  InitialValue initial;
  ParameterRole role = ParameterRole::kMatrix;

  // Matrices yes; gains and theta no.
  bool weight_decay() const { return role != ParameterRole::kGain && role != ParameterRole::kRouterScale; }
  // Whether it is computed with in the compute precision.
  bool compute_precision() const {
    return role != ParameterRole::kRouter && role != ParameterRole::kRouterScale;
  }
  // Equal parts along the first dimension that ranks may share out whole: experts; else one.
  int64_t pieces() const { return role == ParameterRole::kExpert ? shape.at(0) : 1; }
  int64_t count() const {
    int64_t product = 1;
    for (const int64_t size : shape) product *= size;
    return product;
  }
};

}  // namespace dtopp
