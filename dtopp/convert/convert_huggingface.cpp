#include "dtopp/convert/convert_huggingface.h"

#include <algorithm>
#include <string>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/json.h"
#include "dtopp/checkpoint/tensor_files.h"
#include "dtopp/config/config.h"
#include "dtopp/config/run_config.h"
#include "dtopp/convert/fill_folder.h"
#include "dtopp/convert/huggingface_tensors.h"
#include "dtopp/convert/python_code.h"
#include "dtopp/data/text/tokenizer.h"
#include "dtopp/models/language_model.h"
#include "dtopp/moe/routers/make_router.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/ops/core/named_tensors.h"

namespace dtopp::convert {
namespace {

// Converts a router's state between a checkpoint and a Hugging Face folder. Single numbers are in
// config.json. Tensors are buffers of each layer's router in the weights' files:
//
//   bias_LE of the checkpoint    model.layers.N.mlp.gate.bias_E          F64 [E]
//   cut_LE                       model.layers.N.mlp.gate.cut_E           F64 [E]
//   router_input_mean_LD         model.layers.N.mlp.gate.input_mean_D    F64 [D]
//   logit_square_LC              model.layers.N.mlp.gate.logit_square_C  F64 [C]
//   (method hash)                model.layers.N.mlp.gate.expert_VK       I32 [V, K]: the experts of each id
//
// Thresholds are router_thresholds in config.json, one per layer. The router's weight and scale are
// parameters (huggingface_tensors.h). State that only training needs is not converted: a new router has it.

struct HuggingFaceRouter {
  RouterNumbers numbers;
  ops::NamedTensors buffers;  // on the CPU
};

constexpr char kThresholds[] = "threshold_C", kCutSteps[] = "cut_steps",
               kNormalizationSteps[] = "normalization_steps", kExperts[] = "expert_VK";

// The buffer of a tensor of the router's state; empty if it has none.
std::string buffer_of(const std::string& state) {
  if (state == "bias_LE") return "bias_E";
  if (state == "cut_LE") return "cut_E";
  if (state == "router_input_mean_LD") return "input_mean_D";
  if (state == "logit_square_LC") return "logit_square_C";
  return "";
}

std::string buffer_name(int64_t layer, const std::string& buffer) {
  return "model.layers." + std::to_string(layer) + ".mlp.gate." + buffer;
}

// int32 [V, K]: the experts that the router hash selects for each id, in rising order.
at::Tensor experts_of_ids(const config::RunConfig& config, moe::Router& router, int64_t layer) {
  const at::Tensor ids = at::arange(config.model.vocab_size, at::kLong);
  const ops::RouteOutput output = router.select({layer, {}, {}, /*training=*/false, ids});
  return output.gates_TE.nonzero().select(1, 1).to(at::kInt).view({config.model.vocab_size, -1});
}

// The router of a checkpoint; empty for a dense model. `config` holds the experts of the checkpoint's step.
HuggingFaceRouter to_huggingface_router(const checkpoint::Checkpoint& checkpoint,
                                        const config::RunConfig& config) {
  HuggingFaceRouter result;
  if (config.model.is_dense()) return result;
  const auto router = moe::make_router(config, at::kCPU);
  moe::load_router(*router, checkpoint.router(), checkpoint.path());
  result.numbers.thresholds = router->metric("threshold");
  const ops::NamedTensors state = router->state();
  for (const auto& [name, value] : state) {
    if (name == kCutSteps) result.numbers.cut_steps = value.item<int64_t>();
    if (name == kNormalizationSteps) result.numbers.normalization_steps = value.item<int64_t>();
    if (buffer_of(name).empty()) continue;
    for (int64_t layer = 0; layer < config.model.num_layers; ++layer)
      result.buffers.emplace_back(buffer_name(layer, buffer_of(name)), value[layer].contiguous());
  }
  if (!config::has_logits(config.routing.method)) {
    for (int64_t layer = 0; layer < config.model.num_layers; ++layer)
      result.buffers.emplace_back(buffer_name(layer, kExperts), experts_of_ids(config, *router, layer));
  }
  return result;
}

// The state of a checkpoint's router; empty for a dense model.
//
// Throws:        DataError that names a buffer that is missing or has another shape or dtype; UsageError if
//                the router is hash and selects other experts than dtopp's
ops::NamedTensors from_huggingface_router(const ImportedConfig& imported, HuggingFaceTensors& tensors) {
  const config::RunConfig& config = imported.config;
  if (config.model.is_dense()) return {};
  const int64_t layers = config.model.num_layers;
  const auto router = moe::make_router(config, at::kCPU);
  ops::NamedTensors state = router->state();
  for (auto& [name, value] : state) {
    if (name == kThresholds) value = at::tensor(imported.router.thresholds, at::kDouble);
    if (name == kCutSteps) value = at::full({}, imported.router.cut_steps, at::kLong);
    if (name == kNormalizationSteps) value = at::full({}, imported.router.normalization_steps, at::kLong);
    if (buffer_of(name).empty()) continue;
    value = at::empty_like(value);
    for (int64_t layer = 0; layer < layers; ++layer)
      ops::copy_from_bytes(tensors.read(buffer_name(layer, buffer_of(name)), "F64", {value.size(1)}).bytes,
                           value[layer]);
  }
  if (config::has_logits(config.routing.method)) return state;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const at::Tensor own = experts_of_ids(config, *router, layer);
    const TensorView& read = tensors.read(buffer_name(layer, kExperts), "I32", own.sizes().vec());
    const auto* bytes = static_cast<const std::byte*>(own.const_data_ptr());
    if (!std::ranges::equal(read.bytes, std::span(bytes, own.nbytes())))
      throw UsageError(tensors.folder(), ": tensor \"", read.name,
                       "\": dtopp's hash router selects other experts");
  }
  return state;
}

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr char kConfigName[] = "config.json";

struct EndOfText {
  std::string token;
  int64_t id;
};

std::optional<EndOfText> end_of_text(const checkpoint::Checkpoint& checkpoint) {
  if (!checkpoint.has_tokenizer()) return std::nullopt;
  const auto tokenizer = data::Tokenizer::load(checkpoint.tokenizer_path());
  const auto token = tokenizer.end_of_text_token();
  return token ? std::optional(EndOfText{std::string(*token), tokenizer.end_of_text()}) : std::nullopt;
}

void write_json(const fs::path& path, const ordered_json& json) {
  write_file_atomically(path, dump_json(json, 2) + "\n");
}

void write_tokenizer(const checkpoint::Checkpoint& checkpoint, const std::optional<EndOfText>& end,
                     int64_t sequence_length, const fs::path& folder) {
  write_file_atomically(folder / checkpoint::kTokenizerFile, read_file(checkpoint.tokenizer_path()));
  ordered_json json = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"model_max_length", sequence_length},
                       {"clean_up_tokenization_spaces", false}};
  if (end)
    for (const char* role : {"bos_token", "eos_token", "pad_token"}) json[role] = end->token;
  write_json(folder / "tokenizer_config.json", json);
}

