// Converts the weights of a language model between dtopp's files and those of Hugging Face. Both are
// safetensors files with the same parameter names. OLMoE's files store each expert's matrices separately:
//
//   mlp.experts.gate_up_proj [E, 2F, D]  mlp.experts.{e}.gate_proj.weight [F, D], .up_proj.weight [F, D]
//   mlp.experts.down_proj [E, D, F]      mlp.experts.{e}.down_proj.weight [D, F]
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "dtopp/base/safetensors/safetensors_file.h"
#include "dtopp/base/safetensors/safetensors_writer.h"
#include "dtopp/parameters/parameters.h"

namespace dtopp::convert {

// The fp32 bytes of a parameter in the form of OLMoE's files: the parameter itself, or one or two matrices
// per expert. `bytes` must stay valid until they are written.
std::vector<TensorSource> as_olmoe(const parameters::ParameterSpec& parameter,
                                   std::span<const std::byte> bytes);

// The weights in a folder of Hugging Face: model.safetensors, or the files that model.safetensors.index.json
// lists.
class HuggingFaceTensors {
 public:
  // Throws UsageError if the folder has neither; DataError if a file is damaged.
  explicit HuggingFaceTensors(const std::filesystem::path& folder);

  // The parameters in fp32. The files may store them whole or per expert, as F32, BF16 or F16. The sources
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
  std::vector<SafetensorsFile> files_;
  std::map<std::string, const TensorView*> by_name_;
  std::set<std::string> unread_;
};

}  // namespace dtopp::convert
