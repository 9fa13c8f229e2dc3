#include "dtopp/convert/convert_huggingface.h"

#include <set>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/json.h"
#include "dtopp/base/path_kind.h"
#include "dtopp/checkpoint/checkpoint_layout.h"
#include "dtopp/checkpoint/tensor_files.h"
#include "dtopp/config/config.h"
#include "dtopp/config/run_config.h"
#include "dtopp/convert/fill_folder.h"
#include "dtopp/convert/huggingface_tensors.h"
#include "dtopp/convert/python_code.h"
#include "dtopp/data/tokenizer/tokenizer.h"
#include "dtopp/models/language_model/parameters.h"
#include "dtopp/moe/router_state.h"
#include "dtopp/moe/routers/make_router.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr char kEndOfText[] = "<|endoftext|>";
constexpr char kConfigName[] = "config.json";

std::optional<int64_t> end_of_text(const Checkpoint& checkpoint) {
  if (!checkpoint.has_tokenizer()) return std::nullopt;
  const auto token = Tokenizer::load(checkpoint.tokenizer_path()).token_to_id(kEndOfText);
  return token ? std::optional<int64_t>(*token) : std::nullopt;
}

void write_json(const fs::path& path, const ordered_json& json) {
  write_file_atomically(path, dump_json(json, 2) + "\n");
}

void write_tokenizer(const Checkpoint& checkpoint, bool has_end, int64_t sequence_length,
                     const fs::path& folder) {
  write_file_atomically(folder / kTokenizerFile, read_file(checkpoint.tokenizer_path()));
  ordered_json json = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"model_max_length", sequence_length},
                       {"clean_up_tokenization_spaces", false}};
  if (has_end)
    for (const char* role : {"bos_token", "eos_token", "pad_token"}) json[role] = kEndOfText;
  write_json(folder / "tokenizer_config.json", json);
}

void write_weights(const Checkpoint& checkpoint, const RunConfig& config, HuggingFaceClass as,
                   const fs::path& folder) {
  CheckpointContents contents;
  for (const ParameterSpec& parameter : language_model_parameters(config.model, config.routing)) {
    const auto bytes = checkpoint.parameter(parameter.name, parameter.shape);
    if (as == HuggingFaceClass::kDtopp)
      contents.parameters.emplace_back(parameter.name, "F32", parameter.shape, bytes);
    else
      for (TensorSource& source : as_olmoe(parameter, bytes))
        contents.parameters.push_back(std::move(source));
  }
  const TensorFiles tensors = split_into_files(contents, kShardBytes);
  for (const TensorFile& file : tensors.files)
    if (file.kind == kModel) write_safetensors(folder / file.name, file.tensors, {{"format", "pt"}});
  for (const auto& [name, text] : tensors.indexes) write_file_atomically(folder / name, text);
}

// Router state that a converted model has, or that it does not need.
const std::set<std::string> kConvertedState = {"threshold_C", "error_sum_C", "steps", "tokens_per_expert_LE"};

// The thresholds of a checkpoint: one for all layers, or one per layer.
std::vector<double> thresholds_of(const Checkpoint& checkpoint, const RunConfig& config) {
  std::vector<double> thresholds;
  if (!config.model.is_dense()) {
    const auto router = make_router(config, at::kCPU);
    load_router(*router, checkpoint.router(), checkpoint.path());
    thresholds = router->metric("threshold");
    const NamedTensors state = router->state();
    for (const auto& [name, tensor] : state)
      if (!kConvertedState.contains(name))
        throw UsageError(checkpoint.path().string() +
                         ": the Hugging Face format has no place for the router's " + name +
                         "; only top_k, top_p and dtop_p can be converted");
  }
  if (thresholds.empty()) thresholds = {config.routing.threshold};
  return thresholds;
}

// The state of a new router with these thresholds.
NamedTensors router_state(const RunConfig& config, const std::vector<double>& thresholds) {
  if (config.model.is_dense()) return {};
  NamedTensors state = make_router(config, at::kCPU)->state();
  for (auto& [name, tensor] : state)
    if (name == "threshold_C") tensor = at::tensor(thresholds, at::kDouble);
  return state;
}

}  // namespace

void convert_to_huggingface(const Checkpoint& checkpoint, const fs::path& folder, HuggingFaceClass as) {
  const RunConfig config = checkpoint.config();
  if (as == HuggingFaceClass::kOlmoe) require_olmoe(config);
  const std::optional<int64_t> end = end_of_text(checkpoint);
  fill_folder(folder, [&](const fs::path& into) {
    write_file_atomically(into / kConfigName,
                          huggingface_config(config, thresholds_of(checkpoint, config), end, as));
    if (end)
      write_json(into / "generation_config.json",
                 {{"bos_token_id", *end}, {"eos_token_id", *end}, {"pad_token_id", *end}});
    if (as == HuggingFaceClass::kDtopp) {
      write_file_atomically(into / "configuration_dtopp.py", kHuggingFaceConfiguration);
      write_file_atomically(into / "modeling_dtopp.py", kHuggingFaceModel);
    }
    if (checkpoint.has_tokenizer())
      write_tokenizer(checkpoint, end.has_value(), config.model.sequence_length, into);
    write_weights(checkpoint, config, as, into);
  });
}

void convert_from_huggingface(const fs::path& folder, const fs::path& checkpoint) {
  if (path_kind(folder / kConfigName) != PathKind::kFile)
    throw UsageError(folder.string() + ": holds no " + kConfigName +
                     "; name a folder that save_pretrained wrote");
  ImportedConfig imported = read_huggingface_config(folder / kConfigName);
  RunConfig& config = imported.config;
  config.name = fs::absolute(folder).lexically_normal().filename().string();
  try {
    validate_values(config);
  } catch (const InvalidValue& error) {
    throw UsageError((folder / kConfigName).string() + ": dtopp cannot train this model: " + error.what());
  }
  const HuggingFaceTensors tensors(folder);
  CheckpointContents contents;
  contents.state.seed = config.training.seed;
  const NamedTensors router = router_state(config, imported.thresholds);
  contents.router = router_sources(router);
  contents.parameters = tensors.read(language_model_parameters(config.model, config.routing));
  contents.config_yaml = to_yaml(config);
  if (path_kind(folder / kTokenizerFile) == PathKind::kFile)
    contents.tokenizer_json = Tokenizer::load(folder / kTokenizerFile).file_text();
  fill_folder(checkpoint, [&](const fs::path& into) { write_checkpoint(into, contents); });
}

}  // namespace dtopp
