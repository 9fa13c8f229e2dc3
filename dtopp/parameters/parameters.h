// Describes a model's parameters for initialization, optimizer, checkpoints, export and counting.
//
// Each model type has one list. Names and shapes are those of the checkpoint format
// (docs/reference/files.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtopp::parameters {

// The way in which a parameter acts on a token. Weight decay, precision and FLOPs follow from it.
enum class ParameterRole {
  kMatrix,        // multiplies the token
  kConditioning,  // multiplies the sample's condition, once for all tokens of the sample
  kExpert,        // one matrix per expert along the first dimension; a token's active experts multiply it
  kLookUp,        // an embedding: one row is read
  kTiedLookUp,    // an embedding that also multiplies the output
  kGain,          // scales or shifts the token element by element
  kRouter,        // multiplies the token, always in fp32
  kRouterScale,   // theta of a routed layer, []; always fp32
};

enum class Distribution { kZero, kOne, kTruncatedNormal };  // the normal is cut at ±3 std

struct InitialValue {
  Distribution distribution = Distribution::kZero;
  double std = 0;  // of the normal before truncation
};

struct ParameterSpec {
  std::string name;            // "model.layers.3.mlp.experts.down_proj"
  std::vector<int64_t> shape;  // [] for a scalar
  InitialValue initial;
  ParameterRole role = ParameterRole::kMatrix;

  // True except for gains and theta.
  bool weight_decay() const { return role != ParameterRole::kGain && role != ParameterRole::kRouterScale; }
  // Whether the model computes with it in the compute precision.
  bool compute_precision() const { return !is_router(); }
  bool is_router() const { return role == ParameterRole::kRouter || role == ParameterRole::kRouterScale; }
  // The number of experts, which are equal parts along the first dimension; 1 for other parameters.
  int64_t num_experts() const { return role == ParameterRole::kExpert ? shape.at(0) : 1; }
  int64_t count() const {
    int64_t product = 1;
    for (const int64_t size : shape) product *= size;
    return product;
  }
};

}  // namespace dtopp::parameters
