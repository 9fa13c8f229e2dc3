// The weights of a language model between dtopp's files and those of Hugging Face: safetensors under the
// names of the same parameters. OLMoE's files hold each expert's matrices apart:
//   mlp.experts.gate_up_proj [E, 2F, D]  mlp.experts.{e}.gate_proj.weight [F, D], .up_proj.weight [F, D]
//   mlp.experts.down_proj [E, D, F]      mlp.experts.{e}.down_proj.weight [D, F]
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "dtopp/base/safetensors.h"
#include "dtopp/parameters/parameters.h"

namespace dtopp {

// The fp32 bytes of a parameter as OLMoE's files have it: itself, or a matrix or two an expert.
std::vector<TensorSource> as_olmoe(const ParameterSpec& parameter, std::span<const std::byte> bytes);

// The weights in a folder of Hugging Face: model.safetensors, or the files that model.safetensors.index.json
// names.
class HuggingFaceTensors {
 public:
  // UsageError where the folder holds neither; DataError for damage.
  explicit HuggingFaceTensors(const std::filesystem::path& folder);

  // The parameters in fp32, whole or an expert at a time in the files, of F32, BF16 or F16; to be read while
  // this is there. DataError naming one that is missing or has another shape or dtype, and naming a tensor of
  // the files that is none of them.
  std::vector<TensorSource> read(const std::vector<ParameterSpec>& parameters) const;

 private:
  const TensorView* find(const std::string& name) const;
  // Parts that lie one after another in the parameter.
  std::vector<const TensorView*> parts_of(const ParameterSpec& parameter) const;
  const TensorView& need(const std::string& name, const std::vector<int64_t>& shape) const;

  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, const TensorView*> by_name_;
};

}  // namespace dtopp
