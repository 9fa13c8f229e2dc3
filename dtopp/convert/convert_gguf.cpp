
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/safetensors.h"
#include "dtopp/config/run_config.h"
#include "dtopp/convert/convert.h"
#include "dtopp/convert/huggingface_config.h"
#include "dtopp/data/text/tokenizer.h"
#include "dtopp/data/text/tokenizer_json.h"
#include "dtopp/models/language_model.h"

namespace dtopp::convert {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are little-endian");

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t kVersion = 3, kF32 = 0;
constexpr uint64_t kAlignment = 32;
// Types of values.
constexpr uint32_t kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9;

template <typename T>
void append_number(std::string& bytes, T number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void append_text(std::string& bytes, std::string_view text) {
  append_number<uint64_t>(bytes, text.size());
  bytes.append(text);
}

uint64_t aligned(uint64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

void pad_tensors(OutputFile& file) {
  const std::string zeros(aligned(file.size()) - file.size(), '\0');
  file.write(zeros);
}

// The key-value pairs at the beginning of the file, in the order of the calls.
class GgufMetadata {
 public:
  void add(std::string_view key, std::string_view value) {
    begin_value(key, kString);
    append_text(bytes_, value);
  }
  void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }
  void add(std::string_view key, bool value) { add_number<uint8_t>(key, kBool, value); }
  void add(std::string_view key, int64_t value) { add_number<uint32_t>(key, kUint32, value); }
  void add(std::string_view key, double value) { add_number<float>(key, kFloat32, value); }
  void add(std::string_view key, const std::vector<std::string>& values) {
    begin_array(key, kString, values.size());
    for (const std::string& value : values) append_text(bytes_, value);
  }
  void add(std::string_view key, const std::vector<int32_t>& values) {
    begin_array(key, kInt32, values.size());
    for (const int32_t value : values) append_number(bytes_, value);
  }

  uint64_t size() const { return size_; }
  const std::string& bytes() const { return bytes_; }

 private:
  template <class Stored, class T>
  void add_number(std::string_view key, uint32_t type, T value) {
    begin_value(key, type);
    append_number(bytes_, static_cast<Stored>(value));
  }
  void begin_value(std::string_view key, uint32_t type) {
    append_text(bytes_, key);
    append_number(bytes_, type);
    ++size_;
  }
  void begin_array(std::string_view key, uint32_t type, uint64_t size) {
    begin_value(key, kArray);
    append_number(bytes_, type);
    append_number(bytes_, size);
  }

  uint64_t size_ = 0;
  std::string bytes_;
};

// Writes a GGUF file (version 3), the format of llama.cpp. The tensors must be F32.
void write_gguf(OutputFile& file, const GgufMetadata& metadata, const std::vector<TensorSource>& tensors) {
  std::string head(kMagic);
  append_number(head, kVersion);
  append_number<uint64_t>(head, tensors.size());
  append_number(head, metadata.size());
  head += metadata.bytes();
  uint64_t offset = 0;
  for (const TensorSource& tensor : tensors) {
    append_text(head, tensor.name);
    append_number(head, static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;)
      append_number<int64_t>(head, tensor.shape[i]);  // rows come first
    append_number(head, kF32);
    append_number(head, offset);
    offset = aligned(offset + tensor.size);
  }
  file.write(head);
  for (const TensorSource& tensor : tensors) {
    pad_tensors(file);
    tensor.read(0, tensor.size, [&](std::span<const std::byte> bytes) { file.write(bytes); });
  }
  pad_tensors(file);
}

// Types of tokens.
constexpr int32_t kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5;

// llama.cpp's names for the patterns that divide text into words. GPT-2's is the one of ByteLevel.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kPatterns = {
    {{R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      "llama-bpe"},
     {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      "qwen2"}}};

std::optional<std::string_view> pattern_name(const data::TokenizerSpec& spec) {
  if (spec.space_marks || spec.add_prefix_space || spec.byte_fallback) return std::nullopt;
  if (spec.use_regex) return spec.splits.empty() ? std::optional("gpt-2") : std::nullopt;
  if (spec.splits.size() != 1) return std::nullopt;
  for (const auto& [pattern, name] : kPatterns)
    if (spec.splits[0].pattern == pattern) return name;
  return std::nullopt;
}

// Adds the tokens, their types, the merges and the pre-tokenizer's name. Ids up to `vocab_size` that the
// tokenizer does not have become unused tokens. Throws UsageError, with `file` in front, if llama.cpp has no
// tokenizer of this kind.
void add_tokenizer(GgufMetadata& metadata, const data::Tokenizer& tokenizer, int64_t vocab_size,
                   const std::string& file) {
  const data::TokenizerSpec spec = data::parse_tokenizer_json(tokenizer.file_text(), file);
  const auto pattern = pattern_name(spec);
  if (!pattern)
    throw UsageError(file,
                     ": its pre_tokenizer has no name in llama.cpp; GPT-2's, Llama 3's and Qwen 2's have");
  const auto size = static_cast<size_t>(std::max(vocab_size, tokenizer.vocab_size()));
  std::vector<std::string> tokens(size), merges;
  std::vector<int32_t> types(size, kUnused);
  for (size_t id = 0; id < size; ++id) tokens[id] = format("[unused %zu]", id);
  const auto set = [&](int32_t id, const std::string& token, int32_t type) {
    tokens[static_cast<size_t>(id)] = token;
    types[static_cast<size_t>(id)] = type;
  };
  for (const auto& [token, id] : spec.vocab) set(id, token, kNormal);
  for (const data::AddedToken& token : spec.added_tokens)
    set(tokenizer.token_to_id(token.content).value(), token.content, token.special ? kControl : kUserDefined);
  for (const auto& [left, right] : spec.merges) merges.push_back(left + " " + right);
  metadata.add("tokenizer.ggml.model", "gpt2");
  metadata.add("tokenizer.ggml.pre", *pattern);
  metadata.add("tokenizer.ggml.tokens", tokens);
  metadata.add("tokenizer.ggml.token_type", types);
  metadata.add("tokenizer.ggml.merges", merges);
  metadata.add("tokenizer.ggml.add_bos_token", false);
  if (!tokenizer.end_of_text_token()) return;
  for (const char* role : {"bos", "eos", "padding"})
    metadata.add("tokenizer.ggml." + std::string(role) + "_token_id", int64_t{tokenizer.end_of_text()});
}

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
  if (path_kind(file) != PathKind::kNothing) throw UsageError(file, ": exists; name a new file");
  const config::RunConfig config = checkpoint.config();
  const bool by_head = config.model.qk_norm == config::QkNorm::kHead;
  const std::string architecture = by_head ? "qwen3moe" : "olmoe";
  try {
    const std::string name = "llama.cpp's architecture " + architecture + " does not fit this model";
    require_fitting(config, by_head ? HuggingFaceClass::kQwen3Moe : HuggingFaceClass::kOlmoe, name);
    if ((config.routing.renormalize == config::Renormalize::kSum) != by_head)
      throw UsageError(name, ": routing.renormalize must be ", (by_head ? "true" : "false"));
    if (config.model.attention_window > 0) throw UsageError(name, ": model.attention_window must be 0");
  } catch (const UsageError& error) {
    throw UsageError(error.what(), "; train such a model, or use dtopp convert to-hf");
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
