// Converts the weights of a language model between dtopp's files and those of Hugging Face. Both are
// safetensors files with the same parameter names, except for the layers of experts. Here OLMoE's and
// Qwen2-MoE's names; Mixtral has others (huggingface_config.h):
//
//   mlp.experts.gate_up_proj [E, 2F, D]              mlp.experts.{e}.{gate,up}_proj.weight [F, D]
//   mlp.experts.down_proj [E, D, F]                  mlp.experts.{e}.down_proj.weight [D, F]
//   mlp.shared_experts.gate_up_proj.weight [2S, D]   mlp.shared_expert.{gate,up}_proj.weight [S, D]
//   mlp.shared_experts.down_proj.weight [D, S]       mlp.shared_expert.down_proj.weight [D, S]
//   mlp.shared_gate.weight [1, D]                    mlp.shared_expert_gate.weight [1, D]
#include <set>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"
#include "dtopp/base/json.h"
#include "dtopp/base/safetensors.h"
#include "dtopp/checkpoint/tensor_files.h"
#include "dtopp/config/config.h"
#include "dtopp/config/run_config.h"
#include "dtopp/convert/convert.h"
#include "dtopp/convert/fill_folder.h"
#include "dtopp/convert/python_code.h"
#include "dtopp/data/text/tokenizer.h"
#include "dtopp/models/language_model.h"
#include "dtopp/moe/make_router.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/ops/core/named_tensors.h"
#include "dtopp/parameters/parameters.h"

