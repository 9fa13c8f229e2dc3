// Describes a model's parameters for initialization, optimizer, checkpoints, export and counting.
//
// Each model type has one list. Names and shapes are those of the checkpoint format
// (docs/reference/files.md).
#pragma once

#include <cmath>
#include <utility>

#include "dtopp/config/run_config.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp::parameters {
// The way in which a parameter acts on a token. Weight decay, precision and FLOPs follow from it.
enum class ParameterRole {
  kMatrix,        // multiplies the token
  kOuterMatrix,   // likewise; reads a sample or writes the model's output
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
  int64_t stacked = 1;  // matrices of equal height that lie one below the other: 2 for gate and up

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

// Builds the list of a model type's parameters. Functions append parameters. Call them in the order of the
// forward pass. Names are complete, such as "model.norm.weight"; shapes of matrices are [outputs, inputs].
class ParameterList {
 public:
  // `model` and `routing` must outlive this object.
  //
  // Matrices start with standard deviation model.init_std; matrices that write to the residual stream start
  // with residual_std().
  ParameterList(const config::ModelConfig& model, const config::RoutingConfig& routing)
      : model_(model), routing_(routing) {}

  double residual_std() const {
    const double layers = static_cast<double>(model_.num_layers);
    return model_.scale_residual_init ? model_.init_std / std::sqrt(2.0 * layers) : model_.init_std;
  }

  // A gain, initially 1.
  void gain(const std::string& name, int64_t size) {
    list_.push_back({name, {size}, {Distribution::kOne}, ParameterRole::kGain});
  }
  // A bias, or several biases in one tensor, initially 0.
  void shift(const std::string& name, std::vector<int64_t> shape) {
    list_.push_back({name, std::move(shape), {Distribution::kZero}, ParameterRole::kGain});
  }
  void matrix(const std::string& name, std::vector<int64_t> shape,
              ParameterRole role = ParameterRole::kMatrix) {
    add_matrix(name, std::move(shape), role, model_.init_std);
  }
  void zero_matrix(const std::string& name, std::vector<int64_t> shape,
                   ParameterRole role = ParameterRole::kMatrix) {
    list_.push_back({name, std::move(shape), {Distribution::kZero}, role});
  }
  // A matrix that writes to the residual stream.
  void residual_matrix(const std::string& name, std::vector<int64_t> shape,
                       ParameterRole role = ParameterRole::kMatrix) {
    add_matrix(name, std::move(shape), role, residual_std());
  }
  // Projections, their biases and QK norms. prefix: "model.layers.3.self_attn."
  void attention(const std::string& prefix) {
    const int64_t D = model_.hidden_size, K = model_.head_size();
    const int64_t queries = model_.num_heads * K, keys = model_.num_kv_heads() * K;
    matrix(prefix + "q_proj.weight", {queries, D});
    matrix(prefix + "k_proj.weight", {keys, D});
    matrix(prefix + "v_proj.weight", {keys, D});
    if (model_.qkv_bias) {
      shift(prefix + "q_proj.bias", {queries});
      shift(prefix + "k_proj.bias", {keys});
      shift(prefix + "v_proj.bias", {keys});
    }
    if (model_.qk_norm != config::QkNorm::kNone) {
      gain(prefix + "q_norm.weight", model_.q_norm_size());
      gain(prefix + "k_norm.weight", model_.k_norm_size());
    }
    residual_matrix(prefix + "o_proj.weight", {D, queries});
  }
  // Router, shared experts and experts, or the FFN of a dense model. prefix: "model.layers.3.mlp."; `layer`
  // counts from 0.
  void feed_forward(const std::string& prefix, int64_t layer) {
    const int64_t D = model_.hidden_size, F = model_.ffn_hidden_size, E = model_.num_experts;
    if (model_.is_dense()) return dense_ffn(prefix, F);
    if (config::has_router(routing_, layer)) {
      matrix(prefix + "gate.weight", {model_.router_columns(), D}, ParameterRole::kRouter);
      if (routing_.normalization == config::Normalization::kDynamic)
        list_.push_back({prefix + "gate.scale", {}, {Distribution::kOne}, ParameterRole::kRouterScale});
    }
    if (model_.shared_experts > 0) dense_ffn(prefix + "shared_experts.", model_.shared_ffn_hidden_size());
    if (model_.shared_gate) matrix(prefix + "shared_gate.weight", {1, D});
    matrix(prefix + "experts.gate_up_proj", {E, 2 * F, D}, ParameterRole::kExpert);
    list_.back().stacked = 2;
    residual_matrix(prefix + "experts.down_proj", {E, D, F}, ParameterRole::kExpert);
  }
  // One FFN for all tokens.
  void dense_ffn(const std::string& prefix, int64_t ffn_hidden_size) {
    matrix(prefix + "gate_up_proj.weight", {2 * ffn_hidden_size, model_.hidden_size});
    list_.back().stacked = 2;
    residual_matrix(prefix + "down_proj.weight", {model_.hidden_size, ffn_hidden_size});
  }
  // Returns the list, which is then empty.
  std::vector<ParameterSpec> take() { return std::move(list_); }

 private:
  void add_matrix(const std::string& name, std::vector<int64_t> shape, ParameterRole role, double std) {
    list_.push_back({name, std::move(shape), {Distribution::kTruncatedNormal, std}, role});
  }

  const config::ModelConfig& model_;
  const config::RoutingConfig& routing_;
  std::vector<ParameterSpec> list_;
};

// Fills an f32 tensor of the spec's shape with the initial values. Element i depends only on (seed, name, i).
void initialize(const ParameterSpec& spec, uint64_t seed, Tensor& tensor);

}  // namespace dtopp::parameters
