#include "dtopp/convert/convert_huggingface.h"

#include <algorithm>
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

namespace dtopp::convert {
namespace {

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
                   HuggingFaceClass as, const fs::path& folder) {
  checkpoint::CheckpointContents contents;
  for (const parameters::ParameterSpec& parameter :
       models::language_model_parameters(config.model, config.routing)) {
    const auto bytes = checkpoint.parameter(parameter.name, parameter.shape);
    if (as == HuggingFaceClass::kDtopp)
      contents.parameters.emplace_back(parameter.name, "F32", parameter.shape, bytes);
    else
      for (TensorSource& source : as_olmoe(parameter, bytes))
        contents.parameters.push_back(std::move(source));
  }
  const checkpoint::TensorFiles tensors = checkpoint::split_into_files(contents, checkpoint::kShardBytes);
  for (const checkpoint::TensorFile& file : tensors.files)
    if (file.kind == checkpoint::kModel)
      write_safetensors(folder / file.name, file.tensors, {{"format", "pt"}});
  for (const auto& [name, text] : tensors.indexes) write_file_atomically(folder / name, text);
}

// Router state that a converted model has, or that it does not need.
const std::set<std::string> kConvertedState = {"threshold_C", "error_sum_C", "steps", "tokens_per_expert_LE"};

// The thresholds of a checkpoint: one for all layers, or one per layer.
std::vector<double> thresholds_of(const checkpoint::Checkpoint& checkpoint, const config::RunConfig& config) {
  std::vector<double> thresholds;
  if (!config.model.is_dense()) {
    const auto router = moe::make_router(config, at::kCPU);
    moe::load_router(*router, checkpoint.router(), checkpoint.path());
    thresholds = router->metric("threshold");
    const ops::NamedTensors state = router->state();
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
ops::NamedTensors router_state(const config::RunConfig& config, const std::vector<double>& thresholds) {
  if (config.model.is_dense()) return {};
  ops::NamedTensors state = moe::make_router(config, at::kCPU)->state();
  for (auto& [name, tensor] : state)
    if (name == "threshold_C") tensor = at::tensor(thresholds, at::kDouble);
  return state;
}

}  // namespace

void convert_to_huggingface(const checkpoint::Checkpoint& checkpoint, const fs::path& folder,
                            HuggingFaceClass as) {
  config::RunConfig config = checkpoint.config();
  config.routing.experts = config::experts_at(
      config.routing, std::max<int64_t>(checkpoint.state().step - 1, 0), config.training.steps);
  if (as == HuggingFaceClass::kOlmoe) require_olmoe(config);
  const std::optional<EndOfText> end = end_of_text(checkpoint);
  const auto end_id = end ? std::optional(end->id) : std::nullopt;
  fill_folder(folder, [&](const fs::path& into) {
    write_file_atomically(into / kConfigName,
                          huggingface_config(config, thresholds_of(checkpoint, config), end_id, as));
    if (end)
      write_json(into / "generation_config.json",
                 {{"bos_token_id", end->id}, {"eos_token_id", end->id}, {"pad_token_id", end->id}});
    if (as == HuggingFaceClass::kDtopp) {
      write_file_atomically(into / "configuration_dtopp.py", kHuggingFaceConfiguration);
      write_file_atomically(into / "modeling_dtopp.py", kHuggingFaceModel);
    }
    if (checkpoint.has_tokenizer()) write_tokenizer(checkpoint, end, config.model.sequence_length, into);
    write_weights(checkpoint, config, as, into);
  });
}

void convert_from_huggingface(const fs::path& folder, const fs::path& checkpoint) {
  if (path_kind(folder / kConfigName) != PathKind::kFile)
    throw UsageError(folder.string() + ": holds no " + kConfigName +
                     "; name a folder that save_pretrained wrote");
  ImportedConfig imported;
  config::RunConfig& config = imported.config;
  try {
    imported = read_huggingface_config(folder / kConfigName);
    config.name = fs::absolute(folder).lexically_normal().filename().string();
    config::validate_values(config);
  } catch (const config::InvalidValue& error) {
    throw UsageError((folder / kConfigName).string() + ": dtopp cannot train this model: " + error.what());
  }
  const HuggingFaceTensors tensors(folder);
  checkpoint::CheckpointContents contents;
  contents.state.seed = config.training.seed;
  const ops::NamedTensors router = router_state(config, imported.thresholds);
  contents.router = moe::router_sources(router);
  contents.parameters = tensors.read(models::language_model_parameters(config.model, config.routing));
  contents.config_yaml = config::to_yaml(config);
  if (path_kind(folder / checkpoint::kTokenizerFile) == PathKind::kFile)
    contents.tokenizer_json = data::Tokenizer::load(folder / checkpoint::kTokenizerFile).file_text();
  fill_folder(checkpoint, [&](const fs::path& into) { checkpoint::write_checkpoint(into, contents); });
}

}  // namespace dtopp::convert
