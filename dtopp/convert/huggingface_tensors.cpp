#include "dtopp/convert/huggingface_tensors.h"

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/float_type.h"
#include "dtopp/base/json.h"
#include "dtopp/base/path_kind.h"
#include "dtopp/checkpoint/checkpoint_layout.h"
#include "dtopp/checkpoint/tensor_files.h"

namespace dtopp::convert {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kGateUp = "experts.gate_up_proj", kDown = "experts.down_proj";

uint64_t fp32_bytes(const std::vector<int64_t>& shape) {
  uint64_t size = sizeof(float);
  for (const int64_t extent : shape) size *= static_cast<uint64_t>(extent);
  return size;
}

struct ExpertMatrix {
  std::string name;
  std::vector<int64_t> shape;
};

// The matrices that OLMoE's files have instead of a parameter, in the order of its bytes. Empty if they have
// the parameter itself.
std::vector<ExpertMatrix> expert_matrices(const parameters::ParameterSpec& parameter) {
  const auto part = [&](std::string_view whole, const std::vector<const char*>& names, int64_t rows) {
    std::vector<ExpertMatrix> matrices;
    const std::string prefix = parameter.name.substr(0, parameter.name.size() - whole.size()) + "experts.";
    for (int64_t expert = 0; expert < parameter.shape[0]; ++expert)
      for (const char* name : names)
        matrices.push_back(
            {prefix + std::to_string(expert) + "." + name + ".weight", {rows, parameter.shape[2]}});
    return matrices;
  };
  if (parameter.name.ends_with(kGateUp))
    return part(kGateUp, {"gate_proj", "up_proj"}, parameter.shape[1] / 2);
  if (parameter.name.ends_with(kDown)) return part(kDown, {"down_proj"}, parameter.shape[1]);
  return {};
}

// Passes bytes [begin, begin + count) of the tensor's fp32 form to `take`.
void give(const TensorView& tensor, uint64_t begin, uint64_t count, const TakeBytes& take) {
  const FloatType type = float_type_of(tensor.dtype).value();
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
    throw UsageError(folder.string() + ": holds neither " + checkpoint::whole_file(checkpoint::kModel) +
                     " nor " + checkpoint::index_file(checkpoint::kModel));
  std::set<std::string> names;
  for (const auto& [tensor, file] : checkpoint::read_tensor_index(index)) {
    if (fs::path(file).has_parent_path())
      throw DataError(index.string() + ": " + tensor + ": must name a file in the same folder");
    names.insert(file);
  }
  for (const std::string& name : names) files.emplace_back(folder / name);
  return files;
}

}  // namespace

std::vector<TensorSource> as_olmoe(const parameters::ParameterSpec& parameter,
                                   std::span<const std::byte> bytes) {
  const std::vector<ExpertMatrix> matrices = expert_matrices(parameter);
  if (matrices.empty()) return {{parameter.name, "F32", parameter.shape, bytes}};
  std::vector<TensorSource> sources;
  for (const ExpertMatrix& matrix : matrices) {
    const uint64_t size = fp32_bytes(matrix.shape);
    sources.emplace_back(matrix.name, "F32", matrix.shape, bytes.first(size));
    bytes = bytes.subspan(size);
  }
  return sources;
}

HuggingFaceTensors::HuggingFaceTensors(const fs::path& folder) : folder_(folder), files_(open_files(folder)) {
  for (const SafetensorsFile& file : files_)
    for (const TensorView& tensor : file.tensors())
      if (!by_name_.emplace(tensor.name, &tensor).second)
        throw DataError(folder.string() + ": tensor \"" + tensor.name + "\" is in two files");
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
  if (tensor == nullptr) throw DataError(folder_.string() + ": no tensor \"" + name + "\"");
  const bool fits = dtype.empty() ? float_type_of(tensor->dtype).has_value() : tensor->dtype == dtype;
  if (tensor->shape != shape || !fits)
    throw DataError(folder_.string() + ": tensor \"" + name + "\" is " + tensor->dtype + " " +
                    dump_json(tensor->shape) + ", expected " + (dtype.empty() ? "F32, BF16 or F16" : dtype) +
                    " " + dump_json(shape));
  unread_.erase(name);
  return *tensor;
}

const TensorView& HuggingFaceTensors::read(const std::string& name, const std::string& dtype,
                                           const std::vector<int64_t>& shape) {
  return need(name, shape, dtype);
}

void HuggingFaceTensors::require_all_read() const {
  if (!unread_.empty())
    throw DataError(folder_.string() + ": tensor \"" + *unread_.begin() +
                    "\" does not belong to the model of config.json");
}

std::vector<const TensorView*> HuggingFaceTensors::parts_of(const parameters::ParameterSpec& parameter) {
  const std::vector<ExpertMatrix> matrices = expert_matrices(parameter);
  if (find(parameter.name) != nullptr || matrices.empty() || find(matrices[0].name) == nullptr)
    return {&need(parameter.name, parameter.shape)};
  std::vector<const TensorView*> parts;
  parts.reserve(matrices.size());
  for (const ExpertMatrix& matrix : matrices) parts.push_back(&need(matrix.name, matrix.shape));
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
