#include "dtopp/convert/convert_gguf.h"

#include <algorithm>
#include <map>
#include <string>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/config/run_config.h"
#include "dtopp/convert/gguf.h"
#include "dtopp/convert/gguf_tokenizer.h"
#include "dtopp/convert/huggingface_config.h"
#include "dtopp/models/language_model.h"

namespace dtopp::convert {
namespace {

namespace fs = std::filesystem;

// llama.cpp's name of a parameter, without the layer.
std::string gguf_name(const std::string& name) {
  static const std::map<std::string, std::string> names = {
      {"model.embed_tokens.weight", "token_embd.weight"},
      {"model.norm.weight", "output_norm.weight"},
      {"lm_head.weight", "output.weight"},
      {"input_layernorm.weight", "attn_norm.weight"},
      {"self_attn.q_proj.weight", "attn_q.weight"},
      {"self_attn.k_proj.weight", "attn_k.weight"},
      {"self_attn.v_proj.weight", "attn_v.weight"},
      {"self_attn.o_proj.weight", "attn_output.weight"},
      {"self_attn.q_norm.weight", "attn_q_norm.weight"},
      {"self_attn.k_norm.weight", "attn_k_norm.weight"},
      {"post_attention_layernorm.weight", "ffn_norm.weight"},
      {"mlp.gate.weight", "ffn_gate_inp.weight"},
      {"mlp.experts.down_proj", "ffn_down_exps.weight"}};
  return names.at(name);
}

// One half of the rows of each expert [E, 2F, D]: the gate's, or those after them.
TensorSource half_of(const std::string& name, const std::vector<int64_t>& shape,
                     std::span<const std::byte> bytes, bool is_second) {
  const uint64_t half = bytes.size() / static_cast<uint64_t>(shape[0]) / 2;
  return {name,
          "F32",
          {shape[0], shape[1] / 2, shape[2]},
          bytes.size() / 2,
          [=](uint64_t begin, uint64_t count, const TakeBytes& take) {
            for (uint64_t at = begin; at < begin + count;) {
              const uint64_t inside = at % half, size = std::min(half - inside, begin + count - at);
              take(bytes.subspan((at / half * 2 + (is_second ? 1 : 0)) * half + inside, size));
              at += size;
            }
          }};
}

std::vector<TensorSource> tensors_of(const checkpoint::Checkpoint& checkpoint,
                                     const config::RunConfig& config) {
  constexpr std::string_view kLayers = "model.layers.";
  std::vector<TensorSource> tensors;
  for (const parameters::ParameterSpec& parameter :
       models::language_model_parameters(config.model, config.routing)) {
    const auto bytes = checkpoint.parameter(parameter.name, parameter.shape);
    std::string layer, name = parameter.name;
    if (name.starts_with(kLayers)) {
      const size_t end = name.find('.', kLayers.size());
      layer = "blk." + name.substr(kLayers.size(), end - kLayers.size()) + ".";
      name = name.substr(end + 1);
    }
    if (name == "mlp.experts.gate_up_proj") {
      tensors.push_back(half_of(layer + "ffn_gate_exps.weight", parameter.shape, bytes, false));
      tensors.push_back(half_of(layer + "ffn_up_exps.weight", parameter.shape, bytes, true));
    } else {
      tensors.emplace_back(layer + gguf_name(name), "F32", parameter.shape, bytes);
    }
    if (config.model.tie_embeddings && name == "model.embed_tokens.weight")
      tensors.emplace_back("output.weight", "F32", parameter.shape, bytes);
  }
  return tensors;
}

GgufMetadata metadata_of(const config::RunConfig& config, const std::string& architecture) {
  const config::ModelConfig& model = config.model;
  GgufMetadata metadata;
  const auto add = [&](const char* key, auto value) { metadata.add(architecture + "." + key, value); };
  metadata.add("general.architecture", architecture);
  metadata.add("general.name", config.name);
  metadata.add("general.file_type", int64_t{0});  // fp32
  add("vocab_size", model.vocab_size);
  add("context_length", model.sequence_length);
  add("embedding_length", model.hidden_size);
  add("block_count", model.num_layers);
  add("feed_forward_length", model.ffn_hidden_size);
  add("expert_feed_forward_length", model.ffn_hidden_size);
  add("expert_count", model.num_experts);
  add("expert_used_count", config::top_k_of(config.routing));
  add("attention.head_count", model.num_heads);
  add("attention.head_count_kv", model.num_kv_heads());
  add("attention.key_length", model.head_size());
  add("attention.value_length", model.head_size());
  add("attention.layer_norm_rms_epsilon", model.norm_eps);
  add("rope.dimension_count", model.head_size());
  add("rope.freq_base", model.rope_base);
  return metadata;
}

}  // namespace

void convert_to_gguf(const checkpoint::Checkpoint& checkpoint, const fs::path& file) {
  if (path_kind(file) != PathKind::kNothing) throw UsageError(file.string() + ": exists; name a new file");
  const config::RunConfig config = checkpoint.config();
  const bool by_head = config.model.qk_norm == config::QkNorm::kHead;
  const std::string architecture = by_head ? "qwen3moe" : "olmoe";
  try {
    const std::string name = "llama.cpp's architecture " + architecture + " does not fit this model";
    require_fitting(config, by_head ? HuggingFaceClass::kQwen3Moe : HuggingFaceClass::kOlmoe, name);
    if ((config.routing.renormalize == config::Renormalize::kSum) != by_head)
      throw UsageError(name + ": routing.renormalize must be " + (by_head ? "true" : "false"));
    if (config.model.attention_window > 0) throw UsageError(name + ": model.attention_window must be 0");
  } catch (const UsageError& error) {
    throw UsageError(std::string(error.what()) + "; train such a model, or use dtopp convert to-hf");
  }
  GgufMetadata metadata = metadata_of(config, architecture);
  if (checkpoint.has_tokenizer()) {
    const fs::path path = checkpoint.tokenizer_path();
    add_tokenizer(metadata, data::Tokenizer::load(path), config.model.vocab_size, path.string());
  } else {
    metadata.add("tokenizer.ggml.model", "none");
  }
  const std::vector<TensorSource> tensors = tensors_of(checkpoint, config);
  write_file_atomically(file, [&](OutputFile& output) { write_gguf(output, metadata, tensors); });
}

}  // namespace dtopp::convert
