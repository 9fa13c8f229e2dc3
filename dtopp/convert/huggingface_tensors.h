// Converts the weights of a language model between dtopp's files and those of Hugging Face. Both are
// safetensors files with the same parameter names, except for the layers of experts. Here OLMoE's and
// Qwen2-MoE's names; Mixtral has others (huggingface_config.h):
//
//   mlp.experts.gate_up_proj [E, 2F, D]              mlp.experts.{e}.{gate,up}_proj.weight [F, D]
//   mlp.experts.down_proj [E, D, F]                  mlp.experts.{e}.down_proj.weight [D, F]
//   mlp.shared_experts.gate_up_proj.weight [2S, D]   mlp.shared_expert.{gate,up}_proj.weight [S, D]
//   mlp.shared_experts.down_proj.weight [D, S]       mlp.shared_expert.down_proj.weight [D, S]
//   mlp.shared_gate.weight [1, D]                    mlp.shared_expert_gate.weight [1, D]
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "dtopp/base/safetensors.h"
#include "dtopp/convert/huggingface_config.h"
#include "dtopp/parameters/parameters.h"

namespace dtopp::convert {

// The fp32 bytes of a parameter in the form of the class's files: the parameter itself, or its parts. `bytes`
// must stay valid until they are written.
std::vector<TensorSource> in_files(const parameters::ParameterSpec& parameter,
                                   std::span<const std::byte> bytes, HuggingFaceClass as);

// The weights in a folder of Hugging Face: model.safetensors, or the files that model.safetensors.index.json
// lists.
class HuggingFaceTensors {
 public:
  // Throws UsageError if the folder has neither; DataError if a file is damaged.
  HuggingFaceTensors(const std::filesystem::path& folder, HuggingFaceClass as);

  // The parameters in fp32. The files may store them whole or in parts, as F32, BF16 or F16. The sources
  // must be read during the lifetime of this object.
  //
  // Throws:        DataError that names a parameter that is missing or has another shape or dtype
  std::vector<TensorSource> read(const std::vector<parameters::ParameterSpec>& parameters);
  // Another tensor, of exactly this dtype. Throws like read().
  const TensorView& read(const std::string& name, const std::string& dtype,
                         const std::vector<int64_t>& shape);
  // Throws DataError that names a tensor in the files that was not read.
  void require_all_read() const;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  const TensorView* find(const std::string& name) const;
  // The tensors that form the parameter, one after another.
  std::vector<const TensorView*> parts_of(const parameters::ParameterSpec& parameter);
  const TensorView& need(const std::string& name, const std::vector<int64_t>& shape,
                         const std::string& dtype = {});  // empty: F32, BF16 or F16

  std::filesystem::path folder_;
  HuggingFaceClass class_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, const TensorView*> by_name_;
  std::set<std::string> unread_;
};

}  // namespace dtopp::convert