void write_weights(const checkpoint::Checkpoint& checkpoint, const config::RunConfig& config,
                   const ops::NamedTensors& buffers, HuggingFaceClass as, const fs::path& folder) {
  checkpoint::CheckpointContents contents;
  for (const parameters::ParameterSpec& parameter :
       models::language_model_parameters(config.model, config.routing)) {
    const auto bytes = checkpoint.parameter(parameter.name, parameter.shape);
    for (TensorSource& source : in_files(parameter, bytes, as))
      contents.parameters.push_back(std::move(source));
  }
  for (TensorSource& source : moe::router_sources(buffers)) contents.parameters.push_back(std::move(source));
  const checkpoint::TensorFiles tensors = checkpoint::split_into_files(contents, checkpoint::kShardBytes);
  for (const checkpoint::TensorFile& file : tensors.files)
    if (file.kind == checkpoint::kModel)
      write_safetensors(folder / file.name, file.tensors, {{"format", "pt"}});
  for (const auto& [name, text] : tensors.indexes) write_file_atomically(folder / name, text);
}

}  // namespace

int64_t exported_max_experts(const config::RunConfig& config, int64_t max_experts) {
  const config::RoutingConfig& routing = config.routing;
  const int64_t experts = config.model.num_experts;
  if (max_experts == 0) return routing.max_experts == 0 ? experts : std::min(routing.max_experts, experts);
  const std::string option = "--max-experts: ";
  if (config.model.is_dense()) throw UsageError(option, "the model is dense");
  if (!config::has_threshold(routing.method) && !config::may_select_none(routing.method))
    throw UsageError(option, "every token of routing.method ", enum_name(routing.method),
                     " has the same number of experts");
  if (config.model.zero_experts > 0)
    throw UsageError(option, "the limit would count model.zero_experts too; they must be 0");
  const double least = routing.method == config::RoutingMethod::kTopP ? 1 : std::ranges::max(routing.experts);
  if (static_cast<double>(max_experts) < least || max_experts > experts)
    throw UsageError(option, max_experts, ": must lie between the mean number of experts ", "and ", experts);
  return max_experts;
}