namespace dtopp::convert {
namespace {

uint64_t fp32_bytes(const std::vector<int64_t>& shape) { return tensor_bytes(sizeof(float), shape).value(); }

struct FileTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// The tensors that a class's files have instead of a parameter, in the order of its bytes.
std::vector<FileTensor> file_tensors(const parameters::ParameterSpec& parameter, HuggingFaceClass as) {
  const std::vector<int64_t>& shape = parameter.shape;
  const size_t at = parameter.name.find("mlp.");
  if (as == HuggingFaceClass::kDtopp || at == std::string::npos) return {{parameter.name, shape}};
  const HuggingFaceFamily& family = family_of(as);
  const std::string layer = parameter.name.substr(0, at), name = parameter.name.substr(at);
  const std::string experts = layer + std::string(family.layer);
  const auto by_expert = [&](std::initializer_list<std::string_view> parts, int64_t rows) {
    std::vector<FileTensor> tensors;
    for (int64_t expert = 0; expert < shape[0]; ++expert)
      for (const std::string_view part : parts)
        tensors.push_back(
            {experts + "experts." + std::to_string(expert) + "." + std::string(part) + ".weight",
             {rows, shape[2]}});
    return tensors;
  };
  if (name == "mlp.experts.gate_up_proj") return by_expert({family.gate, family.up}, shape[1] / 2);
  if (name == "mlp.experts.down_proj") return by_expert({family.down}, shape[1]);
  if (name == "mlp.gate.weight") return {{experts + "gate.weight", shape}};
  if (name == "mlp.shared_experts.gate_up_proj.weight")
    return {{experts + "shared_expert.gate_proj.weight", {shape[0] / 2, shape[1]}},
            {experts + "shared_expert.up_proj.weight", {shape[0] / 2, shape[1]}}};
  if (name == "mlp.shared_experts.down_proj.weight")
    return {{experts + "shared_expert.down_proj.weight", shape}};
  if (name == "mlp.shared_gate.weight") return {{experts + "shared_expert_gate.weight", shape}};
  return {{parameter.name, shape}};
}

// Passes bytes [begin, begin + count) of the tensor's fp32 form to `take`.
void give(const TensorView& tensor, uint64_t begin, uint64_t count, const TakeBytes& take) {
  const FloatType type = enum_named<FloatType>(tensor.dtype).value();
  if (type == FloatType::kF32) return take(tensor.bytes.subspan(begin, count));
  constexpr uint64_t kNumbers = uint64_t{1} << 16;
  std::vector<float> numbers;
  const uint64_t end = begin + count, last = (end + sizeof(float) - 1) / sizeof(float);
  for (uint64_t first = begin / sizeof(float); first < last; first += kNumbers) {
    numbers.resize(std::min(kNumbers, last - first));
    widen(type, tensor.bytes.subspan(first * size_of(type), numbers.size() * size_of(type)), numbers);
    const uint64_t at = first * sizeof(float), from = std::max(at, begin);
    const uint64_t to = std::min(at + numbers.size() * sizeof(float), end);
    take(std::as_bytes(std::span(numbers)).subspan(from - at, to - from));
  }
}

// Like give, for several tensors that follow each other.
void give_all(const std::vector<const TensorView*>& parts, uint64_t begin, uint64_t count,
              const TakeBytes& take) {
  for (const TensorView* part : parts) {
    const uint64_t size = fp32_bytes(part->shape);
    if (count > 0 && begin < size) {
      const uint64_t here = std::min(count, size - begin);
      give(*part, begin, here, take);
      count -= here;
      begin = 0;
    } else {
      begin -= std::min(begin, size);
    }
  }
}

std::vector<SafetensorsFile> open_files(const fs::path& folder) {
  std::vector<SafetensorsFile> files;
  if (path_kind(folder / checkpoint::whole_file(checkpoint::kModel)) == PathKind::kFile) {
    files.emplace_back(folder / checkpoint::whole_file(checkpoint::kModel));
    return files;
  }
  const fs::path index = folder / checkpoint::index_file(checkpoint::kModel);
  if (path_kind(index) != PathKind::kFile)
    throw UsageError(folder, ": holds neither ", checkpoint::whole_file(checkpoint::kModel), " nor ",
                     checkpoint::index_file(checkpoint::kModel));
  std::set<std::string> names;
  for (const auto& [tensor, file] : checkpoint::read_tensor_index(index)) {
    if (fs::path(file).has_parent_path())
      throw DataError(index, ": ", tensor, ": must name a file in the same folder");
    names.insert(file);
  }
  for (const std::string& name : names) files.emplace_back(folder / name);
  return files;
}

// The fp32 bytes of a parameter in the form of the class's files: the parameter itself, or its parts. `bytes`
// must stay valid until they are written.
std::vector<TensorSource> in_files(const parameters::ParameterSpec& parameter,
                                   std::span<const std::byte> bytes, HuggingFaceClass as) {
  std::vector<TensorSource> sources;
  for (const FileTensor& tensor : file_tensors(parameter, as)) {
    const uint64_t size = fp32_bytes(tensor.shape);
    sources.emplace_back(tensor.name, "F32", tensor.shape, bytes.first(size));
    bytes = bytes.subspan(size);
  }
  return sources;
}

// The weights in a folder of Hugging Face: model.safetensors, or the files that model.safetensors.index.json
// lists.
class HuggingFaceTensors {
 public:
  // Throws UsageError if the folder has neither; DataError if a file is damaged.
  HuggingFaceTensors(const fs::path& folder, HuggingFaceClass as)
      : folder_(folder), class_(as), files_(open_files(folder)) {
    for (const SafetensorsFile& file : files_)
      for (const TensorView& tensor : file.tensors())
        if (!by_name_.emplace(tensor.name, &tensor).second)
          throw DataError(folder, ": tensor \"", tensor.name, "\" is in two files");
    for (const auto& [name, tensor] : by_name_) unread_.insert(name);
    unread_.erase("lm_head.weight");  // a tied one may be stored too
  }

