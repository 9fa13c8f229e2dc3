// The parameters of a language model, by name: the one list that initialisation, optimiser, checkpoint,
// export and counting share. Names and shapes are those of the checkpoint format (docs/files.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtopp/config/model_config.h"
#include "dtopp/config/routing_config.h"

namespace dtopp {

struct ParameterSpec {
  std::string name;            // "model.layers.3.mlp.experts.down_proj"
  std::vector<int64_t> shape;  // [] for the scalar mlp.gate.scale
  double init_std;             // truncated normal (cut at ±3 std); 0: constant 1 (gains and scales)
  bool weight_decay;           // matrices yes; gains and theta no
  bool compute_precision;      // false: stays fp32 in every precision (router weight and scale)
  bool expert;                 // one slice per expert along the first dimension

  int64_t count() const {
    int64_t product = 1;
    for (const int64_t size : shape) product *= size;
    return product;
  }
};

// In the order of a forward pass.
std::vector<ParameterSpec> language_model_parameters(const ModelConfig& model, const RoutingConfig& routing);

}  // namespace dtopp