void convert_to_huggingface(const checkpoint::Checkpoint& checkpoint, const fs::path& folder,
                            const HuggingFaceOptions& options) {
  const HuggingFaceClass as = options.as;
  config::RunConfig config = checkpoint.config();
  if (options.max_experts > 0) config.routing.max_experts = exported_max_experts(config, options.max_experts);
  config.routing.experts = config::experts_at(
      config.routing, std::max<int64_t>(checkpoint.state().step - 1, 0), config.training.steps);
  config.routing.schedule.clear();
  config.routing.schedule_at.clear();
  require_fitting(config, as, "--as " + enum_name(as));
  const std::optional<EndOfText> end = end_of_text(checkpoint);
  const auto end_id = end ? std::optional(end->id) : std::nullopt;
  const HuggingFaceRouter router = to_huggingface_router(checkpoint, config);
  fill_folder(folder, [&](const fs::path& into) {
    write_file_atomically(into / kConfigName, huggingface_config(config, router.numbers, end_id, as));
    if (end)
      write_json(into / "generation_config.json",
                 {{"bos_token_id", end->id}, {"eos_token_id", end->id}, {"pad_token_id", end->id}});
    if (as == HuggingFaceClass::kDtopp) {
      write_file_atomically(into / "configuration_dtopp.py", kHuggingFaceConfiguration);
      write_file_atomically(into / "modeling_dtopp.py", kHuggingFaceModel);
    }
    if (checkpoint.has_tokenizer()) write_tokenizer(checkpoint, end, config.model.sequence_length, into);
    write_weights(checkpoint, config, router.buffers, as, into);
  });
}

void convert_from_huggingface(const fs::path& folder, const fs::path& checkpoint) {
  if (path_kind(folder / kConfigName) != PathKind::kFile)
    throw UsageError(folder, ": holds no ", kConfigName, "; name a folder that save_pretrained wrote");
  ImportedConfig imported;
  config::RunConfig& config = imported.config;
  try {
    imported = read_huggingface_config(folder / kConfigName);
    config.name = fs::absolute(folder).lexically_normal().filename().string();
    config::validate_values(config);
  } catch (const config::InvalidValue& error) {
    throw UsageError((folder / kConfigName).string(), ": dtopp cannot train this model: ", error.what());
  }
  HuggingFaceTensors tensors(folder, imported.as);
  checkpoint::CheckpointContents contents;
  contents.state.seed = config.training.seed;
  const ops::NamedTensors router = from_huggingface_router(imported, tensors);
  contents.router = moe::router_sources(router);
  contents.parameters = tensors.read(models::language_model_parameters(config.model, config.routing));
  tensors.require_all_read();
  contents.config_yaml = config::to_yaml(config);
  if (path_kind(folder / checkpoint::kTokenizerFile) == PathKind::kFile)
    contents.tokenizer_json = data::Tokenizer::load(folder / checkpoint::kTokenizerFile).file_text();
  fill_folder(checkpoint, [&](const fs::path& into) { checkpoint::write_checkpoint(into, contents); });
}

}  // namespace dtopp::convert