  // The parameters in fp32. The files may store them whole or in parts, as F32, BF16 or F16. The sources
  // must be read during the lifetime of this object.
  //
  // Throws:        DataError that names a parameter that is missing or has another shape or dtype
  std::vector<TensorSource> read(const std::vector<parameters::ParameterSpec>& parameters) {
    std::vector<TensorSource> sources;
    for (const parameters::ParameterSpec& parameter : parameters)
      sources.emplace_back(
          parameter.name, "F32", parameter.shape, fp32_bytes(parameter.shape),
          [parts = parts_of(parameter)](uint64_t begin, uint64_t count, const TakeBytes& take) {
            give_all(parts, begin, count, take);
          });
    return sources;
  }

  // Another tensor, of this dtype; empty: F32, BF16 or F16. Throws like read().
  const TensorView& need(const std::string& name, const std::vector<int64_t>& shape,
                         const std::string& dtype = {}) {
    if (!by_name_.contains(name)) throw DataError(folder_, ": no tensor \"", name, "\"");
    const TensorView& tensor = *by_name_.at(name);
    const bool fits = dtype.empty() ? enum_named<FloatType>(tensor.dtype).has_value() : tensor.dtype == dtype;
    if (tensor.shape != shape || !fits)
      throw DataError(folder_, ": tensor \"", name, "\" is ", tensor.dtype, " ", dump_json(tensor.shape),
                      ", expected ", (dtype.empty() ? "F32, BF16 or F16" : dtype), " ", dump_json(shape));
    unread_.erase(name);
    return tensor;
  }

  // Throws DataError that names a tensor in the files that was not read.
  void require_all_read() const {
    if (!unread_.empty())
      throw DataError(folder_, ": tensor \"", *unread_.begin(),
                      "\" does not belong to the model of config.json");
  }

  const fs::path& folder() const { return folder_; }

 private:
  // The tensors that form the parameter, one after another.
  std::vector<const TensorView*> parts_of(const parameters::ParameterSpec& parameter) {
    const std::vector<FileTensor> tensors = file_tensors(parameter, class_);
    if (by_name_.contains(parameter.name) || !by_name_.contains(tensors[0].name))
      return {&need(parameter.name, parameter.shape)};
    std::vector<const TensorView*> parts;
    for (const FileTensor& tensor : tensors) parts.push_back(&need(tensor.name, tensor.shape));
    return parts;
  }

  fs::path folder_;
  HuggingFaceClass class_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, const TensorView*> by_name_;
  std::set<std::string> unread_;
};

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
// parameters. State that only training needs is not converted: a new router has it.

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
Tensor experts_of_ids(const config::RunConfig& config, moe::Router& router, int64_t layer) {
  const Tensor ids = at::arange(config.model.vocab_size, at::kLong);
  const ops::RouteOutput output = router.select_by_id({layer, {}, {}, /*training=*/false, ids});
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
    for (int64_t layer = config.routing.hash_layers; layer < config.model.num_layers; ++layer)
      result.buffers.emplace_back(buffer_name(layer, buffer_of(name)), value[layer].contiguous());
  }
  for (int64_t layer = 0; layer < config.model.num_layers; ++layer)
    if (!config::has_router(config.routing, layer))
      result.buffers.emplace_back(buffer_name(layer, kExperts), experts_of_ids(config, *router, layer));
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
    value = value.clone();
    for (int64_t layer = config.routing.hash_layers; layer < layers; ++layer)
      ops::copy_from_bytes(tensors.need(buffer_name(layer, buffer_of(name)), {value.size(1)}, "F64").bytes,
                           value[layer]);
  }
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (config::has_router(config.routing, layer)) continue;
    const Tensor own = experts_of_ids(config, *router, layer);
    const TensorView& read = tensors.need(buffer_name(layer, kExperts), own.sizes().vec(), "I32");
    const auto* bytes = static_cast<const std::byte*>(own.const_data_ptr());
    if (!std::ranges::equal(read.bytes, std::span(bytes, own.nbytes())))
      throw UsageError(tensors.folder(), ": tensor \"", read.name,
                       "\": dtopp's hash router selects other experts");
  }
  return state;
}

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
