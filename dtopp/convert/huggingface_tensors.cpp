#include "dtopp/convert/huggingface_tensors.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/float_type.h"
#include "dtopp/base/format.h"
#include "dtopp/base/json.h"
#include "dtopp/checkpoint/tensor_files.h"

namespace dtopp::convert {
namespace {

namespace fs = std::filesystem;

uint64_t fp32_bytes(const std::vector<int64_t>& shape) {
  uint64_t size = sizeof(float);
  for (const int64_t extent : shape) size *= static_cast<uint64_t>(extent);
  return size;
}

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

}  // namespace

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

HuggingFaceTensors::HuggingFaceTensors(const fs::path& folder, HuggingFaceClass as)
    : folder_(folder), class_(as), files_(open_files(folder)) {
  for (const SafetensorsFile& file : files_)
    for (const TensorView& tensor : file.tensors())
      if (!by_name_.emplace(tensor.name, &tensor).second)
        throw DataError(folder, ": tensor \"", tensor.name, "\" is in two files");
  for (const auto& [name, tensor] : by_name_) unread_.insert(name);
  unread_.erase("lm_head.weight");  // a tied one may be stored too
}

const TensorView* HuggingFaceTensors::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const TensorView& HuggingFaceTensors::need(const std::string& name, const std::vector<int64_t>& shape,
                                           const std::string& dtype) {
  const TensorView* tensor = find(name);
  if (tensor == nullptr) throw DataError(folder_, ": no tensor \"", name, "\"");
  const bool fits = dtype.empty() ? enum_named<FloatType>(tensor->dtype).has_value() : tensor->dtype == dtype;
  if (tensor->shape != shape || !fits)
    throw DataError(folder_, ": tensor \"", name, "\" is ", tensor->dtype, " ", dump_json(tensor->shape),
                    ", expected ", (dtype.empty() ? "F32, BF16 or F16" : dtype), " ", dump_json(shape));
  unread_.erase(name);
  return *tensor;
}

const TensorView& HuggingFaceTensors::read(const std::string& name, const std::string& dtype,
                                           const std::vector<int64_t>& shape) {
  return need(name, shape, dtype);
}

void HuggingFaceTensors::require_all_read() const {
  if (!unread_.empty())
    throw DataError(folder_, ": tensor \"", *unread_.begin(),
                    "\" does not belong to the model of config.json");
}

std::vector<const TensorView*> HuggingFaceTensors::parts_of(const parameters::ParameterSpec& parameter) {
  const std::vector<FileTensor> tensors = file_tensors(parameter, class_);
  if (find(parameter.name) != nullptr || find(tensors[0].name) == nullptr)
    return {&need(parameter.name, parameter.shape)};
  std::vector<const TensorView*> parts;
  parts.reserve(tensors.size());
  for (const FileTensor& tensor : tensors) parts.push_back(&need(tensor.name, tensor.shape));
  return parts;
}

std::vector<TensorSource> HuggingFaceTensors::read(const std::vector<parameters::ParameterSpec>& parameters) {
  std::vector<TensorSource> sources;
  for (const parameters::ParameterSpec& parameter : parameters) {
    const std::vector<const TensorView*> parts = parts_of(parameter);
    sources.emplace_back(parameter.name, "F32", parameter.shape, fp32_bytes(parameter.shape),
                         [parts](uint64_t begin, uint64_t count, const TakeBytes& take) {
                           give_all(parts, begin, count, take);
                         });
  }
  return sources;
}

}  // namespace dtopp::convert
