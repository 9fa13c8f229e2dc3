#include "dtopp/convert/huggingface_family.h"

#include <stdexcept>

namespace dtopp::convert {
namespace {

using config::QkNorm;

constexpr HuggingFaceFamily kDtopp = {.architecture = "DtoppForCausalLM",
                                      .qk_norm = QkNorm::kWhole,
                                      .norm_eps = 1e-5,
                                      .rope_base = 10000,
                                      .num_kv_heads = 0,
                                      .top_k = 8,
                                      .ffn_key = "intermediate_size",
                                      .experts_key = "num_experts",
                                      .layer = "mlp.",
                                      .gate = "gate_proj",
                                      .up = "up_proj",
                                      .down = "down_proj"};

constexpr HuggingFaceFamily olmoe() {
  HuggingFaceFamily family = kDtopp;
  family.architecture = "OlmoeForCausalLM";
  return family;
}

constexpr HuggingFaceFamily mixtral() {
  HuggingFaceFamily family = kDtopp;
  family.architecture = "MixtralForCausalLM";
  family.qk_norm = QkNorm::kNone;
  family.rope_base = 1e6;
  family.num_kv_heads = 8;
  family.top_k = 2;
  family.experts_key = "num_local_experts";
  family.layer = "block_sparse_moe.";
  family.gate = "w1";
  family.up = "w3";
  family.down = "w2";
  return family;
}

constexpr HuggingFaceFamily qwen(const char* architecture, QkNorm qk_norm, int64_t num_kv_heads,
                                 int64_t top_k) {
  HuggingFaceFamily family = kDtopp;
  family.architecture = architecture;
  family.qk_norm = qk_norm;
  family.norm_eps = 1e-6;
  family.num_kv_heads = num_kv_heads;
  family.top_k = top_k;
  family.ffn_key = "moe_intermediate_size";
  return family;
}

constexpr HuggingFaceFamily kOlmoe = olmoe(), kMixtral = mixtral(),
                            kQwen2Moe = qwen("Qwen2MoeForCausalLM", QkNorm::kNone, 16, 4),
                            kQwen3Moe = qwen("Qwen3MoeForCausalLM", QkNorm::kHead, 4, 8);

}  // namespace

const HuggingFaceFamily& family_of(HuggingFaceClass name) {
  switch (name) {
    case HuggingFaceClass::kDtopp:
      return kDtopp;
    case HuggingFaceClass::kOlmoe:
      return kOlmoe;
    case HuggingFaceClass::kMixtral:
      return kMixtral;
    case HuggingFaceClass::kQwen2Moe:
      return kQwen2Moe;
    case HuggingFaceClass::kQwen3Moe:
      return kQwen3Moe;
  }
  throw std::logic_error("family_of: unknown class");
}

}  // namespace dtopp::convert
